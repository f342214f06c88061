"""Prometheus endpoints of a node and of the session, fed by the records; and the names of all
metrics.

Other people's queries rest on the names: they do not change. The page
``docs/reference/metrics.md`` is generated from this table (``python tools/metrics_page.py``). Base
units, ``_total`` on counters, bytes even for rates. Every metric bears the labels ``LABELS``.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

import testbed
from testbed.errors import MachineError
from testbed.records.events import PHASES, phase_s

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
    Metric(
        BYTES,
        "counter",
        "Frame bytes, headers included, as seen from workers.",
        {"direction": f"{_WAY['direction']}; asynchronous servers have no `down`"},
    ),
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


def metrics_of(source: Source) -> list[Metric]:
    """Return the metrics that a node's or the session's exporter has."""
    return [metric for metric in METRICS if metric.source == source]


MOST_SCRAPES = 16
"""At a time."""


class _Handler(WSGIRequestHandler):
    """Whoever connects and says nothing for some seconds is not waited for."""

    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
        """Say nothing."""


class BoundedThreads(ThreadingMixIn):
    """A server's thread for every connection, ``most`` at most: anybody may connect, and whoever
    comes beside them is sent away."""

    daemon_threads = True
    most = MOST_SCRAPES

    def __init__(self, *given: Any) -> None:
        self._places = threading.BoundedSemaphore(self.most)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer, where there is room."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[attr-defined]
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # there can be no more threads
            self._places.release()
            self.shutdown_request(request)  # type: ignore[attr-defined]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes before the end of an answer is no error of ours."""


class _Server(BoundedThreads, WSGIServer):
    """Answers scrapes."""


class _MetricSet:
    """Metrics of one exporter, of one run at a time, in a registry of its own.

    ``labels``: any of ``LABELS``, the rest are empty until ``begin``.
    """

    source: Source

    def __init__(
        self, labels: Mapping[str, str], registry: CollectorRegistry | None = None
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._fixed = dict(labels)
        self._labels = self._complete({})
        self._metrics = {row.name: self._made(row) for row in metrics_of(self.source)}
        self.begin({})

    def begin(self, labels: Mapping[str, str]) -> None:
        """A new run: everything starts from nothing, under ``labels``."""
        for metric in self._metrics.values():
            metric.clear()
        self._labels = self._complete(labels)

    def serve(
        self,
        address: str,
        port: int,
        where: AbstractContextManager[None] | None = None,
    ) -> Callable[[], None]:
        """Answer scrapes from a thread; returns what ends that. Raises MachineError if taken.

        A node serves its address on the control network, at ``topology.METRICS_PORT``. ``where``:
        the namespace whose address it is, entered while the socket is made.
        """
        try:
            with where or nullcontext():
                server = make_server(
                    address, port, make_wsgi_app(self.registry), _Server, handler_class=_Handler
                )
        except OSError as error:
            raise MachineError(
                f"the metrics of this node cannot be served at {address}:{port} ({error.strerror})",
                fix="End what listens there",
            ) from error
        thread = threading.Thread(target=server.serve_forever, name="exporter", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    def _of(self, name: str, **labels: str) -> Any:
        """Return a metric's child with this run's labels and its own."""
        return self._metrics[name].labels(**self._labels, **labels)

    def _complete(self, labels: Mapping[str, str]) -> dict[str, str]:
        given = {**self._fixed, **labels}
        if unknown := set(given) - set(LABELS):
            known = ", ".join(LABELS)
            raise ValueError(f"unknown labels {sorted(unknown)}; there are {known}")
        return {name: given.get(name, "") for name in LABELS}

    def _made(self, row: Metric) -> Any:
        names = (*LABELS, *row.labels)
        if row.kind == "histogram":
            buckets = BUCKETS
            return Histogram(row.name, row.text, names, registry=self.registry, buckets=buckets)
        kind: type[Counter] | type[Gauge] = Counter if row.kind == "counter" else Gauge
        return kind(row.name, row.text, names, registry=self.registry)


class Exporter(_MetricSet):
    """Metrics of one node."""

    source = "node"

    def begin(self, labels: Mapping[str, str]) -> None:
        """See ``_MetricSet``."""
        super().begin(labels)
        versions = {"version": testbed.__version__, "python": platform.python_version()}
        self._of(BUILD, **versions).set(1)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take in a recorded event of this node; kinds without a metric are passed over."""
        if event.get("kind") == "step":
            self._step(event)
        elif event.get("kind") == "round":
            self._of(STEPS).inc()
            self._count("up", sum(message["bytes"] for message in event["messages"]))
            self._count("down", event["bytes_down"])
        elif event.get("kind") == "gradient":
            self._of(STEPS).inc()
            self._count("up", event["bytes"])
        elif event.get("kind") == "evaluation":
            self._of(ACCURACY, data="test").set(event["accuracy"])

    def link(self, sample: Mapping[str, Any]) -> None:
        """Take in a ``LinkSample`` of this node's own link; other link records are passed over."""
        if sample.get("kind") != "sample" or sample["to_s"] <= sample["from_s"]:
            return
        for source in ("asked", "delivered"):
            rate = sample[f"{source}_bits"] / 8 / (sample["to_s"] - sample["from_s"])
            own = {"direction": sample["direction"], "source": source}
            self._of(LINK_RATE, **own).set(rate)

    def _step(self, step: Mapping[str, Any]) -> None:
        for phase in PHASES:
            self._of(PHASE, phase=phase).observe(phase_s(step, phase))
        self._of(DELAY).observe(step["delay_s"])
        self._of(STEPS).inc()
        self._count("up", step["bytes_up"])
        self._count("down", step["bytes_down"])
        self._of(DENSITY).set(step["density"])
        self._of(ACCURACY, data="train").set(step["accuracy"])

    def _count(self, direction: str, amount: float) -> None:
        self._of(BYTES, direction=direction).inc(amount)


class SessionExporter(_MetricSet):
    """Metrics of what no node knows: the links' records, the host, and the verdict so far."""

    source = "session"

    def begin(
        self,
        labels: Mapping[str, str],
        initial: Mapping[str, tuple[float, Mapping[str, Any]]] | None = None,
    ) -> None:
        """See ``_MetricSet``. ``initial``: rate (bit/s) and impairments of link directions at t0,
        as far as they are known."""
        super().begin({**labels, "role": "session"})
        initial = initial or {}
        self._rates: dict[str, float] = {end: rate for end, (rate, _) in initial.items()}
        self._lines: dict[str, Any] = {end: line for end, (_, line) in initial.items()}
        self._of(WAITING).set_function(waiting_processes)

    def judged(self, states: Mapping[str, str]) -> None:
        """Take in the states of checks so far, keyed by measure; see ``STATES``."""
        for check, state in states.items():
            self._of(CHECK, check=check).set(STATES[state])
        worst = max((STATES[state] for state in states.values()), default=0)
        self._of(VERDICT).set(worst)

    def record(self, record: Mapping[str, Any], t0_unix_s: float) -> None:
        """Take in a record of links, nodes or the host. ``t0_unix_s``: t0 as Unix time."""
        kind = record.get("kind")
        if kind == "host" and record["pressure"] is not None:
            self._of(PRESSURE).set(record["pressure"])
        elif kind == "node":
            self._event(record["action"], record["node"], t0_unix_s + record["applied_s"])
        elif kind == "sample":
            own = {"link": record["link"], "direction": record["direction"]}
            self._of(BACKLOG, **own).set(record["backlog_bytes"])
        elif kind == "change":
            self._change(record, t0_unix_s + record["applied_s"])

    def _change(self, change: Mapping[str, Any], unix_s: float) -> None:
        own = {"link": change["link"], "direction": change["direction"]}
        self._of(LINK_CHANGES, **own).inc()
        end, rate, line = " ".join(own.values()), change["rate_bits"], change["impairments"]
        if rate == 0 and self._rates.get(end) != 0:
            self._event("outage", end, unix_s)
        elif rate and self._rates.get(end) == 0:
            self._event("service", end, unix_s)
        elif rate != self._rates.get(end):
            self._event("rate", end, unix_s)
        if line is not None and end in self._lines and line != self._lines[end]:
            self._event("line", end, unix_s)
        self._rates[end], self._lines[end] = rate, line

    def _event(self, event: str, subject: str, unix_s: float) -> None:
        self._of(EVENT, event=event, on=subject).set(unix_s)


def waiting_processes() -> int:
    """Return how many processes of this machine could run and have no processor."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("procs_running "):
            return max(0, int(line.split()[1]) - (os.cpu_count() or 1))
    return 0
