"""AdaLag: the density at which the seconds that bytes take and the lag that sparseness costs weigh
the same; and LAGS (Shi et al., ECAI 2020): every bucket is as dense as hides behind
computation.

What error feedback holds back is applied later. With M = Σ|p − sent| held and m = Σ|sent| leaving
in each step, mass waits M/m steps on average (Little's law), and that is about a/k with an a that
hardly depends on k. A run with density k is at step n where a dense one was at step n − w·a/k, and
n of its steps take n·(T₀ + b·k) seconds. So the time to the progress of n steps of a dense run is

    (n + w·a/k) · (T₀ + b·k),      least at      k = √( w·a·T₀ / (n·b) ).

Nobody knows when training will end: n is the number of steps made so far, as if as many were to
come. So k falls like 1/√n, follows the seconds per byte of the network, and is high where bytes
cost little.

a is seen in every step (Σ|p| and Σ|sent| are counted). b comes from the communication delay d = α +
(seconds for bytes): α, what a message of no bytes would take, is where the lower convex hull of
(bytes, least delay) meets 0 bytes. Slow times only lift points above the hull; when a message shows
that bytes take less than half as long as others did, those others are forgotten, as the link has
become faster. Where the hull is too short to tell, α stays what it was.

``bytes_take: known`` is the oracle to compare with: b from the asked rates of the links, as nobody
outside of a testbed knows them.

    ρ_l = (t_l − c_l − α) / (β·w·m_l)        clipped to [k_min, k_max]

t_l: computation that is left when bucket l is ready (``under: remaining``), or that of the layers
up to the next bucket's (``next``, as in the paper); c_l: its compression; m_l: its elements; w:
bytes of both ways for every element sent; α, β: what a message and a byte take. Where the bytes of
a dense bucket fit, ρ_l = 1, or ``cap``. How this follows, and differs, is in
``docs/explanation/algc.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import fsum, isfinite, log2, sqrt
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.control.base import Controller, Density, DensityLimits, Observation
from testbed.control.cost_model import VALUE_BYTES, CostEstimate, PlannedMessage
from testbed.control.layerwise import HidingOptions, OverlapBudget

Point = tuple[float, float]
_SMOOTHING = 0.1
"""Weight of a step in the mean of a."""
_BINS, _APART, _FASTER = 4, 1.5, 2.0


class AdaLagOptions(DensityLimits):
    """Options of ``adalag``."""

    initial_k: Density = Field(0.1, description="Density of the first step.")
    weight: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        0.25, description="Share of the held mass's waiting time by which training lags (w)."
    )
    bytes_take: Literal["measured", "known"] = Field(
        "measured",
        description="Seconds for bytes: as seen in delays, or known from the links' asked rates.",
    )
    recent: Annotated[int, Field(ge=1, le=1000)] = Field(
        9, description="Steps of whose seconds for bytes the median is taken."
    )
    swing: Annotated[float, Field(gt=1.0, le=100.0)] = Field(
        1.5, description="Most that k changes by from step to step, as a factor."
    )


class AdaLag(Controller[AdaLagOptions]):
    """One for each worker. Nothing in it is random."""

    name, model = "adalag", AdaLagOptions
    watches = frozenset({"memory"})
    carried = {
        "steps": "_steps",
        "k": "_k",
        "lag": "_lag",
        "empty_s": "_empty_s",
        "recent": "_recent",
        "known_s": "_known_s",
    }

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        if self.options.bytes_take == "known":
            self.watches |= {"path"}
        self._steps = 0
        self._lag: float | None = None
        """a: steps that mass waits, times density."""
        self._fastest: dict[int, Point] = {}
        """Bytes and seconds of the fastest exchange, by size: ``_BINS`` sizes to a doubling."""
        self._empty_s = 0.0
        """α."""
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=self.options.recent)
        """Density, delay and all seconds of the last steps."""
        self._known_s: float | None = None
        """Seconds that bytes of density 1 take at the links' rates."""

    def observe(self, observed: Observation) -> None:
        """Take in a step and choose anew. Without ``held`` and ``sent`` (old records) k stays."""
        delay_s, residual_mass, sent = observed.delay_s, observed.held, observed.sent
        step_s = delay_s if observed.step_s is None else observed.step_s
        figures = (delay_s, step_s, residual_mass or 0.0, sent or 0.0)
        if not all(isfinite(figure) and figure >= 0 for figure in figures):
            raise self.fail(
                observed,
                f" took {step_s} s, {delay_s} s of them for communication, and left "
                f"{residual_mass} of {sent}: all must be finite, and none below 0",
            )
        self._steps += 1
        amount = float(observed.bytes_sent + (observed.bytes_received or 0))
        self._remember(max(1.0, amount), delay_s)
        self._recent.append((observed.density, delay_s, step_s))
        self._known_s = known_seconds(observed) or self._known_s
        if residual_mass is not None and sent:
            lag = observed.density * residual_mass / sent
            old = lag if self._lag is None else self._lag
            self._lag = old + _SMOOTHING * (lag - old)
        blind = self.options.bytes_take == "known" and self._known_s is None
        if self._lag is not None and not blind:
            self._choose(self._lag)

    def state(self) -> dict[str, Any]:
        """Also the fastest exchanges."""
        fastest = [[size, *point] for size, point in self._fastest.items()]
        return {**super().state(), "fastest": fastest}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        super().load(state)
        self._fastest = {size: (amount, delay_s) for size, amount, delay_s in state["fastest"]}

    def _remember(self, amount: float, delay_s: float) -> None:
        """Take in an exchange, and find α anew."""
        self._forget(amount, delay_s)
        size = round(_BINS * log2(amount))
        if size not in self._fastest or delay_s < self._fastest[size][1]:
            self._fastest[size] = amount, delay_s
        least_s = min(seconds for _, seconds in self._fastest.values())
        empty_s = intercept(lower_hull(self._fastest.values()))
        self._empty_s = min(self._empty_s if empty_s is None else empty_s, least_s)

    def _forget(self, amount: float, delay_s: float) -> None:
        """Forget all that is more than ``_FASTER`` times as dear as this one, byte for byte."""
        per_byte = _FASTER * max(0.0, delay_s - self._empty_s) / amount
        if per_byte:
            self._fastest = {
                size: (other, seconds)
                for size, (other, seconds) in self._fastest.items()
                if (seconds - self._empty_s) / other <= per_byte
            }

    def _measured(self) -> tuple[float, float]:
        """b, and T₀ in seconds."""
        empty_s = self._empty_s
        slope = median((delay_s - empty_s) / k for k, delay_s, _ in self._recent)
        return slope, median(step_s - delay_s + empty_s for _, delay_s, step_s in self._recent)

    def _known(self) -> tuple[float, float]:
        """The same, from the links' rates."""
        known_s = self._known_s or 0.0
        return known_s, median(step_s - known_s * k for k, _, step_s in self._recent)

    def _choose(self, lag: float) -> None:
        """The root of the derivative, within what k may be and may change by."""
        options = self.options
        slope, rest_s = self._known() if options.bytes_take == "known" else self._measured()
        wanted = options.k_max
        if slope > 0:
            wanted = sqrt(options.weight * lag * max(0.0, rest_s) / (self._steps * slope))
        wanted = min(max(wanted, self._k / options.swing), self._k * options.swing)
        self._k = options.clipped(wanted)


def known_seconds(observed: Observation) -> float | None:
    """Return the seconds that a step's bytes take at the links' rates, for density 1.

    None where no rate, or an outage, is known.
    """
    up, down = observed.share_up_bits, observed.share_down_bits
    if not up or not down:
        return None
    seconds = 8 * (observed.bytes_sent / up + (observed.bytes_received or 0) / down)
    return seconds / observed.density


def lower_hull(points: Iterable[Point]) -> list[Point]:
    """The lower convex hull of ``points``, ascending; of those with equal x the lowest."""
    hull: list[Point] = []
    for point in sorted(points):
        if hull and hull[-1][0] == point[0]:
            continue
        while len(hull) > 1 and not _turns_left(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def intercept(hull: list[Point]) -> float | None:
    """Where the hull, prolonged, meets x = 0, at least 0; None if it is too short to tell.

    It is prolonged by the line from its lowest point (smaller messages that took longer were slow)
    to the first that is ``_APART`` times as far: between points close together noise alone decides.
    """
    left, low = min(hull, key=lambda point: point[1])
    far = [(x, y) for x, y in hull if x >= _APART * left]
    if not far:
        return None
    right, high = far[0]
    return max(0.0, low - left * (high - low) / (right - left))


def _turns_left(first: Point, second: Point, third: Point) -> bool:
    return (second[0] - first[0]) * (third[1] - first[1]) > (second[1] - first[1]) * (
        third[0] - first[0]
    )


class LagsOptions(HidingOptions):
    """Options of ``lags``."""

    under: Literal["remaining", "next"] = Field(
        "remaining",
        description=(
            "What a bucket hides behind: all that is left of the backward pass, or its next part."
        ),
    )
    cap: Density | None = Field(
        None, description="Density in place of one above 1: 0.05 in published code; none: 1."
    )


class Lags(OverlapBudget[LagsOptions]):
    """One for each worker."""

    name, model = "lags", LagsOptions

    def _decided(self, known: CostEstimate) -> dict[str, float]:
        """Parameters of one bucket have one density."""
        weight, chosen = _bytes_per_element(known), dict[str, float]()
        for message, time_s in zip(known.messages, self._behind_s(known), strict=True):
            density = self._hidden(known, message, time_s, weight)
            chosen |= dict.fromkeys(message.names, density)
        return chosen

    def _behind_s(self, known: CostEstimate) -> list[float]:
        """t of every bucket; where nothing overlaps, all share what they may take by elements."""
        messages = known.messages
        if not known.hides:
            total = fsum(message.elements for message in messages)
            times = zip(messages, self._times_s(known), strict=True)
            return [time_s * message.elements / total for message, time_s in times]
        left = [message.left_s for message in messages]
        if self.options.under == "next":
            left = [now - after for now, after in zip(left, [*left[1:], 0.0], strict=True)]
        return [time_s + self.options.forward * messages[0].left_s for time_s in left]

    def _hidden(
        self, known: CostEstimate, message: PlannedMessage, time_s: float, weight: float
    ) -> float:
        """ρ, within its limits."""
        options, transfer = self.options, known.transfer
        packing_s = known.packing.seconds(message.elements, len(message.names))
        free_s = time_s - packing_s - transfer.start_s
        byte_s = transfer.per_s * message.elements
        if free_s >= 2 * VALUE_BYTES * byte_s:
            density = 1.0 if options.cap is None else options.cap
        else:
            density = free_s / (byte_s * weight) if free_s > 0 else options.k_min
        return options.clipped(density)


def _bytes_per_element(known: CostEstimate) -> float:
    """w; of float32 and Elias-Fano at 0.01 both ways where nothing was compressed."""
    sparse = [message for message in known.messages if message.sparse]
    sent = fsum(message.sent for message in sparse)
    return fsum(message.up + message.down for message in sparse) / sent if sent else 10.0
