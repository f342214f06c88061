"""Links by pyroute2's calls: ``IPRoute.tc`` for every change.

Its HTB plugin is ours, which leaves out the rate tables: that makes these messages shorter than those of pyroute2 alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

from pyroute2 import IPRoute

from testbed.bench.figures import Step, queue_bytes
from testbed.bench.lab import PLAIN, Lab
from testbed.bench.observer import class_question
from testbed.bench.with_tc import DEAD_BITS, due_rates
from testbed.errors import ExperimentError
from testbed.links.namespaces import inside
from testbed.scenario.shape import FRAME_BYTES

_ROOT, _CLASS, _LEAF = 0x10000, 0x10010, 0x100000


class IPRouteHtb:
    """One HTB class of 1 ms' burst, with a queue in packets: pyroute2 has none in bytes."""

    name, node = "pyroute2-htb", PLAIN

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Root, class, leaf."""
        self._netns, self._index = lab.netns(PLAIN), lab.places[PLAIN].nic.index
        self._history = history
        self._steps: Thread | None = None
        self._failure: Exception | None = None
        with self._route() as route:
            route.tc("add", "htb", self._index, _ROOT, default=_CLASS & 0xFFFF)
            self._tell(route, "add-class", history[0][1])
            packets = max(20, queue_bytes(history) // FRAME_BYTES)
            route.tc("add", "pfifo", self._index, _LEAF, parent=_CLASS, limit=packets)
        return class_question(self._index, _CLASS, _ROOT)

    def start(self, t0_ns: int) -> None:
        """Begin to step."""
        self._t0_ns, self._ended = t0_ns, False
        self._steps = Thread(target=self._step, name="pyroute2", daemon=True)
        self._steps.start()

    def stop(self) -> dict[str, Any]:
        """End stepping; raises ExperimentError where the kernel refused something."""
        self._ended = True
        if self._steps is not None:
            self._steps.join()
        if self._failure is not None:
            raise ExperimentError(f"a change was refused: {self._failure}")
        return {}

    def remove(self) -> None:
        """Take the discipline away."""
        self._ended = True
        with self._route() as route:
            route.tc("del", index=self._index, handle=_ROOT, root=True)

    @contextmanager
    def _route(self) -> Iterator[IPRoute]:
        """Opens its socket when it is first used, in whatever namespace the thread is then."""
        with inside(self._netns), IPRoute() as route:
            yield route

    def _step(self) -> None:
        try:
            with self._route() as route:
                for rate in due_rates(self._history, self._t0_ns, lambda: self._ended):
                    self._tell(route, "change-class", rate)
        except Exception as error:  # for whoever stops it
            self._failure = error

    def _tell(self, route: IPRoute, command: str, rate_bits: int) -> None:
        rate = (rate_bits or DEAD_BITS) // 8
        burst = max(1600, rate // 1000)
        options = {
            "parent": _ROOT,
            "rate": rate,
            "burst": burst,
            "cburst": burst,
            "quantum": 60_000,
        }
        route.tc(command, "htb", self._index, _CLASS, **options)
