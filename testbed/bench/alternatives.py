"""Ways to make a link: ours through the agent, the usual ones through the ``tc`` program, and none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, Protocol

from testbed.bench.figures import Step, queue_bytes
from testbed.bench.lab import CONGESTION, OURS, PLAIN, Lab
from testbed.bench.observer import class_question
from testbed.bench.with_tc import TcHtb, TcNetem, TcTbf
from testbed.errors import ExperimentError
from testbed.links import htb
from testbed.links.client import LinkReport, LinkSettings
from testbed.links.plan import bundle_segments
from testbed.scenario.shape import End, LinkChange, Shape


class Alternative(Protocol):
    """Made for one measurement. Calls: install, start, stop, remove (always, and last)."""

    name: str
    node: str
    """Whose uplink it shapes."""

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Bring the link to its state at t0; returns the question that its counter answers."""

    def start(self, t0_ns: int) -> None:
        """Follow the history from ``t0_ns`` on."""

    def stop(self) -> dict[str, Any]:
        """The history is over; returns what it says of itself."""

    def remove(self) -> None:
        """Undo ``install``."""


class Ours:
    """The project's own links."""

    name, node = "narrows", OURS

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Through the agent, as a run does it."""
        self._lab, self._history, self._end = lab, history, End(OURS, "up")
        self._running = False
        cable = lab.places[OURS].cable
        lab.agent.prepare(
            {OURS: cable}, {self._end: self._shape(history[0][1])},
            LinkSettings(segments=segments([history]), congestion=CONGESTION),
        )  # fmt: skip
        return class_question(cable.nic.index, htb.CLASS, htb.ROOT_HANDLE)

    def start(self, t0_ns: int) -> None:
        """Hand the history to the agent."""
        changes = [LinkChange(at, self._end, self._shape(rate)) for at, rate in self._history[1:]]
        self._lab.agent.start(t0_ns, iter(changes))
        self._running = True

    def stop(self) -> dict[str, Any]:
        """The agent's report of this link."""
        self._running = False
        report: LinkReport = self._lab.agent.stop()
        (link,) = report.links
        if link.failure:
            raise ExperimentError(f"the link failed: {link.failure}")
        return {"lateness_ms": link.lateness_ms, "gso_max_segs": link.gso_max_segs}

    def remove(self) -> None:
        """Nothing but an unfinished replay: the next run takes the link over in place."""
        if self._running:
            self.stop()

    def _shape(self, rate_bits: int) -> Shape:
        return Shape(rate_bits, queue_bytes(self._history))


def segments(histories: Collection[Sequence[Step]]) -> int:
    """Frames per offload bundle, as runs choose it from their histories."""
    lengths = [
        later - earlier for history in histories for (earlier, _), (later, _) in pairwise(history)
    ]
    lowest = min((rate for history in histories for _, rate in history if rate), default=0)
    return bundle_segments(lowest, min(lengths, default=None))


class Unshaped:
    """The bare cable."""

    name, node = "unshaped", PLAIN

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:  # noqa: ARG002
        """Nothing to do, and nothing that counts."""
        return None

    def start(self, t0_ns: int) -> None:
        """Nothing to do."""

    def stop(self) -> dict[str, Any]:
        """It says nothing."""
        return {}

    def remove(self) -> None:
        """Nothing to do."""


def shapers(kinds: frozenset[str]) -> list[Alternative]:
    """Ours and every set-up with ``tc`` that a kernel with these kinds can do, ours first."""
    with_tc = [TcHtb(), TcHtb("tc-htb-1ms", 1e-3), TcTbf(), TcNetem()]
    return [Ours(), *(other for other in with_tc if not other.needs or other.needs in kinds)]


def absent(kinds: frozenset[str]) -> list[str]:
    """What was left out, in words."""
    if "netem" in kinds:
        return []
    return [f"{TcNetem.name}: this kernel has no netem"]
