"""Model of the network from observed buckets: the α–β model (seconds = α·pieces + β·amount, by
least squares), bytes that a density makes, and what communication and compression take.

How many bytes a density makes, as controllers reckon before they choose: near to the wire format,
and smooth.

    up(k)   = scale · ( 40 + min(4n, 4kn + min(kn·(2 + log₂ 1/k), n) / 8) )
    down(k) = min(dense, ratio · up(k))

40 bytes are a payload's header and its length in a message. Elements take 4 bytes and their index,
by Elias-Fano or as a bitmap. ``scale`` and ``ratio`` are measured: what a value coding saves, and
how much longer the union of all workers' elements is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from math import fsum, inf, isfinite, log2
from statistics import median
from typing import Any

from testbed.control.base import Observation
from testbed.errors import ExperimentError
from testbed.registry import Carried

Point = tuple[float, float, float]
"""Pieces, amount, seconds."""
APART = 1.5
"""Amounts for each piece that differ by less are one size, which tells nothing of α."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Both at least 0. Amounts are bytes or elements."""

    start_s: float = 0.0
    """α: of every piece."""
    per_s: float = 0.0
    """β: of every unit of the amount."""

    def seconds(self, amount: float, pieces: float = 1.0) -> float:
        """Return the seconds that ``amount`` takes in so many ``pieces``."""
        return self.start_s * pieces + self.per_s * amount


def fitted(points: Iterable[Point], before: AlphaBeta) -> AlphaBeta:
    """Least squares through ``points``. Where all are of about one size, or small ones took longer,
    α stays what it was (but takes at most all of the time), and β is what that leaves; ``before``
    where there are no points."""
    known = [point for point in points if point[0] > 0 and point[1] > 0]
    if not known:
        return before
    sizes = [amount / pieces for pieces, amount, _ in known]
    if max(sizes) < APART * min(sizes):
        return _with_start(known, before.start_s)
    start_s, per_s = _solved(known)
    if per_s <= 0:
        return _with_start(known, before.start_s)
    return AlphaBeta(start_s, per_s) if start_s >= 0 else AlphaBeta(0.0, _slope(known, 0.0))


def _with_start(points: Sequence[Point], start_s: float) -> AlphaBeta:
    start_s = min(start_s, *(seconds / pieces for pieces, _, seconds in points))
    return AlphaBeta(start_s, max(0.0, _slope(points, start_s)))


def _slope(points: Sequence[Point], start_s: float) -> float:
    """β of the least squares with a given α."""
    left = fsum(amount * (seconds - start_s * pieces) for pieces, amount, seconds in points)
    return left / fsum(amount * amount for _, amount, _ in points)


def _solved(points: Sequence[Point]) -> tuple[float, float]:
    """α and β of the normal equations, amounts taken by their mean so that squares are alike."""
    unit = fsum(amount for _, amount, _ in points) / len(points)
    pp = fsum(p * p for p, _, _ in points)
    px = fsum(p * x / unit for p, x, _ in points)
    xx = fsum((x / unit) ** 2 for _, x, _ in points)
    ps = fsum(p * s for p, _, s in points)
    xs = fsum(x / unit * s for _, x, s in points)
    determinant = pp * xx - px * px
    if determinant <= 1e-12 * pp * xx:
        return 0.0, 0.0
    return (ps * xx - xs * px) / determinant, (pp * xs - px * ps) / determinant / unit


OVERHEAD_BYTES, VALUE_BYTES = 40.0, 4.0


def payload(elements: float, density: float) -> float:
    """Bytes of ``density`` in (0, 1] of ``elements`` float32 values, at least one of them if there
    are any."""
    if not elements:
        return OVERHEAD_BYTES
    count = max(1.0, density * elements)
    index_bits = min(count * (2 + log2(elements / count)), elements)
    sparse = VALUE_BYTES * count + index_bits / 8
    return OVERHEAD_BYTES + min(VALUE_BYTES * elements, sparse)


@dataclass(frozen=True, slots=True)
class DensitySizes:
    """Bytes by elements and density."""

    scale: float = 1.0
    """Bytes up that were counted, by those that ``payload`` says."""
    ratio: float = 1.0
    """Bytes down by bytes up, of what was compressed."""

    def up(self, elements: float, density: float) -> float:
        """Return the bytes of a worker's message."""
        return self.scale * payload(elements, density)

    def down(self, elements: float, density: float) -> float:
        """Return the bytes of the server's reply."""
        dense = payload(elements, 1.0)
        return dense if density == 1.0 else min(dense, self.ratio * self.up(elements, density))

    def both(self, elements: float, density: float) -> float:
        """Return the bytes of both directions together."""
        return self.up(elements, density) + self.down(elements, density)

    def fuller(self, elements: float, density: float) -> float:
        """Return the bytes of the direction that has more.

        They are the cost of buckets that come back while others leave.
        """
        return max(self.up(elements, density), self.down(elements, density))


_FIELDS = (
    *("bucket", "elements", "sent", "bytes_up", "bytes_down"),
    *("start_s", "left_s", "compress_s", "delay_s", "send_s"),
)


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """A bucket of some parameters: what ``Observation.buckets`` says of all of them together."""

    names: tuple[str, ...]
    elements: float
    sent: float
    left_s: float
    compress_s: float
    delay_s: float
    up: float
    """Bytes."""
    down: float
    expected: float
    """Bytes up that ``sizes`` reckons with for so many elements of float32."""
    start_s: float
    """When its first byte was handed over: against others of its step."""

    @property
    def sparse(self) -> bool:
        """Return whether something was left out."""
        return self.sent < self.elements

    @classmethod
    def of(cls, names: tuple[str, ...], parts: list[Mapping[str, float]]) -> PlannedMessage:
        """Elements and times of compression are added up; everything else is the bucket's."""
        first = parts[0]
        summed = ("elements", "sent", "compress_s")
        elements, sent, compress_s = (sum(part[key] for part in parts) for key in summed)
        left_s, delay_s, start_s = first["left_s"], first["delay_s"], first["start_s"]
        up, down, expected = first["bytes_up"], first["bytes_down"], sum(map(_expected, parts))
        return cls(names, elements, sent, left_s, compress_s, delay_s, up, down, expected, start_s)


def messages(controller: str, observed: Observation) -> list[PlannedMessage]:
    """Return the messages of a step, those that were ready first before others.

    Raises ExperimentError where buckets were not watched, or are not finite.
    """
    if not observed.buckets:
        raise ExperimentError(
            f"controller {controller!r}: step {observed.step} has no `buckets`: how each travelled "
            "was not watched"
        )
    shared: dict[float, list[str]] = defaultdict(list)
    for name, part in observed.buckets.items():
        _check(controller, observed.step, name, part)
        shared[part["bucket"]].append(name)
    return _as_ready(
        PlannedMessage.of(tuple(names), [observed.buckets[name] for name in names])
        for names in shared.values()
    )


def usual(steps: Iterable[Iterable[PlannedMessage]]) -> list[PlannedMessage]:
    """Return the medians of every bucket's values in ``steps``, what was ready first before
    others."""
    same: dict[tuple[str, ...], list[PlannedMessage]] = defaultdict(list)
    for step in steps:
        for message in step:
            same[message.names].append(message)
    return _as_ready(
        PlannedMessage(names, *map(median, zip(*map(_numbers, alike), strict=True)))
        for names, alike in same.items()
    )


def _as_ready(messages: Iterable[PlannedMessage]) -> list[PlannedMessage]:
    return sorted(messages, key=lambda message: -message.left_s)


def to_json(step: Iterable[PlannedMessage]) -> list[Any]:
    """``from_json`` reads it back."""
    return [[list(message.names), *_numbers(message)] for message in step]


def from_json(step: Iterable[Any]) -> list[PlannedMessage]:
    """Read the messages that ``to_json`` made."""
    return [PlannedMessage(tuple(names), *numbers) for names, *numbers in step]


def _expected(part: Mapping[str, float]) -> float:
    elements, sent = part["elements"], part["sent"]
    return payload(elements, sent / elements) if sent else 0.0


def _numbers(message: PlannedMessage) -> tuple[float, ...]:
    return astuple(message)[1:]


def _check(controller: str, step: int, name: str, part: Mapping[str, float]) -> None:
    missing = [key for key in _FIELDS if key not in part]
    if missing:
        raise ExperimentError(
            f"controller {controller!r}: step {step}: {name!r} has no `{missing[0]}`: it was "
            "recorded by an older version; run it again"
        )
    wrong = [key for key in _FIELDS if not (isfinite(part[key]) and part[key] >= 0)]
    if wrong:
        raise ExperimentError(
            f"controller {controller!r}: step {step}: `{wrong[0]}` of {name!r} is "
            f"{part[wrong[0]]}; it must be finite and not negative"
        )


WINDOW = 20
"""Steps since the last decision that are looked at."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """At a decision. Seconds of model time."""

    messages: list[PlannedMessage]
    """The usual ones, what was ready first before others."""
    transfer: AlphaBeta
    """Cost of a bucket: α, and β by byte of both directions."""
    packing: AlphaBeta
    """Cost of compression: for every parameter, and by element."""
    sizes: DensitySizes
    computed_s: float
    """Seconds of a step that were not beside its communication."""

    @property
    def names(self) -> list[str]:
        """All that is compressed by itself."""
        return [name for message in self.messages for name in message.names]

    @property
    def hides(self) -> bool:
        """Return whether computation was left when something was ready."""
        return any(message.left_s for message in self.messages)

    def longest_s(self, backward: float) -> float:
        """T: what is left of the computation when the first bucket is ready; at least the share
        ``backward`` of what is not beside communication, so that it is no less where nothing
        overlaps, or little."""
        return max(backward * self.computed_s, *(message.left_s for message in self.messages))

    def bytes_in(self, seconds: float) -> float:
        """Bytes of one way, or of one bucket's both, that go in ``seconds``."""
        left_s = max(0.0, seconds - self.transfer.start_s)
        return left_s / self.transfer.per_s if self.transfer.per_s else inf


class CommunicationCostModel(Carried):
    """Learns from steps; every decision begins a new window, as messages then have other sizes."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._steps: deque[list[PlannedMessage]] = deque(maxlen=WINDOW)
        self._spans: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """Communication and all of a step, in seconds."""
        self._transfer = self._packing = AlphaBeta()

    def take(self, observed: Observation) -> None:
        """Take in a step. Raises ExperimentError where ``buckets`` are missing."""
        step_s = observed.delay_s if observed.step_s is None else observed.step_s
        self._steps.append(messages(self._controller, observed))
        self._spans.append((observed.delay_s, step_s))

    def known(self) -> CostEstimate:
        """Estimate the costs from the window, which ends with it."""
        typical = usual(self._steps)
        sparse = [message for message in typical if message.sparse]
        self._packing = fitted(
            [(len(m.names), m.elements, m.compress_s) for m in sparse], self._packing
        )
        alone = [(1.0, m.up + m.down, m.delay_s) for m in unhindered(typical)]
        self._transfer = fitted(alone, self._transfer)
        if len(typical) > 1:
            self._transfer = AlphaBeta(
                self._transfer.start_s, min(self._transfer.per_s, self._span_by_byte(typical))
            )
        computed_s = median(max(0.0, step_s - delay_s) for delay_s, step_s in self._spans)
        sizes = _sizes(typical, sparse)
        self._steps.clear()
        self._spans.clear()
        return CostEstimate(typical, self._transfer, self._packing, sizes, computed_s)

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "steps": [to_json(step) for step in self._steps],
            "spans": [list(span) for span in self._spans],
            "way": asdict(self._transfer),
            "packing": asdict(self._packing),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""
        self._steps = deque(map(from_json, state["steps"]), maxlen=WINDOW)
        self._spans = deque(((d, s) for d, s in state["spans"]), maxlen=WINDOW)
        self._transfer, self._packing = AlphaBeta(**state["way"]), AlphaBeta(**state["packing"])

    def _span_by_byte(self, typical: list[PlannedMessage]) -> float:
        """Seconds that a byte takes at most: all of the fuller way's went while the step
        communicated."""
        fuller = max(fsum(m.up for m in typical), fsum(m.down for m in typical))
        return median(delay_s for delay_s, _ in self._spans) / fuller if fuller else inf


def unhindered(typical: list[PlannedMessage]) -> list[PlannedMessage]:
    """Those that started when all that had before them had come back: the others' delays are in
    part those of what they waited for. The first to start is always one."""
    alone, back_s = list[PlannedMessage](), -inf
    for message in sorted(typical, key=lambda message: message.start_s):
        if message.start_s >= back_s:
            alone.append(message)
        back_s = max(back_s, message.start_s + message.delay_s)
    return alone


def _sizes(typical: list[PlannedMessage], sparse: list[PlannedMessage]) -> DensitySizes:
    """Return the sizes that fit the bytes counted to the bytes expected."""
    up, expected = fsum(m.up for m in typical), fsum(m.expected for m in typical)
    sparse_up, sparse_down = fsum(m.up for m in sparse), fsum(m.down for m in sparse)
    return DensitySizes(
        scale=up / expected if up and expected else 1.0,
        ratio=sparse_down / sparse_up if sparse_up and sparse_down else 1.0,
    )
