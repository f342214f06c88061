"""Files for Prometheus and Grafana beside a run: scrape targets, rules, data source, dashboard.

They are made from those in ``compose/observe/``, in which words between ``@`` stand for what
depends on the run. Queries are plain PromQL; ``$run`` and ``$link`` are the dashboard's variables.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from testbed.host.paths import shipped
from testbed.user_files import PinnedFolder

Document = dict[str, Any]

SOURCE_UID = "narrows-prometheus"
"""Identity of the data source in every dashboard of ours; it does not change."""
DASHBOARD = Path("grafana/dashboards/narrows.json")
NODES_AT_ONCE = 16
"""Nodes that are scraped within one second; with more of them each is scraped less often."""


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


def _template(name: str, nodes: int, **words: str) -> str:
    """Return a file of ``compose/observe/`` for a run of so many nodes.

    Rates look back at four scrapes at least, means and quantiles of delays at twelve.
    """
    every = interval_s(nodes)
    windows = {"window": f"{max(10, 4 * every)}s", "long_window": f"{max(30, 12 * every)}s"}
    text = shipped("compose", "observe", name).read_text(encoding="utf-8")
    for word, meaning in {"interval": f"{every}s", **windows, **words}.items():
        text = text.replace(f"@{word}@", meaning)
    return text


def dashboard(observed: ObservedRun) -> Document:
    """Return Grafana's dashboard, with the run and its link preselected."""
    document: Document = json.loads(_template("dashboard.json", len(observed.nodes)))
    values = (observed.run, observed.link)
    for variable, value in zip(document["templating"]["list"], values, strict=True):
        variable["current"] = {"selected": True, "text": value, "value": value}
    return document


def prometheus_files(observed: ObservedRun) -> dict[str, str]:
    """Return the texts of Prometheus's own files, keyed by name."""
    nodes = len(observed.nodes)
    return {
        "prometheus.yml": _template("prometheus.yml", nodes, session=observed.session),
        "rules.yml": _template("rules.yml", nodes),
        "targets.json": to_json([{"targets": [*observed.nodes.values()], "labels": {}}]),
    }


def write(folder: PinnedFolder, path: Path, observed: ObservedRun) -> None:
    """Write all files into ``folder``, which Grafana finds at ``path``. Raises OSError."""
    nodes, provisioning = len(observed.nodes), "grafana/provisioning"
    source = {
        "name": "Narrows",
        "uid": SOURCE_UID,
        "type": "prometheus",
        "access": "proxy",
        "url": observed.prometheus,
        "isDefault": True,
        "editable": False,
        "jsonData": {"timeInterval": f"{interval_s(nodes)}s"},
    }
    provider = {
        "name": "Narrows",
        "type": "file",
        "updateIntervalSeconds": 10,
        "options": {"path": str((path / DASHBOARD).parent.absolute())},
    }
    texts = {
        **prometheus_files(observed),
        f"{provisioning}/datasources/narrows.yaml": to_yaml(
            {"apiVersion": 1, "datasources": [source]}
        ),
        f"{provisioning}/dashboards/narrows.yaml": to_yaml(
            {"apiVersion": 1, "providers": [provider]}
        ),
        str(DASHBOARD): to_json(dashboard(observed)),
    }
    for name, text in texts.items():
        *parents, last = Path(name).parts
        reduce(PinnedFolder.folder, parents, folder).write(last, text.encode())


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
