"""What share of packets a link should have lost, and whether it did: counts against the loss model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.record.beta import interval
from testbed.scenario.impairments import FourState, GilbertElliott, Impairments
from testbed.scenario.shape import Shape

_LONGEST_LAG, _FORGOTTEN = 100_000, 1e-9
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Expected:
    """``share`` of packets lost in the long run; ``weight``: so many packets tell as much as one alone."""

    share: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LossSeen:
    """Losses of one line. ``low`` to ``high``: where the true share lies; None with ``why`` it is not judged."""

    packets: int
    lost: int
    asked: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None

    @property
    def used(self) -> float | None:
        """How far what was asked is from what was seen, in widths of the interval to that side: up to 1 is right."""
        if self.asked is None or self.low is None or self.high is None:
            return None
        seen = self.lost / self.packets
        bound = self.high if self.asked > seen else self.low
        return 0.0 if self.asked == seen else abs(self.asked - seen) / max(abs(bound - seen), 1e-12)


def expected(asked: Impairments) -> Expected | str:
    """What a line should lose (or mark, with ``ecn``), or why that cannot be said."""
    if isinstance(asked.loss, GilbertElliott):
        model = asked.loss
        chain = ((1 - model.p, model.p), (model.r, 1 - model.r))
        return _of_chain(chain, (model.loss_good, model.loss_bad))
    if isinstance(asked.loss, FourState):
        return _of_chain(_four(asked.loss), (0.0, 0.0, 1.0, 1.0))
    return Expected(asked.loss)


def seen(packets: int, lost: int, shapes: Iterable[Shape], confidence: float) -> LossSeen:
    """``lost`` of ``packets`` against what ``shapes`` (all that the link had) asked for."""
    models = {shape.impairments.loss: shape.impairments for shape in shapes}
    if not packets:
        return LossSeen(packets, lost, why="no packets came to it")
    if len(models) != 1:
        return LossSeen(packets, lost, why="the loss asked for changed meanwhile")
    found = expected(next(iter(models.values())))
    if isinstance(found, str):
        return LossSeen(packets, lost, why=found)
    low, high = interval(lost / found.weight, packets / found.weight, confidence)
    return LossSeen(packets, lost, found.share, low, high)


def _four(model: FourState) -> Matrix:
    """Gap, burst gap, burst loss, gap loss, as netem goes from one to the next."""
    return (
        (1 - model.p13 - model.p14, 0.0, model.p13, model.p14),
        (0.0, 1 - model.p23, model.p23, 0.0),
        (model.p31, model.p32, 1 - model.p31 - model.p32, 0.0),
        (1.0, 0.0, 0.0, 0.0),
    )


def _of_chain(chain: Matrix, loss: Sequence[float]) -> Expected | str:
    """Mean loss of a Markov chain, and by how much its memory widens the mean's variance."""
    stay = _stationary(chain)
    mean = _dot(stay, loss)
    if mean in (0.0, 1.0):
        return Expected(mean)
    weight, ahead = 1.0, list(loss)
    for _ in range(_LONGEST_LAG):
        ahead = [_dot(row, ahead) for row in chain]
        together = sum(s * h * a for s, h, a in zip(stay, loss, ahead, strict=True)) - mean**2
        weight += 2 * together / (mean * (1 - mean))
        if max(abs(value - mean) for value in ahead) < _FORGOTTEN:
            return Expected(mean, max(weight, 1.0))
    return "its losses remember too much of what was before"


def _stationary(chain: Matrix) -> list[float]:
    """By the average of two steps, which settles also where the chain alternates."""
    count = len(chain)
    now = [1 / count] * count
    for _ in range(_LONGEST_LAG):
        moved = [sum(now[i] * chain[i][j] for i in range(count)) for j in range(count)]
        later = [(a + b) / 2 for a, b in zip(now, moved, strict=True)]
        if max(abs(a - b) for a, b in zip(now, later, strict=True)) < 1e-15:
            break
        now = later
    return now


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
