"""A node's Prometheus endpoint, fed by the events that are recorded, and the metrics' names, on
which other people's queries rest: they do not change.

Base units, ``_total`` on counters, bytes even for rates. Every metric bears the labels ``LABELS``.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

import testbed
from testbed.errors import MachineError
from testbed.records.events import PHASES, phase_s

LABELS = ("run", "scenario", "algorithm", "role", "node")
"""Bounded: an exporter holds one run at a time, and a node has one name and role."""

PHASE = "testbed_phase_seconds"
"""Histogram of a step's phases; label ``phase``."""

DELAY = "testbed_communication_delay_seconds"
"""Histogram: start of sending the compressed gradient to holding the aggregate."""

BYTES = "testbed_frame_bytes_total"
"""Frame bytes, headers included; label ``direction``: ``up`` away from a worker, ``down`` to it."""

STEPS = "testbed_steps_total"
"""Steps finished."""

DENSITY = "testbed_density_ratio"
"""Density requested for the latest step: k."""

ACCURACY = "testbed_accuracy_ratio"
"""Latest accuracy; label ``data``: ``train`` (a worker's batch) or ``test`` (server)."""

LINK_RATE = "testbed_link_rate_bytes_per_second"
"""Rate of the node's link; labels ``direction`` and ``source``: ``asked`` or ``delivered``."""

BUILD = "testbed_build_info"
"""Always 1; labels ``version`` and ``python``."""

BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0),
)
"""Upper bounds of all histograms in seconds: 1 ms to 100 s, three to a decade."""


MOST_SCRAPES = 16
"""At a time; whoever comes beside them is sent away."""


class _Handler(WSGIRequestHandler):
    """Whoever connects and says nothing for some seconds is not waited for."""

    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
        """Say nothing."""


class _Server(ThreadingWSGIServer):
    """A thread for every scrape, ``MOST_SCRAPES`` at most: anybody may connect."""

    def __init__(self, *given: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_SCRAPES)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer, where there is room."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # there can be no more threads
            self._places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes before the end of an answer is no error of ours."""


class Exporter:
    """Metrics of one node, of one run at a time, in a registry of its own.

    ``labels``: any of ``LABELS``, the rest are empty until ``begin``.
    """

    def __init__(
        self, labels: Mapping[str, str], registry: CollectorRegistry | None = None
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._fixed = dict(labels)
        self._labels = self._complete({})
        self._metrics: list[Any] = []
        histogram, counter, gauge = self._kind(Histogram), self._kind(Counter), self._kind(Gauge)
        self._phase = histogram(PHASE, "Phases of a step.", "phase")
        self._delay = histogram(DELAY, "Start of sending to holding the aggregate.")
        self._bytes = counter(BYTES, "Frame bytes by direction seen from a worker.", "direction")
        self._steps = counter(STEPS, "Steps finished.")
        self._density = gauge(DENSITY, "Density requested for the latest step.")
        self._accuracy = gauge(ACCURACY, "Latest accuracy.", "data")
        self._rate = gauge(LINK_RATE, "Rate of this node's link.", "direction", "source")
        self._build = gauge(BUILD, "Version of the testbed.", "version", "python")

        self.begin({})

    def begin(self, labels: Mapping[str, str]) -> None:
        """A new run: everything starts from nothing, under ``labels``."""
        for metric in self._metrics:
            metric.clear()
        self._labels = self._complete(labels)
        versions = {"version": testbed.__version__, "python": platform.python_version()}
        self._build.labels(**self._labels, **versions).set(1)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take in a recorded event of this node; kinds without a metric are passed over."""
        if event.get("kind") == "step":
            self._step(event)
        elif event.get("kind") == "round":
            self._steps.labels(**self._labels).inc()
            self._count("up", sum(message["bytes"] for message in event["messages"]))
            self._count("down", event["bytes_down"])
        elif event.get("kind") == "gradient":
            self._steps.labels(**self._labels).inc()
            self._count("up", event["bytes"])
        elif event.get("kind") == "evaluation":
            self._accuracy.labels(**self._labels, data="test").set(event["accuracy"])

    def link(self, sample: Mapping[str, Any]) -> None:
        """Take in a ``LinkSample`` of this node's own link; other link records are passed over."""
        if sample.get("kind") != "sample" or sample["to_s"] <= sample["from_s"]:
            return
        for source in ("asked", "delivered"):
            rate = sample[f"{source}_bits"] / 8 / (sample["to_s"] - sample["from_s"])
            labels = {**self._labels, "direction": sample["direction"], "source": source}
            self._rate.labels(**labels).set(rate)

    def serve(self, address: str, port: int) -> Callable[[], None]:
        """Answer scrapes from a thread; returns what ends that. Raises MachineError if taken.

        A node serves its address on the control network, at ``topology.METRICS_PORT``.
        """
        try:
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

    def _step(self, step: Mapping[str, Any]) -> None:
        for phase in PHASES:
            self._phase.labels(**self._labels, phase=phase).observe(phase_s(step, phase))
        self._delay.labels(**self._labels).observe(step["delay_s"])
        self._steps.labels(**self._labels).inc()
        self._count("up", step["bytes_up"])
        self._count("down", step["bytes_down"])
        self._density.labels(**self._labels).set(step["density"])
        self._accuracy.labels(**self._labels, data="train").set(step["accuracy"])

    def _count(self, direction: str, amount: float) -> None:
        self._bytes.labels(**self._labels, direction=direction).inc(amount)

    def _complete(self, labels: Mapping[str, str]) -> dict[str, str]:
        given = {**self._fixed, **labels}
        if unknown := set(given) - set(LABELS):
            raise ValueError(f"unknown labels {sorted(unknown)}; there are {', '.join(LABELS)}")
        return {name: given.get(name, "") for name in LABELS}

    def _kind(self, kind: type[Any]) -> Callable[..., Any]:
        """Makes metrics of ``kind`` here: ``(name, help, *labels)``."""
        options = {"buckets": BUCKETS} if kind is Histogram else {}

        def make(name: str, text: str, *labels: str) -> Any:
            metric = kind(name, text, (*LABELS, *labels), registry=self.registry, **options)
            self._metrics.append(metric)
            return metric

        return make
