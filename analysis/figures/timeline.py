"""Figure ``timeline``: what every node did in one step, as bars over time (a Gantt chart):
computation, and each bucket's way to the server and back.

Of the runs of a report: the step in the middle, of the first worker and the servers. ``testbed
timeline --figure`` draws more workers and other steps of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.figures.algorithms import PHASE_LOOKS as PHASES
from analysis.load import Run, lowest_seeds
from analysis.style import (
    PAGE_IN,
    Rows,
    finished,
    narrows_style,
    new_figure,
    rows_of_bars,
    write,
)
from analysis.timeline import ACTIVITIES, Span, StepTimeline, layers_of, middle, rows, timeline

LOOKS: dict[str, tuple[str, str]] = {
    **PHASES,
    "forward": ("#D8D8D8", ""),
    "backward": ("#858585", ""),
    "queue": ("#FFFFFF", ""),
    "held": ("#F4DCEB", ""),
    "gather": ("#8A6D00", ""),
    "aggregate": ("#000000", ""),
    "reply": ("#56B4E9", ""),
}
"""Colour and hatch of every activity."""
WORDS = {
    "stall": "waiting for parameters",
    "queue": "waiting for its turn",
    "wait": "waiting for the reply",
    "held": "decoded, until applied",
    "reply": "send",
}
"""Words for activities that are called otherwise for people."""
_FAINT = 0.4
_EDGE, _LINE = "0.35", 0.25
_BAR = 0.84
_THIN = 0.01
"""A share of the whole width: narrower bars have no edges. Waiting for a turn has, as it is nothing
but its edge."""
_MANY = 24
"""Layers; of more none has edges."""
_AFTER = ("held", "apply")
_MORE = (0.06, 0.25)
"""The least and the most that is drawn after a step, as shares of its length."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A window of time to draw: the spans of ``steps`` from ``from_s`` to ``to_s``, and paler those
    of their neighbours in it."""

    steps: frozenset[int]
    from_s: float
    to_s: float

    @classmethod
    def of(cls, spans: Iterable[Span], steps: Collection[int]) -> TimeWindow:
        """As long as anything was done for ``steps``, and on until it is applied, within bounds: so
        long that the next one is seen to begin, and not so long that little else is seen, as
        buckets may be applied late in the next one's forward pass. A wait for the step before is
        not of it.
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


def bars(timeline: StepTimeline, node: str, window: TimeWindow, buckets: Mapping[str, int]) -> Rows:
    """The bars of a node, by row: what layers' computation took is in the row of their bucket once
    more.

    ``buckets``: by layer, that in which it travels.
    """
    spans = timeline.of(node)
    again = [
        Span(s.node, buckets[s.layer], s.activity, s.step, s.from_s, s.to_s, s.layer)
        for s in spans
        if s.bucket is None and s.layer is not None and s.layer in buckets and s.activity != "stall"
    ]
    return [
        {
            "node": node,
            "row": "" if bucket is None else bucket,
            "layers": timeline.names.get(bucket, "") if bucket is not None else "",
            "activity": span.activity,
            "layer": span.layer or "",
            "step": span.step,
            "from_ms": clipped[0],
            "to_ms": clipped[1],
        }
        for bucket, own in rows([*spans, *again]).items()
        for span in own
        if (clipped := window.clip(span)) is not None
    ]


def draw_bars(axes: Axes, drawn: Rows, steps: Collection[int]) -> None:
    """``drawn`` of one node; what is not of ``steps`` paler. A wait is what it delays, so it never
    is."""
    places = {
        row: row_number for row_number, row in enumerate(dict.fromkeys(bar["row"] for bar in drawn))
    }
    thin = _thin(drawn)
    kinds: dict[tuple[str, bool, bool, int], list[tuple[float, float]]] = {}
    for bar in drawn:
        faint = bar["step"] not in steps and bar["activity"] != "stall"
        kind = bar["activity"], faint, thin(bar), places[bar["row"]]
        kinds.setdefault(kind, []).append((bar["from_ms"], bar["to_ms"] - bar["from_ms"]))
    for (activity, faint, bare, row_number), pieces in kinds.items():
        axes.broken_barh(pieces, (row_number - _BAR / 2, _BAR), **_style(activity, faint, bare))
    labels = {row: bar["layers"] or "computation" for bar in drawn for row in [bar["row"]]}
    rows_of_bars(axes, [labels[row] for row in places])
    axes.tick_params(axis="y", length=0)


def _thin(drawn: Rows) -> Callable[[Mapping[str, Any]], bool]:
    """Which bars have no edges, as these would be all that is seen: those that are narrow, and
    layers if they are many."""
    least_ms = _THIN * max((bar["to_ms"] for bar in drawn), default=0.0)
    crowded = len({bar["layer"] for bar in drawn}) > _MANY

    def thin(bar: Mapping[str, Any]) -> bool:
        layers = crowded and bar["activity"] in ("forward", "backward")
        narrow = bar["to_ms"] - bar["from_ms"] < least_ms and bar["activity"] != "queue"
        return bool(layers or narrow)

    return thin


def legend(drawn: Rows) -> tuple[list[Patch], list[str]]:
    """Return the legend of the activities that ``drawn`` has."""
    words: dict[str, str] = {}
    for activity in ACTIVITIES:
        if any(bar["activity"] == activity for bar in drawn):
            words.setdefault(WORDS.get(activity, activity), activity)
    return [Patch(**_style(activity)) for activity in words.values()], list(words)


def _style(activity: str, faint: bool = False, bare: bool = False) -> dict[str, Any]:
    colour, hatch = LOOKS[activity]
    return {
        "alpha": _FAINT if faint else 1.0,
        "facecolor": colour,
        "hatch": hatch,
        "edgecolor": _EDGE if colour == "#FFFFFF" else "white",
        "linewidth": 0.0 if bare else _LINE,
    }


def heights(panels: Sequence[Rows], one_in: float, many_in: float) -> list[float]:
    """Return the heights of panels, in inches: a row alone is ``one_in`` high, of several each
    ``many_in``."""
    counts = [len({bar["row"] for bar in drawn}) for drawn in panels]
    return [one_in if count == 1 else many_in * count for count in counts]


NAME = "timeline"
MOST_RUNS = 4
_ONE_IN, _MANY_IN, _REST_IN = 0.32, 0.105, 1.05
_LETTER_IN = 0.065
"""The width of a letter of a node's name."""
_UPRIGHT = {"rotation": "horizontal", "horizontalalignment": "right", "verticalalignment": "center"}
_SMALL = 5.5


@dataclass(frozen=True, slots=True)
class View:
    """``steps`` of ``run``, of its first ``workers`` and of its servers."""

    run: Run
    steps: tuple[int, ...]
    workers: int

    def panels(self) -> list[tuple[str, Rows]]:
        """Return the rows that are drawn for each node; nodes of which nothing was recorded are
        left out."""
        around = {step + off for step in self.steps for off in (-1, 0, 1)}
        steps = timeline(self.run, around)
        nodes = self._nodes(steps)
        window = TimeWindow.of((s for s in steps.spans if s.node in nodes), self.steps)
        buckets = layers_of(self.run)
        drawn = [(node, bars(steps, node, window, buckets)) for node in nodes]
        return [(node, rows) for node, rows in drawn if rows]

    def _nodes(self, steps: StepTimeline) -> list[str]:
        roles = self.run.manifest["nodes"]
        workers = [node for node in steps.nodes if roles[node]["role"] == "worker"]
        return [*workers[: self.workers], *(node for node in steps.nodes if node not in workers)]

    def said(self) -> str:
        """Whose, and when."""
        first, last = self.steps[0], self.steps[-1]
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        return f"{self.run.algorithm} s{self.run.seed}, {when}"


def data(runs: Sequence[Run]) -> Rows:
    """Bars of the middle step, ms of model time after its begin: of each algorithm's lowest seed,
    the first worker's and the servers'. ``row``: the bucket; empty for the computation. Nothing
    where no gradients travelled in buckets."""
    return [bar for view in _views(runs) for bar in _rows(view)]


def draw(runs: Sequence[Run]) -> Figure:
    """The runs below one another on one axis of time, so that lengths compare."""
    views = _views(runs)
    left = len(lowest_seeds(runs)) - len(views)
    more = f" ({left} more not drawn)" if left else ""
    shown = views[0].said() if len(views) == 1 else "first worker and server"
    return _figure(views, f"One step of {_scenario(runs)}, {shown}{more}")


def draw_view(view: View) -> Figure:
    """One run's steps."""
    workers = sum(n["role"] == "worker" for n in view.run.manifest["nodes"].values())
    some = f", {view.workers} of {workers} workers" if view.workers < workers else ""
    return _figure([view], f"{_scenario([view.run])}, {view.said()}{some}")


def save_view(view: View, path: Path) -> None:
    """Draw ``view`` into ``path``, whose ending says of what kind."""
    with narrows_style():
        write(draw_view(view), path)


def _figure(views: Sequence[View], title: str) -> Figure:
    panels = [
        (view, node, rows, not number)
        for view in views
        for number, (node, rows) in enumerate(view.panels())
    ]
    tall = heights([rows for _, _, rows, _ in panels], _ONE_IN, _MANY_IN)
    figure = new_figure(PAGE_IN, _REST_IN + sum(tall) + 0.12 * len(panels) + 0.2 * len(views))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=tall)
    places: list[Axes] = list(grid[:, 0])
    upright = any(
        _LETTER_IN * len(node) > own for (_, node, _, _), own in zip(panels, tall, strict=True)
    )
    for axes, (view, node, bars, first) in zip(places, panels, strict=True):
        draw_bars(axes, bars, view.steps)
        _label(axes, node, bars, upright)
        if len(views) > 1 and first:
            axes.set_title(view.said(), loc="left", fontsize=8)
    everything = [bar for _, _, rows, _ in panels for bar in rows]
    _axis(places, everything, [step for view in views for step in view.steps])
    figure.align_ylabels(places)
    return finished(figure, title, *legend(everything), runs=[view.run for view in views])


def _label(axes: Axes, node: str, rows: Rows, upright: bool) -> None:
    """One row bears its node's name, several bear theirs; ``upright``: where it would be longer
    than a panel is high."""
    if len({bar["row"] for bar in rows}) == 1:
        axes.set_yticks([0], [node])
        return
    axes.set_ylabel(node)
    if upright:
        axes.yaxis.label.set(**_UPRIGHT)
    axes.tick_params(axis="y", labelsize=_SMALL)


def _axis(places: Sequence[Axes], drawn: Rows, steps: Collection[int]) -> None:
    others = any(bar["step"] not in steps for bar in drawn)
    paler = "; paler: the steps before and after" if others else ""
    places[-1].set(xlabel=f"Model time from the begin of the step (ms){paler}")
    places[-1].set_xlim(0, max(bar["to_ms"] for bar in drawn))
    for axes in places[:-1]:
        axes.tick_params(axis="x", length=0)


def _rows(view: View) -> Rows:
    run = view.run
    return [
        {"algorithm": run.algorithm, "seed": run.seed, **bar}
        for _, rows in view.panels()
        for bar in rows
    ]


def _views(runs: Sequence[Run]) -> list[View]:
    """Return views of each algorithm's lowest seed, in their order; where there are too many, those
    in buckets first."""
    lowest = lowest_seeds(runs)
    finer = {run.path: bool(run.events.get("bucket")) for run in lowest}
    if not any(finer.values()):
        return []
    kept = sorted(finer, key=lambda path: not finer[path])[:MOST_RUNS]
    return [View(run, (middle(run),), 1) for run in lowest if run.path in kept]


def _scenario(runs: Sequence[Run]) -> str:
    return str(runs[0].manifest["scenario"])
