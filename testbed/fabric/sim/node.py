"""``testbed.node.Node`` on a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, TypeVar

from testbed.errors import MachineError
from testbed.fabric.sim.clock import Activity
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.queue import VirtualQueue
from testbed.group import Group
from testbed.scenario.shape import End

T = TypeVar("T")


class VirtualNode:
    """A role's whole world, simulated. ``records`` holds what it recorded, unless ``record`` takes it.

    ``seed`` is the run's. ``measured``: computation takes as long as it takes here; else none, beside its pace.
    """

    def __init__(
        self,
        endpoint: VirtualEndpoint,
        seed: int,
        record: Callable[[dict[str, object]], None] | None = None,
        *,
        measured: bool = False,
        recording: bool = True,
    ) -> None:
        self.name, self.endpoint = endpoint.name, endpoint
        self.rng = Random(f"{seed}/{self.name}")
        self.records: list[dict[str, object]] = []
        self.record = record or self.records.append
        self.recording = recording
        self._network, self._clock = endpoint.network, endpoint.network.clock
        self._measured = measured

    def now(self) -> float:
        """Seconds since t0."""
        return self._clock.now - self._network.t0_s

    def cpu(self) -> float:
        """Virtual time: what is not computation takes none."""
        return self.now()

    def sleep_until(self, time_s: float) -> None:
        """Let virtual time pass."""
        self._clock.sleep_until(time_s + self._network.t0_s)

    def compressed(self, pieces: int, elements: int) -> None:
        """Let pass what the scenario says of it."""
        costs = self._network.costs
        took_s = pieces * costs.compress_s + elements * costs.element_s
        self._clock.sleep_until(self._clock.now + took_s)

    def spawn(self, activity: Callable[[], None]) -> Activity:
        """Another activity on the same clock."""
        return self._clock.spawn(f"{self.name}'s activity", activity, self.name)

    def background(self, work: Callable[[], T]) -> T:
        """Nothing else happens meanwhile; the clock goes on afterwards, if the time is measured."""
        before_s = time.perf_counter()
        result = work()
        if self._measured:
            self._clock.sleep_until(self._clock.now + time.perf_counter() - before_s)
        return result

    def queue(self) -> VirtualQueue[T]:
        """A queue on the same clock."""
        return VirtualQueue(self._clock, f"{self.name}'s queue")

    def group(self, members: Sequence[int], patience_s: float, timeout_s: float) -> Group:
        """A library's sockets know nothing of virtual time."""
        del members, patience_s, timeout_s
        raise MachineError(
            "gloo needs a real network, and there is none in virtual time",
            fix="Take --fabric netns or docker, or the algorithm 'ring'",
        )

    def asked_rate(self, link: str, direction: Literal["up", "down"]) -> float | None:
        """Rate asked of any link's direction, bit/s."""
        board = self._network.board
        return float(board.asked_bits[board.number[End(link, direction)]])
