"""The α–β model: seconds = α·pieces + β·amount, by least squares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

Point = tuple[float, float, float]
"""Pieces, amount, seconds."""
APART = 1.5
"""Amounts for each piece that differ by less are one size, which tells nothing of α."""


@dataclass(frozen=True, slots=True)
class Line:
    """Both at least 0. Amounts are bytes or elements."""

    start_s: float = 0.0
    """α: of every piece."""
    per_s: float = 0.0
    """β: of every unit of the amount."""

    def seconds(self, amount: float, pieces: float = 1.0) -> float:
        """What they take."""
        return self.start_s * pieces + self.per_s * amount


def fitted(points: Iterable[Point], before: Line) -> Line:
    """Least squares through ``points``. Where all are of about one size, or small ones took longer, α stays what it was
    (but takes at most all of the time), and β is what that leaves; ``before`` where there are no points."""
    known = [point for point in points if point[0] > 0 and point[1] > 0]
    if not known:
        return before
    sizes = [amount / pieces for pieces, amount, _ in known]
    if max(sizes) < APART * min(sizes):
        return _with_start(known, before.start_s)
    start_s, per_s = _solved(known)
    if per_s <= 0:
        return _with_start(known, before.start_s)
    return Line(start_s, per_s) if start_s >= 0 else Line(0.0, _slope(known, 0.0))


def _with_start(points: Sequence[Point], start_s: float) -> Line:
    start_s = min(start_s, *(seconds / pieces for pieces, _, seconds in points))
    return Line(start_s, max(0.0, _slope(points, start_s)))


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
