"""Files for Prometheus and Grafana beside a run: scrape targets, rules, data source, dashboard.
Pure but for ``write``.

Queries are plain PromQL; ``$run`` and ``$link`` are the dashboard's variables.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from testbed.records import metrics
from testbed.records.metrics import STATES

Document = dict[str, Any]

SOURCE_UID = "narrows-prometheus"
"""Identity of the data source in every dashboard of ours; it does not change."""
DASHBOARD_UID = "narrows-run"
DASHBOARD = Path("grafana/dashboards/narrows.json")
NODES_AT_ONCE = 16
"""Nodes that are scraped within one second; with more of them each is scraped less often."""
MOST_SAMPLES, MOST_BYTES, MOST_LABELS = 5_000, "4MB", 16
"""Limits of one answer: whatever a node says, storage is bounded."""


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """The addresses of a run's exporters, and what its dashboard shows first."""

    nodes: Mapping[str, str]
    """``ADDRESS:PORT`` of each node's exporter, keyed by the node's name."""
    session: str
    """``ADDRESS:PORT`` of the session's exporter."""
    prometheus: str
    """Address of Prometheus for Grafana, such as ``http://127.0.0.1:9090``."""
    run: str
    """Name of the run's directory."""
    link: str
    """Name of the link whose rates are shown."""


def interval_s(nodes: int) -> int:
    """Return the seconds between two scrapes of one of ``nodes`` nodes."""
    return -(-max(nodes, 1) // NODES_AT_ONCE)


def _window(nodes: int) -> str:
    """Return how far back rates look: at four scrapes at least."""
    return f"{max(10, 4 * interval_s(nodes))}s"


def _long_window(nodes: int) -> str:
    """Return how far back means and quantiles of delays look."""
    return f"{max(30, 12 * interval_s(nodes))}s"


def prometheus_config(observed: ObservedRun) -> Document:
    """Return ``prometheus.yml``."""
    every = f"{interval_s(len(observed.nodes))}s"
    limits = {
        "sample_limit": MOST_SAMPLES,
        "body_size_limit": MOST_BYTES,
        "label_limit": MOST_LABELS,
    }
    return {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
        },
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": "nodes", **limits, "file_sd_configs": [{"files": ["targets.json"]}]},
            {
                "job_name": "session",
                **limits,
                "static_configs": [{"targets": [observed.session]}],
            },
        ],
    }


def targets(observed: ObservedRun) -> list[Document]:
    """Return ``targets.json``."""
    return [{"targets": list(observed.nodes.values()), "labels": {}}]


BYTE_RATE = "run:testbed_frame_bytes:rate"
PHASE_MEAN = "run_phase:testbed_phase_seconds:mean"
DELAY_P50 = "run:testbed_communication_delay_seconds:p50"
DELAY_P95 = "run:testbed_communication_delay_seconds:p95"


def rules(nodes: int) -> Document:
    """Return ``rules.yml`` for so many nodes: recording rules for the dashboard, and alerts."""
    window, long = _window(nodes), _long_window(nodes)
    recorded = {
        BYTE_RATE: f'sum by (run, direction) (rate({metrics.BYTES}{{role="worker"}}[{window}]))',
        PHASE_MEAN: f"sum by (run, phase) (rate({metrics.PHASE}_sum[{long}])) / "
        f"sum by (run, phase) (rate({metrics.PHASE}_count[{long}]))",
        DELAY_P50: _quantile(0.5, long),
        DELAY_P95: _quantile(0.95, long),
    }
    return {
        "groups": [
            {
                "name": "narrows",
                "rules": [{"record": name, "expr": expr} for name, expr in recorded.items()],
            },
            {"name": "narrows-alerts", "rules": list(_alerts())},
        ]
    }


def _quantile(share: float, window: str) -> str:
    return (
        f"histogram_quantile({share:g}, sum by (run, le) (rate({metrics.DELAY}_bucket[{window}])))"
    )


def _alerts() -> Iterator[Document]:
    for state in ("degraded", "invalid"):
        yield _alert(
            f"NarrowsRun{state.capitalize()}",
            f"{metrics.VERDICT} == {STATES[state]}",
            "0s",
            f"The verdict so far of {{{{ $labels.run }}}} is {state}",
        )
    yield _alert(
        "NarrowsNodeSilent",
        'up{job="nodes"} == 0',
        "5s",
        "The node at {{ $labels.instance }} does not answer scrapes",
    )
    steps = f'sum by (run) (increase({metrics.STEPS}{{role="worker"}}[1m])) == 0'
    yield _alert(
        "NarrowsNoSteps", steps, "30s", "No worker of {{ $labels.run }} finished a step in a minute"
    )
    yield _alert(
        "NarrowsProcessorsShort",
        f"avg_over_time({metrics.PRESSURE}[10s]) > 0.5",
        "10s",
        "Processes wait for a processor in more than half of the time",
    )


def _alert(name: str, expr: str, lasting: str, summary: str) -> Document:
    return {"alert": name, "expr": expr, "for": lasting, "annotations": {"summary": summary}}


_RUN = 'run="$run"'


def _panels(nodes: int) -> Iterator[Document]:
    """Yield the panels with their sizes, without their places."""
    colours = {"valid": "green", "degraded": "orange", "invalid": "red"}
    mapping = {
        "type": "value",
        "options": {
            str(value): {"text": state, "color": colours[state]} for state, value in STATES.items()
        },
    }
    states = {"mappings": [mapping]}
    yield _panel("Verdict so far", "stat", 6, [(f"{metrics.VERDICT}{{{_RUN}}}", "")], states)
    steps = f'max({metrics.STEPS}{{{_RUN},role="worker"}})'
    yield _panel("Steps", "stat", 6, [(steps, "")])
    yield _panel("Nodes that answer", "stat", 6, [('sum(up{job="nodes"})', "")])
    waiting = f"{metrics.WAITING}{{{_RUN}}}"
    yield _panel("Processes waiting for a processor", "stat", 6, [(waiting, "")])
    rate = f'8 * {metrics.LINK_RATE}{{{_RUN},node="$link"}}'
    yield _panel(
        "Rate of the link $link, asked and delivered",
        "timeseries",
        12,
        [(rate, "{{direction}} {{source}}")],
        {"unit": "bps", "min": 0},
    )
    yield _panel(
        "Density k",
        "timeseries",
        12,
        [(f"{metrics.DENSITY}{{{_RUN}}}", "{{node}}")],
        {"unit": "percentunit", "min": 0},
    )
    yield _panel(
        "Mean time of a step by phase",
        "timeseries",
        12,
        [(f"{PHASE_MEAN}{{{_RUN}}}", "{{phase}}")],
        {"unit": "s", "min": 0, "custom": {"stacking": {"mode": "normal"}, "fillOpacity": 40}},
    )
    quantiles = [(f"{DELAY_P50}{{{_RUN}}}", "median"), (f"{DELAY_P95}{{{_RUN}}}", "95 %")]
    yield _panel("Communication delay", "timeseries", 12, quantiles, {"unit": "s", "min": 0})
    buckets = f"sum by (le) (increase({metrics.DELAY}_bucket{{{_RUN}}}[{_window(nodes)}]))"
    heatmap = _panel("Communication delays of all workers", "heatmap", 12, [(buckets, "{{le}}")])
    heatmap["targets"][0]["format"] = "heatmap"
    heatmap["options"] = {"calculate": False, "yAxis": {"unit": "s"}}
    yield heatmap
    sent = [(f"8 * {BYTE_RATE}{{{_RUN}}}", "{{direction}}")]
    yield _panel("Frames of all workers", "timeseries", 12, sent, {"unit": "bps", "min": 0})
    total = f'sum by (direction) ({metrics.BYTES}{{{_RUN},role="worker"}})'
    yield _panel(
        "Bytes since the run began",
        "timeseries",
        12,
        [(total, "{{direction}}")],
        {"unit": "bytes", "min": 0},
    )
    accuracy = [
        (f'{metrics.ACCURACY}{{{_RUN},data="test"}}', "test"),
        (f'avg({metrics.ACCURACY}{{{_RUN},data="train"}})', "training, mean of workers"),
    ]
    span = {"unit": "percentunit", "min": 0, "max": 1}
    yield _panel("Accuracy", "timeseries", 12, accuracy, span)
    queue = f'{metrics.BACKLOG}{{{_RUN},link="$link"}}'
    yield _panel(
        "Queue of the link $link",
        "timeseries",
        12,
        [(queue, "{{direction}}")],
        {"unit": "bytes", "min": 0},
    )
    checks = [(f"{metrics.CHECK}{{{_RUN}}}", "{{check}}")]
    yield _panel("Checks so far", "state-timeline", 12, checks, states)
    host = [(waiting, "processes waiting"), (f"{metrics.PRESSURE}{{{_RUN}}}", "share of time")]
    yield _panel("This machine's processors", "timeseries", 12, host, {"min": 0})
    changes = f'sum by (direction) ({metrics.LINK_CHANGES}{{{_RUN},link="$link"}})'
    yield _panel("Changes of the link $link", "timeseries", 12, [(changes, "{{direction}}")])


def _panel(
    title: str,
    kind: str,
    wide: int,
    queries: list[tuple[str, str]],
    defaults: Document | None = None,
) -> Document:
    source = {"type": "prometheus", "uid": SOURCE_UID}
    return {
        "title": title,
        "type": kind,
        "datasource": source,
        "gridPos": {"w": wide, "h": 4 if kind == "stat" else 8},
        "fieldConfig": {"defaults": defaults or {}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expr} | _legend(legend)
            for index, (expr, legend) in enumerate(queries)
        ],
    }


def _legend(legend: str) -> Document:
    return {"legendFormat": legend} if legend else {}


_ANNOTATIONS = {
    "Outages, delay lines and nodes": ('event!="rate"', "red"),
    "Rates of links": ('event="rate"', "blue"),
}
"""Selectors and colours of annotations, by title."""


def dashboard(observed: ObservedRun) -> Document:
    """Return Grafana's dashboard, with the run and its link preselected."""
    source = {"type": "prometheus", "uid": SOURCE_UID}
    panels, left, top, row = [], 0, 0, 0
    for number, panel in zip(count(1), _panels(len(observed.nodes))):
        place = panel["gridPos"]
        if left + place["w"] > 24:
            left, top, row = 0, top + row, 0
        panels.append({"id": number, **panel, "gridPos": {"x": left, "y": top, **place}})
        left, row = left + place["w"], max(row, place["h"])
    return {
        "uid": DASHBOARD_UID,
        "title": "Narrows: a run",
        "schemaVersion": 37,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-5m", "to": "now"},
        "templating": {
            "list": [
                _variable("run", f"label_values({metrics.BUILD}, run)", observed.run),
                _variable(
                    "link", f"label_values({metrics.LINK_RATE}{{{_RUN}}}, node)", observed.link
                ),
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": title,
                    "enable": True,
                    "iconColor": colour,
                    "datasource": source,
                    "expr": f"1000 * {metrics.EVENT}{{{_RUN},{selector}}}",
                    "useValueForTime": True,
                    "titleFormat": "{{event}}",
                    "textFormat": "{{on}}",
                }
                for title, (selector, colour) in _ANNOTATIONS.items()
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str, value: str) -> Document:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": SOURCE_UID},
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "current": {"selected": True, "text": value, "value": value},
    }


def queries(document: Document) -> list[str]:
    """Return every query of a dashboard, of panels and annotations, its variables filled in."""
    expressions = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    expressions += [annotation["expr"] for annotation in document["annotations"]["list"]]
    values = {entry["name"]: entry["current"]["value"] for entry in document["templating"]["list"]}
    return [_filled(expression, values) for expression in expressions]


def _filled(expression: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    return expression


def write(folder: Path, observed: ObservedRun, dashboards: Path | None = None) -> None:
    """Write all files into ``folder``, which may be there. ``dashboards``: where Grafana finds
    them, if not there. Raises OSError."""
    provisioning = folder / "grafana/provisioning"
    source = {
        "name": "Narrows",
        "uid": SOURCE_UID,
        "type": "prometheus",
        "access": "proxy",
        "url": observed.prometheus,
        "isDefault": True,
        "editable": False,
        "jsonData": {"timeInterval": f"{interval_s(len(observed.nodes))}s"},
    }
    provider = {
        "name": "Narrows",
        "type": "file",
        "updateIntervalSeconds": 10,
        "options": {"path": str(dashboards or (folder / DASHBOARD).parent.absolute())},
    }
    texts = {
        folder / "prometheus.yml": to_yaml(prometheus_config(observed)),
        folder / "rules.yml": to_yaml(rules(len(observed.nodes))),
        folder / "targets.json": to_json(targets(observed)),
        provisioning / "datasources/narrows.yaml": to_yaml(
            {"apiVersion": 1, "datasources": [source]}
        ),
        provisioning / "dashboards/narrows.yaml": to_yaml(
            {"apiVersion": 1, "providers": [provider]}
        ),
        folder / DASHBOARD: to_json(dashboard(observed)),
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def to_json(document: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(document, indent=2) + "\n"


def to_yaml(document: Document) -> str:
    """Return the text of a YAML file."""
    from ruamel.yaml import YAML

    yaml, stream = YAML(), io.StringIO()
    yaml.width = 200
    yaml.dump(document, stream)
    return stream.getvalue()
