"""Spans as bars: a panel for each node, in it a row for each bucket and one for the whole step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis.figures.phases import LOOKS as PHASES
from analysis.style import Rows
from analysis.timeline.of_run import Timeline
from analysis.timeline.span import ACTIVITIES, Span
from analysis.timeline.tracks import rows

LOOKS: dict[str, tuple[str, str]] = {
    **PHASES, "forward": ("#D8D8D8", ""), "backward": ("#858585", ""),
    "queue": ("#FFFFFF", ""), "held": ("#F4DCEB", ""), "gather": ("#8A6D00", ""), "aggregate": ("#000000", ""),
    "reply": ("#56B4E9", ""),
}  # fmt: skip
"""Colour and hatch of every activity."""
WORDS = {
    "stall": "waiting for parameters", "queue": "waiting for its turn",
    "wait": "waiting for the reply", "held": "decoded, until applied", "reply": "send",
}  # fmt: skip
"""Of activities that are called otherwise for people."""
_FAINT = 0.4
_EDGE, _LINE = "0.35", 0.25
_BAR = 0.84
_THIN = 0.01
"""Of the whole width: narrower bars have no edges. Waiting for a turn has, as it is nothing but its edge."""
_MANY = 24
"""Layers; of more none has edges."""
_AFTER = ("held", "apply")
_MORE = (0.06, 0.25)
"""Of a step's length, at least and at most: what is drawn after it."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is drawn: the spans of ``steps`` from ``from_s`` to ``to_s``, and paler those of their neighbours in it."""

    steps: frozenset[int]
    from_s: float
    to_s: float

    @classmethod
    def of(cls, spans: Iterable[Span], steps: Collection[int]) -> Window:
        """As long as anything was done for ``steps``, and on until it is applied, within bounds: so long that the next one
        is seen to begin, and not so long that little else is seen, as buckets may be applied late in the next one's forward
        pass. A wait for the step before is not of it.
        """
        own = [span for span in spans if span.step in steps and span.activity != "stall"]
        from_s = min((span.from_s for span in own), default=0.0)
        done_s = max((span.to_s for span in own if span.activity not in _AFTER), default=0.0)
        last_s = max((span.to_s for span in own), default=0.0)
        least_s, most_s = (done_s + share * (done_s - from_s) for share in _MORE)
        return cls(frozenset(steps), from_s, min(max(last_s, least_s), most_s))

    def clip(self, span: Span) -> tuple[float, float] | None:
        """``span`` in milliseconds after the window's begin; None outside of it."""
        from_s, to_s = max(span.from_s, self.from_s), min(span.to_s, self.to_s)
        return (1e3 * (from_s - self.from_s), 1e3 * (to_s - self.from_s)) if to_s > from_s else None


def bars(found: Timeline, node: str, window: Window, buckets: Mapping[str, int]) -> Rows:
    """The bars of a node, by row: what layers' computation took is in the row of their bucket once more.

    ``buckets``: by layer, that in which it travels.
    """
    spans = found.of(node)
    again = [
        Span(s.node, buckets[s.layer], s.activity, s.step, s.from_s, s.to_s, s.layer)
        for s in spans
        if s.bucket is None and s.layer is not None and s.layer in buckets and s.activity != "stall"
    ]  # fmt: skip
    return [
        {
            "node": node, "row": "" if bucket is None else bucket, "layers": found.names.get(bucket, "")
            if bucket is not None else "", "activity": span.activity, "layer": span.layer or "",
            "step": span.step, "from_ms": clipped[0], "to_ms": clipped[1],
        }
        for bucket, own in rows([*spans, *again]).items()
        for span in own
        if (clipped := window.clip(span)) is not None
    ]  # fmt: skip


def draw_bars(axes: Axes, drawn: Rows, steps: Collection[int]) -> None:
    """``drawn`` of one node; what is not of ``steps`` paler. A wait is what it delays, so it never is."""
    places = {row: place for place, row in enumerate(dict.fromkeys(bar["row"] for bar in drawn))}
    thin = _thin(drawn)
    kinds: dict[tuple[str, bool, bool, int], list[tuple[float, float]]] = {}
    for bar in drawn:
        faint = bar["step"] not in steps and bar["activity"] != "stall"
        kind = bar["activity"], faint, thin(bar), places[bar["row"]]
        kinds.setdefault(kind, []).append((bar["from_ms"], bar["to_ms"] - bar["from_ms"]))
    for (activity, faint, bare, place), pieces in kinds.items():
        axes.broken_barh(pieces, (place - _BAR / 2, _BAR), **_style(activity, faint, bare))
    labels = {row: bar["layers"] or "computation" for bar in drawn for row in [bar["row"]]}
    axes.set_yticks(range(len(places)), [labels[row] for row in places])
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _thin(drawn: Rows) -> Callable[[Mapping[str, Any]], bool]:
    """Which bars have no edges, as these would be all that is seen: those that are narrow, and layers if they are many."""
    least_ms = _THIN * max((bar["to_ms"] for bar in drawn), default=0.0)
    many = len({bar["layer"] for bar in drawn}) > _MANY

    def thin(bar: Mapping[str, Any]) -> bool:
        layers = many and bar["activity"] in ("forward", "backward")
        narrow = bar["to_ms"] - bar["from_ms"] < least_ms and bar["activity"] != "queue"
        return bool(layers or narrow)

    return thin


def legend(drawn: Rows) -> tuple[list[Patch], list[str]]:
    """Of the activities that ``drawn`` has."""
    words: dict[str, str] = {}
    for activity in ACTIVITIES:
        if any(bar["activity"] == activity for bar in drawn):
            words.setdefault(WORDS.get(activity, activity), activity)
    return [Patch(**_style(activity)) for activity in words.values()], list(words)


def _style(activity: str, faint: bool = False, bare: bool = False) -> dict[str, Any]:
    colour, hatch = LOOKS[activity]
    return {
        "alpha": _FAINT if faint else 1.0,
        "facecolor": colour, "hatch": hatch, "edgecolor": _EDGE if colour == "#FFFFFF" else "white",
        "linewidth": 0.0 if bare else _LINE,
    }  # fmt: skip


def heights(panels: Sequence[Rows], one_in: float, many_in: float) -> list[float]:
    """Of panels, in inches: a row alone is ``one_in`` high, of several each ``many_in``."""
    counts = [len({bar["row"] for bar in drawn}) for drawn in panels]
    return [one_in if count == 1 else many_in * count for count in counts]
