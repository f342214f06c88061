"""Labels beside points, each where it is least in the way of points and other labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_SIZE_PT, _WIDE, _HIGH, _GAP = 7.0, 0.62, 1.1, 6.0
"""Size of the letters; width and height of one in sizes; points from a marker to its label."""
_SIDES = (
    (1, 1),
    (-1, 1),
    (1, -1),
    (-1, -1),
    (0, 1),
    (0, -1),
    (1, 0),
    (-1, 0),
    (2, 2),
    (-2, 2),
    (2, -2),
    (-2, -2),
)

Box = tuple[float, float, float, float]
"""Left, bottom, right, top in points."""


class Label(NamedTuple):
    """``text`` at a place in data; without a text a marker that is not to be covered."""

    text: str
    x: float
    y: float


def place(figure: Figure, axes: Axes, labels: Sequence[Label], color: str) -> None:
    """Write every label at that side of its point where it covers least."""
    figure.draw_without_rendering()  # until then nobody knows where in the figure a point is
    spots = [_spot(figure, axes, label) for label in labels]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    frame = axes.get_window_extent()
    left, bottom, right, top = (float(end) * 72 / figure.dpi for end in frame.extents)
    inside = left, bottom, right, top
    for label, (x, y) in zip(labels, spots, strict=True):
        if not label.text:
            continue
        sides = [(_box(label.text, x, y, *side), side) for side in _SIDES]
        box, side = min(sides, key=lambda each: _covered(each[0], taken, inside))
        taken.append(box)
        axes.annotate(
            label.text, (label.x, label.y), (side[0] * _GAP, side[1] * _GAP), textcoords="offset points",
            fontsize=_SIZE_PT, color=color, va=_anchor(side[1], "top", "bottom"),
            ha=_anchor(side[0], "right", "left"), zorder=5,
        )  # fmt: skip


def _anchor(side: int, below: str, above: str) -> str:
    return "center" if side == 0 else above if side > 0 else below


def _spot(figure: Figure, axes: Axes, label: Label) -> tuple[float, float]:
    x, y = axes.transData.transform((label.x, label.y)) * 72 / figure.dpi
    return float(x), float(y)


def _box(text: str, x: float, y: float, right: int, up: int) -> Box:
    wide, high = _SIZE_PT * _WIDE * len(text), _SIZE_PT * _HIGH
    left = x + right * _GAP - wide * (0.5 if right == 0 else 0.0 if right > 0 else 1.0)
    bottom = y + up * _GAP - high * (0.5 if up == 0 else 0.0 if up > 0 else 1.0)
    return left, bottom, left + wide, bottom + high


def _covered(box: Box, taken: Sequence[Box], inside: Box) -> float:
    """Area that is shared with what is there, and ten times that which is outside."""
    whole = (box[2] - box[0]) * (box[3] - box[1])
    return sum(_shared(box, other) for other in taken) + 10 * (whole - _shared(box, inside))


def _shared(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, wide) * max(0.0, high)
