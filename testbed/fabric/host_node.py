"""A ``Node`` on a real host: threads, the monotonic clock, sockets. Used by every fabric but
``sim``.

A host that stands in for several machines must not let one node's computation hold up another
node's messages: on real machines they have nothing to do with each other. So computation, and the
writing of records, give way to everything else. No privilege is needed to give way.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Generic, Literal, TypeVar

from testbed.errors import MachineError
from testbed.node import CollectiveGroup, Endpoint, GroupTraffic
from testbed.topology import GROUP_PORT


def give_way() -> None:
    """From now on this thread runs when no other wants to; it cannot be taken back."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


T = TypeVar("T")


class HostQueue(Generic[T]):
    """``testbed.node.Queue`` between threads."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        """Add ``item``."""
        self._items.put(item)

    def get(self, timeout: float | None = None) -> T:
        """Take the oldest item. Raises TimeoutError after ``timeout`` seconds."""
        try:
            return self._items.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"nothing came for {timeout} s") from None


class HostTask:
    """``testbed.node.NodeTask`` on a thread."""

    def __init__(self, activity: Callable[[], None]) -> None:
        self._activity, self._error = activity, list[BaseException]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for its end; raises what it raised."""
        self._thread.join()
        if self._error:
            raise self._error[0]

    def _run(self) -> None:
        try:
            self._activity()
        except BaseException as error:  # handed to whoever joins
            self._error.append(error)


class HostClock:
    """Seconds since t0, which is set when every node is ready; before, since it was made."""

    def __init__(self) -> None:
        self.t0_ns = time.monotonic_ns()

    def seconds(self, monotonic_ns: int) -> float:
        """An instant of the host's monotonic clock in the run's seconds."""
        return (monotonic_ns - self.t0_ns) / 1e9

    def now(self) -> float:
        """This instant."""
        return self.seconds(time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """All peers on it, by number. ``own``: this node's."""

    own: int
    names: Mapping[int, str]
    addresses: Mapping[int, str]


class HostNode:
    """``testbed.node.Node`` for one run. ``seed`` is the run's; each node draws from its own
    stream.

    Without ``network`` it can have no group.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        endpoint: Endpoint,
        clock: HostClock,
        record: Callable[[dict[str, object]], None],
        network: DataNetwork | None = None,
    ) -> None:
        self.name, self.endpoint = name, endpoint
        self.rng = Random(f"{seed}/{name}")
        self.rates_bits: dict[tuple[str, str], float] = {}
        """Asked of links that this node is told of, by name and direction."""
        self._clock, self._record = clock, record
        self._network = network
        self._group: CollectiveGroup | None = None
        self.recording = True
        self._recorded: Future[None] | None = None
        self._background = ThreadPoolExecutor(1, "background", initializer=give_way)

    def now(self) -> float:
        """Seconds since t0."""
        return self._clock.now()

    def cpu(self) -> float:
        """CPU seconds of this thread."""
        return time.thread_time()

    def sleep_until(self, time_s: float) -> None:
        """Sleep until ``time_s``."""
        while (left := time_s - self.now()) > 0:
            time.sleep(left)

    def compressed(self, pieces: int, elements: int) -> None:
        """It took the time that it took."""

    def spawn(self, activity: Callable[[], None]) -> HostTask:
        """Run ``activity`` in a thread."""
        return HostTask(activity)

    def background(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread that runs when no other wants to."""
        return self._background.submit(work).result()

    def queue(self) -> HostQueue[T]:
        """A queue between this node's threads."""
        return HostQueue()

    def group(self, members: Sequence[int], patience_s: float, timeout_s: float) -> CollectiveGroup:
        """Return a collective group that works by gloo, on the data network."""
        network = self._network
        if network is None:
            raise MachineError("this node knows of no data network")
        from testbed.fabric.gloo_group import GlooGroup, Meeting

        meeting = Meeting(
            members=[network.names[peer] for peer in members],
            own=list(members).index(network.own),
            own_address=network.addresses[network.own],
            address=network.addresses[members[0]],
            port=GROUP_PORT,
            patience_s=patience_s,
            timeout_s=timeout_s,
        )
        self._group = GlooGroup(meeting, self.now)
        return self._group

    def carried(self) -> GroupTraffic | None:
        """Return the traffic of the data interface since there is a group; None without a group."""
        return None if self._group is None else self._group.carried()

    def record(self, event: dict[str, object]) -> None:
        """Queue ``event`` for the background thread, which hands it on in order."""
        self._recorded = self._background.submit(self._hand_over, event, self._recorded)

    def close(self) -> None:
        """Hand over the last records and end the group. Raises what lost a record."""
        if self._group is not None:
            self._group.close()
        self._background.shutdown()
        if self._recorded is not None:
            self._recorded.result()

    def _hand_over(self, event: dict[str, object], before: Future[None] | None) -> None:
        """In the background thread, one after the other: an earlier loss is not forgotten."""
        if before is not None:
            before.result()
        self._record(event)

    def asked_rate(self, link: str, direction: Literal["up", "down"]) -> float | None:
        """Latest asked rate of a link's direction, bit/s."""
        return self.rates_bits.get((link, direction))
