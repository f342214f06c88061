"""What buckets tell of the way that they go: what bytes and compression take, and how long they may take unnoticed."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from math import fsum, inf
from statistics import median
from typing import Any

from testbed.control.base import Observation
from testbed.control.line import Line, fitted
from testbed.control.messages import Message, from_json, messages, to_json, usual
from testbed.control.sizes import Sizes

WINDOW = 20
"""Steps since the last decision that are looked at."""


@dataclass(frozen=True, slots=True)
class Known:
    """At a decision. Seconds of model time."""

    messages: list[Message]
    """The usual ones, what was ready first before others."""
    way: Line
    """Of a bucket: α, and β by byte of both ways."""
    packing: Line
    """Of compression: for every parameter, and by element."""
    sizes: Sizes
    computed_s: float
    """Of a step, what was not beside its communication."""

    @property
    def names(self) -> list[str]:
        """All that is compressed by itself."""
        return [name for message in self.messages for name in message.names]

    @property
    def hides(self) -> bool:
        """Whether computation was left when something was ready."""
        return any(message.left_s for message in self.messages)

    def longest_s(self, backward: float) -> float:
        """T: what is left of the computation when the first bucket is ready; at least the share ``backward`` of what is not
        beside communication, so that it is no less where nothing overlaps, or little."""
        return max(backward * self.computed_s, *(message.left_s for message in self.messages))

    def bytes_in(self, seconds: float) -> float:
        """Bytes of one way, or of one bucket's both, that go in ``seconds``."""
        left_s = max(0.0, seconds - self.way.start_s)
        return left_s / self.way.per_s if self.way.per_s else inf


class Way:
    """Learns from steps; every decision begins a new window, as messages have other sizes from then on."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._steps: deque[list[Message]] = deque(maxlen=WINDOW)
        self._spans: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """Communication and all of a step, in seconds."""
        self._way = self._packing = Line()

    def take(self, seen: Observation) -> list[Message]:
        """Take in a step, and say what it had. Raises ExperimentError where ``buckets`` are missing."""
        found = messages(self._controller, seen)
        step_s = seen.delay_s if seen.step_s is None else seen.step_s
        self._steps.append(found)
        self._spans.append((seen.delay_s, step_s))
        return found

    def known(self) -> Known:
        """What the window tells, which ends with it."""
        found = usual(self._steps)
        sparse = [message for message in found if message.sparse]
        self._packing = fitted(
            [(len(m.names), m.elements, m.compress_s) for m in sparse], self._packing
        )
        alone = [(1.0, m.up + m.down, m.delay_s) for m in unhindered(found)]
        self._way = fitted(alone, self._way)
        if len(found) > 1:
            self._way = Line(self._way.start_s, min(self._way.per_s, self._span_by_byte(found)))
        computed_s = median(max(0.0, step_s - delay_s) for delay_s, step_s in self._spans)
        sizes = _sizes(found, sparse)
        self._steps.clear()
        self._spans.clear()
        return Known(found, self._way, self._packing, sizes, computed_s)

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "steps": [to_json(step) for step in self._steps],
            "spans": [list(span) for span in self._spans],
            "way": asdict(self._way),
            "packing": asdict(self._packing),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._steps = deque(map(from_json, state["steps"]), maxlen=WINDOW)
        self._spans = deque(((d, s) for d, s in state["spans"]), maxlen=WINDOW)
        self._way, self._packing = Line(**state["way"]), Line(**state["packing"])

    def _span_by_byte(self, found: list[Message]) -> float:
        """Seconds that a byte takes at most: all of the fuller way's went while the step communicated."""
        fuller = max(fsum(m.up for m in found), fsum(m.down for m in found))
        return median(delay_s for delay_s, _ in self._spans) / fuller if fuller else inf


def unhindered(found: list[Message]) -> list[Message]:
    """Those that started when all that had before them had come back: the others' delays are in part those of what they
    waited for. The first to start is always one."""
    alone, back_s = list[Message](), -inf
    for message in sorted(found, key=lambda message: message.start_s):
        if message.start_s >= back_s:
            alone.append(message)
        back_s = max(back_s, message.start_s + message.delay_s)
    return alone


def _sizes(found: list[Message], sparse: list[Message]) -> Sizes:
    """What was counted, against what is reckoned with."""
    up, expected = fsum(m.up for m in found), fsum(m.expected for m in found)
    sparse_up, sparse_down = fsum(m.up for m in sparse), fsum(m.down for m in sparse)
    return Sizes(
        scale=up / expected if up and expected else 1.0,
        ratio=sparse_down / sparse_up if sparse_up and sparse_down else 1.0,
    )
