"""What every node did in one step, as bars over time: computation, and each bucket's way to the server and back.

Of the runs of a report: the step in the middle, of the first worker and the servers. ``testbed timeline --figure`` draws
more workers and other steps of one run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.gantt import Window, bars, draw_bars, heights, legend
from analysis.load import Run, by_algorithm
from analysis.style import PAGE_IN, Rows, banner, heading, narrows_style, new_figure, write
from analysis.timeline.of_run import Timeline, layers_of, middle, timeline

NAME = "timeline"
MOST_RUNS = 4
MOST_WORKERS = 4
_ONE_IN, _MANY_IN, _REST_IN = 0.32, 0.105, 1.05
_LETTER_IN = 0.065
"""Of a node's name."""
_UPRIGHT = {"rotation": "horizontal", "horizontalalignment": "right", "verticalalignment": "center"}
_SMALL = 5.5


@dataclass(frozen=True, slots=True)
class View:
    """``steps`` of ``run``, of its first ``workers`` and of its servers."""

    run: Run
    steps: tuple[int, ...]
    workers: int

    def panels(self) -> list[tuple[str, Rows]]:
        """By node, what is drawn of it; nodes of which nothing was recorded are left out."""
        around = {step + off for step in self.steps for off in (-1, 0, 1)}
        found = timeline(self.run, around)
        nodes = self._nodes(found)
        window = Window.of((s for s in found.spans if s.node in nodes), self.steps)
        buckets = layers_of(self.run)
        drawn = [(node, bars(found, node, window, buckets)) for node in nodes]
        return [(node, rows) for node, rows in drawn if rows]

    def _nodes(self, found: Timeline) -> list[str]:
        roles = self.run.manifest["nodes"]
        workers = [node for node in found.nodes if roles[node]["role"] == "worker"]
        return [*workers[: self.workers], *(node for node in found.nodes if node not in workers)]

    def said(self) -> str:
        """Whose, and when."""
        first, last = self.steps[0], self.steps[-1]
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        return f"{self.run.algorithm} s{self.run.seed}, {when}"


def data(runs: Sequence[Run]) -> Rows:
    """Bars of the middle step, ms of model time after its begin: of each algorithm's lowest seed, the first worker's
    and the servers'. ``row``: the bucket; empty for the computation. Nothing where no gradients travelled in buckets."""
    return [bar for view in _views(runs) for bar in _rows(view)]


def draw(runs: Sequence[Run]) -> Figure:
    """The runs below one another on one axis of time, so that lengths compare."""
    views = _views(runs)
    left = len(by_algorithm(runs)) - len(views)
    more = f" ({left} more not drawn)" if left else ""
    return _figure(views, f"One step of {_scenario(runs)}, {_shown(views)}{more}")


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
        (view, node, rows, not place)
        for view in views
        for place, (node, rows) in enumerate(view.panels())
    ]
    tall = heights([rows for _, _, rows, _ in panels], _ONE_IN, _MANY_IN)
    figure = new_figure(PAGE_IN, _REST_IN + sum(tall) + 0.12 * len(panels) + 0.2 * len(views))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=tall)
    places: list[Axes] = list(grid[:, 0])
    upright = any(
        _LETTER_IN * len(node) > own for (_, node, _, _), own in zip(panels, tall, strict=True)
    )
    for axes, (view, node, rows, first) in zip(places, panels, strict=True):
        draw_bars(axes, rows, view.steps)
        _label(axes, node, rows, upright)
        if len(views) > 1 and first:
            axes.set_title(view.said(), loc="left", fontsize=8)
    everything = [bar for _, _, rows, _ in panels for bar in rows]
    _axis(places, everything, [step for view in views for step in view.steps])
    figure.align_ylabels(places)
    heading(figure, title, *legend(everything))
    banner(figure, [view.run for view in views])
    return figure


def _label(axes: Axes, node: str, rows: Rows, upright: bool) -> None:
    """One row bears its node's name, several bear theirs; ``upright``: where it would be longer than a panel is high."""
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
    """Of each algorithm's lowest seed, in their order; where there are too many, those in buckets first."""
    lowest = [min(same, key=lambda run: run.seed) for same in by_algorithm(runs).values()]
    finer = {run.path: bool(run.events.get("bucket")) for run in lowest}
    if not any(finer.values()):
        return []
    kept = sorted(finer, key=lambda path: not finer[path])[:MOST_RUNS]
    return [View(run, (middle(run),), 1) for run in lowest if run.path in kept]


def _scenario(runs: Sequence[Run]) -> str:
    return str(runs[0].manifest["scenario"])


def _shown(views: Sequence[View]) -> str:
    return views[0].said() if len(views) == 1 else "first worker and server"
