"""Prometheus endpoints of a node and of the session, fed by the records. The names are in
``records.metrics``.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

import testbed
from testbed.errors import MachineError
from testbed.records import metrics
from testbed.records.events import PHASES, phase_s

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

    ``labels``: any of ``metrics.LABELS``, the rest are empty until ``begin``.
    """

    source: metrics.Source

    def __init__(
        self, labels: Mapping[str, str], registry: CollectorRegistry | None = None
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._fixed = dict(labels)
        self._labels = self._complete({})
        self._metrics = {row.name: self._made(row) for row in metrics.of(self.source)}
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
        if unknown := set(given) - set(metrics.LABELS):
            known = ", ".join(metrics.LABELS)
            raise ValueError(f"unknown labels {sorted(unknown)}; there are {known}")
        return {name: given.get(name, "") for name in metrics.LABELS}

    def _made(self, row: metrics.Metric) -> Any:
        names = (*metrics.LABELS, *row.labels)
        if row.kind == "histogram":
            buckets = metrics.BUCKETS
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
        self._of(metrics.BUILD, **versions).set(1)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take in a recorded event of this node; kinds without a metric are passed over."""
        if event.get("kind") == "step":
            self._step(event)
        elif event.get("kind") == "round":
            self._of(metrics.STEPS).inc()
            self._count("up", sum(message["bytes"] for message in event["messages"]))
            self._count("down", event["bytes_down"])
        elif event.get("kind") == "gradient":
            self._of(metrics.STEPS).inc()
            self._count("up", event["bytes"])
        elif event.get("kind") == "evaluation":
            self._of(metrics.ACCURACY, data="test").set(event["accuracy"])

    def link(self, sample: Mapping[str, Any]) -> None:
        """Take in a ``LinkSample`` of this node's own link; other link records are passed over."""
        if sample.get("kind") != "sample" or sample["to_s"] <= sample["from_s"]:
            return
        for source in ("asked", "delivered"):
            rate = sample[f"{source}_bits"] / 8 / (sample["to_s"] - sample["from_s"])
            own = {"direction": sample["direction"], "source": source}
            self._of(metrics.LINK_RATE, **own).set(rate)

    def _step(self, step: Mapping[str, Any]) -> None:
        for phase in PHASES:
            self._of(metrics.PHASE, phase=phase).observe(phase_s(step, phase))
        self._of(metrics.DELAY).observe(step["delay_s"])
        self._of(metrics.STEPS).inc()
        self._count("up", step["bytes_up"])
        self._count("down", step["bytes_down"])
        self._of(metrics.DENSITY).set(step["density"])
        self._of(metrics.ACCURACY, data="train").set(step["accuracy"])

    def _count(self, direction: str, amount: float) -> None:
        self._of(metrics.BYTES, direction=direction).inc(amount)


class SessionExporter(_MetricSet):
    """Metrics of what no node knows: the links' records, the host, and the verdict so far."""

    source = "session"

    def begin(self, labels: Mapping[str, str]) -> None:
        """See ``_MetricSet``. Nothing has happened to any link."""
        super().begin({**labels, "role": "session"})
        self._rates: dict[str, float] = {}
        self._lines: dict[str, Any] = {}
        self._of(metrics.WAITING).set_function(waiting_processes)

    def judged(self, states: Mapping[str, str]) -> None:
        """Take in the states of checks so far, keyed by measure; see ``metrics.STATES``."""
        for check, state in states.items():
            self._of(metrics.CHECK, check=check).set(metrics.STATES[state])
        worst = max((metrics.STATES[state] for state in states.values()), default=0)
        self._of(metrics.VERDICT).set(worst)

    def record(self, record: Mapping[str, Any], t0_unix_s: float) -> None:
        """Take in a record of links, nodes or the host. ``t0_unix_s``: t0 as Unix time."""
        kind = record.get("kind")
        if kind == "host" and record["pressure"] is not None:
            self._of(metrics.PRESSURE).set(record["pressure"])
        elif kind == "node":
            self._event(record["action"], record["node"], t0_unix_s + record["applied_s"])
        elif kind == "sample":
            own = {"link": record["link"], "direction": record["direction"]}
            self._of(metrics.BACKLOG, **own).set(record["backlog_bytes"])
        elif kind == "change":
            self._change(record, t0_unix_s + record["applied_s"])

    def _change(self, change: Mapping[str, Any], unix_s: float) -> None:
        own = {"link": change["link"], "direction": change["direction"]}
        self._of(metrics.LINK_CHANGES, **own).inc()
        end, rate, line = " ".join(own.values()), change["rate_bits"], change["impairments"]
        if rate == 0 and self._rates.get(end) != 0:
            self._event("outage", end, unix_s)
        elif rate and self._rates.get(end) == 0:
            self._event("service", end, unix_s)
        elif rate != self._rates.get(end):
            self._event("rate", end, unix_s)
        if end in self._lines and line != self._lines[end]:
            self._event("line", end, unix_s)
        self._rates[end], self._lines[end] = rate, line

    def _event(self, event: str, subject: str, unix_s: float) -> None:
        self._of(metrics.EVENT, event=event, on=subject).set(unix_s)


def waiting_processes() -> int:
    """Return how many processes of this machine could run and have no processor."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("procs_running "):
            return max(0, int(line.split()[1]) - (os.cpu_count() or 1))
    return 0
