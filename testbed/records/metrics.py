"""Names of all metrics, on which other people's queries rest: they do not change. The page
``docs/reference/metrics.md`` is generated from this table (``python tools/metrics_page.py``).

Base units, ``_total`` on counters, bytes even for rates. Every metric bears the labels ``LABELS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from testbed.records.events import PHASES

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["node", "session"]

LABELS = {
    "run": "name of the run's directory",
    "scenario": "name of the scenario",
    "algorithm": "name of the algorithm",
    "role": "`worker`, `server`, `host` or `session`",
    "node": "name of the node; empty for the session",
}
"""Meanings of the labels of every metric. Bounded: an exporter holds one run at a time, and a node
has one name and role."""

BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0),
)
"""Upper bounds of all histograms in seconds: 1 ms to 100 s, three to a decade."""

STATES = {"valid": 0, "degraded": 1, "invalid": 2}
"""Values of gauges that hold a state of the verdict."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as it is exported. ``labels``: meanings of its own labels, keyed by name."""

    name: str
    kind: Kind
    text: str
    """Meaning in one sentence, also the help text that Prometheus shows."""
    labels: dict[str, str] = field(default_factory=dict)
    source: Source = "node"
    """Process that exports it: every node's, or the session's where a run is observed."""


_WAY = {"direction": "`up` away from a node, `down` to it"}
_END = {"link": "name of the link", **_WAY}

PHASE = "testbed_phase_seconds"
DELAY = "testbed_communication_delay_seconds"
BYTES = "testbed_frame_bytes_total"
STEPS = "testbed_steps_total"
DENSITY = "testbed_density_ratio"
ACCURACY = "testbed_accuracy_ratio"
LINK_RATE = "testbed_link_rate_bytes_per_second"
BUILD = "testbed_build_info"
VERDICT = "testbed_verdict_so_far"
CHECK = "testbed_check_state"
WAITING = "testbed_host_waiting_processes"
PRESSURE = "testbed_host_cpu_pressure_ratio"
BACKLOG = "testbed_link_backlog_bytes"
LINK_CHANGES = "testbed_link_changes_total"
EVENT = "testbed_event_timestamp_seconds"

EVENTS = ("rate", "line", "outage", "service", "pause", "resume", "kill", "restart")
"""Kinds of events: a link's rate, its delay line, its outage and the service after it; a node's."""

METRICS = (
    Metric(
        PHASE,
        "histogram",
        "Phases of a worker's steps.",
        {"phase": ", ".join(f"`{phase}`" for phase in PHASES)},
    ),
    Metric(
        DELAY,
        "histogram",
        "From a worker's sending to its holding the aggregate.",
    ),
    Metric(BYTES, "counter", "Frame bytes, headers included, as seen from workers.", _WAY),
    Metric(STEPS, "counter", "Steps finished."),
    Metric(DENSITY, "gauge", "Density requested for the latest step of a worker: k."),
    Metric(
        ACCURACY,
        "gauge",
        "Latest accuracy.",
        {"data": "`train`: a worker's mini-batch; `test`: the server's or first worker's replica"},
    ),
    Metric(
        LINK_RATE,
        "gauge",
        "Rate of the node's link.",
        {**_WAY, "source": "`asked` or `delivered`"},
    ),
    Metric(
        BUILD,
        "gauge",
        "Version of the testbed; always 1.",
        {"version": "of the testbed", "python": "version of Python"},
    ),
    Metric(
        VERDICT,
        "gauge",
        "Worst state of all checks so far: 0 valid, 1 degraded, 2 invalid.",
        source="session",
    ),
    Metric(
        CHECK,
        "gauge",
        "State of one check so far: 0 valid, 1 degraded, 2 invalid.",
        {"check": "name of the measure in the verdict"},
        "session",
    ),
    Metric(
        WAITING,
        "gauge",
        "Processes of this machine that wait for a processor, when scraped.",
        source="session",
    ),
    Metric(
        PRESSURE,
        "gauge",
        "Share of the latest 100 ms in which something waited for a processor.",
        source="session",
    ),
    Metric(BACKLOG, "gauge", "Largest queue of the latest sample of a link.", _END, "session"),
    Metric(LINK_CHANGES, "counter", "Changes of a link that were made.", _END, "session"),
    Metric(
        EVENT,
        "gauge",
        "Unix time of the latest event of a link or a node.",
        {
            "event": " ".join(f"`{event}`" for event in EVENTS),
            "on": "`LINK DIRECTION`, or the node's name",
        },
        "session",
    ),
)
"""All metrics, nodes' first."""


def of(source: Source) -> list[Metric]:
    """Return the metrics that a node's or the session's exporter has."""
    return [metric for metric in METRICS if metric.source == source]
