"""Claims of the AdaTopK paper (Huang and Gao) about a dynamic network, checked against a comparison
of runs.

python -m analysis.papers.adatopk comparisons/<…>_paper-adatopk_<…>
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import exp
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from analysis.papers import (
    CHOSEN,
    HOLDS,
    NOT,
    Claim,
    Results,
    Row,
    Runs,
    Sections,
    above,
    as_much,
    gpu_setup,
    gpu_speedup,
    gpu_steps,
    judge,
    keeps,
    no_loss,
    overview,
    page,
    percent,
    saves,
    saving,
    table,
    with_figure,
    written,
)
from analysis.statistics import Interval, interval, sound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILY = tuple(f"dc2-da{number}" for number in range(1, 6))
ABLATIONS = ("fixed-at-mean", "walk-at-mean", "topk-0.15")
_PERCENT, _POINTS, _K = "{:.1%}", "{:+.2%}", "{:+.4f}"
DC2 = ("dc2-da2", "dc2-da4", "dc2-da5")
TABLE = {
    "resnet18": (1.26, 1.59),
    "vgg19": (1.25, 1.62),
    "resnet34": (1.26, 1.66),
    "resnet50": (1.25, 2.05),
}
"""Speed-ups of Table 1, with k = 0.15 and 0.001."""
STATIC = ("topk-0.15", "topk-0.001")
WARM = 18
"""First steps that do not count: AdaTopK has no choice until step 19, when its window is full."""
_FASTER = ("dc2-da2", "dc2-da5")
_NOT_50 = "yes, but for ResNet-50"
_LESS_ACCURATE = {"dc2-da2": "yes", "dc2-da4": _NOT_50, "dc2-da5": "yes, but for VGG-19"}
_LESS_ACCURATE |= {"none": "ResNet-18"}
"""Algorithms that are less accurate than AdaTopK, and with which models, as the paper has it."""
HIGH, _NEAR = 0.99, 0.1
_LATE = 2 / 3
"""Share of a run after which its end begins."""
Course = tuple[list[float], list[float]]
"""Steps, and a value for each."""
_LAST = 3
"""Pieces of a record at its end whose training accuracy is looked at."""
ROBUST = 0.95
"""Share of the family's settings in which an ordering holds that does not hang on constants."""


def sections(results: Results) -> Sections:
    """Marked parts of the page, of the runs of its plan."""
    if "family" in results.groups:
        return {"about": _ABOUT, "orderings": _family(results), "apart": _apart(results)}
    if "device" in results.measured:
        return {"about": gpu_setup(results), "steps": gpu_steps(results)}
    if "dynamic" not in results.groups:
        return overview(results)
    runs = results.runs("dynamic")
    pictured = {
        "static": _table_1(results),
        "algorithms": _algorithms(runs),
        "course": _courses(runs),
    }
    return {
        "claims": page([*judge(list(_claims(runs))), *_static(results)]),
        **{name: _with_figures(name, text) for name, text in pictured.items()},
    }


FIGURES = {
    "fig1": ("algorithms", "Fig. 1: accuracy on training and test set by step, for several k"),
    "fig2": ("static", "Fig. 2: speed-ups against no compression; dashes: the paper's Table 1"),
    "fig3": ("algorithms", "Fig. 3: test accuracy in the last third, k = 0.001 left out"),
    "fig4": ("course", "Fig. 4: k by step"),
}
"""The paper's figures of our runs: the section that each stands in, and its caption."""
_FIXED = ("none", "topk-0.15", "topk-0.01", "topk-0.001")


def _with_figures(section: str, text: str) -> str:
    for name, (own_section, caption) in FIGURES.items():
        if own_section == section:
            text = with_figure(text, name, caption)
    return text


def figures(results: Results) -> dict[str, Figure]:
    """Figures 1 to 4 of the paper, means over seeds."""
    from analysis.style import COLUMN_IN, PAGE_IN, grouped_bars, heading, look, new_figure

    if "family" in results.groups:
        return {}
    runs = results.runs("dynamic")

    def lines(axes: Axes, names: Sequence[str], course: Callable[[str], Course]) -> list[Any]:
        return [
            axes.plot(*course(name), **look(index), markevery=0.2)[0]
            for index, name in enumerate(names)
        ]

    drawn = {name: new_figure(PAGE_IN, 2.5) for name in ("fig1", "fig2")}
    drawn |= {name: new_figure(COLUMN_IN + 1.0, 2.7) for name in ("fig3", "fig4")}
    training, test = drawn["fig1"].subplots(1, 2, sharey=True)
    handles = lines(training, _FIXED, partial(_pieces, runs, "train"))
    lines(test, _FIXED, partial(_tested, runs))
    training.set(xlabel="Step", ylabel="Accuracy", title="training set")
    test.set(xlabel="Step", title="test set")
    heading(drawn["fig1"], "Accuracy", handles, _FIXED)
    static, dynamic = drawn["fig2"].subplots(1, 2, width_ratios=(1, 1.4))
    ratios = [{model: _speedup(results, model, name) for model in TABLE} for name in STATIC]
    handles = grouped_bars(static, list(TABLE), ratios)
    for side, claimed in zip((-0.2, 0.2), zip(*TABLE.values(), strict=True), strict=True):
        static.plot([index + side for index in range(len(TABLE))], claimed, "k_", markersize=9)
    static.margins(y=0.35)  # room for the legend
    static.legend(handles, ["k = 0.15", "k = 0.001"])
    static.set(ylabel="Time of none ÷ time", title="1 Gbit/s")
    others = [name for name in runs.names() if name != "none"]
    own = {name: exp(fmean(runs.faster(name, "none"))) for name in others}
    grouped_bars(dynamic, others, [own])
    dynamic.set_title("1.15 to 1.45 Gbit/s")
    for axes, names in ((static, list(TABLE)), (dynamic, others)):
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes = drawn["fig3"].subplots()
    names = [name for name in runs.names() if name != "topk-0.001"]
    handles = lines(axes, names, partial(_tested, runs, since=_LATE))
    axes.set(xlabel="Step", ylabel="Test accuracy")
    heading(drawn["fig3"], "Test accuracy at the end", handles, names)
    axes = drawn["fig4"].subplots()
    names = ["adatopk", *DC2]
    handles = lines(axes, names, partial(_pieces, runs, "density"))
    axes.set(xlabel="Step", ylabel="k", ylim=(0, None))
    heading(drawn["fig4"], "k", handles, names)
    return drawn


def _pieces(runs: Runs, measure: str, name: str) -> Course:
    """The steps at which pieces of a record's course end, and the mean over seeds."""
    own = runs.of(name)
    means = [fmean(values) for values in zip(*(each[measure] for each in own), strict=True)]
    return [float(each) * own[0]["every"] for each in range(1, len(means) + 1)], means


def _tested(runs: Runs, name: str, since: float = 0.0) -> Course:
    """Steps of evaluations after a share of the run, and the mean accuracy over seeds."""
    columns = [list(zip(*each["evaluations"], strict=True)) for each in runs.of(name)]
    steps = [float(step) for step in columns[0][0]]
    means = [fmean(values) for values in zip(*(each[2] for each in columns), strict=True)]
    first = sum(step <= since * steps[-1] for step in steps)
    return steps[first:], means[first:]


def _claims(runs: Runs) -> Iterator[Claim]:
    def saved(name: str) -> list[float]:
        return runs.faster("adatopk", name)

    yield saves("AdaTopK saves time against no compression", "29 %", saved("none"), 0.29)
    for name in DC2:
        yield saves(f"… against {name}", "15 % (DC2)", saved(name), 0.15)
    yield Claim("… against a fixed density of 0.222", "–", tuple(saved("fixed-at-mean")), saving)
    for name in ("topk-0.15", "dc2-da4"):
        yield Claim(f"AdaTopK takes less time than {name}", "yes", tuple(saved(name)), saving)
    for name in _FASTER:
        less = tuple(runs.faster(name, "adatopk"))
        yield Claim(f"{name} takes less time than AdaTopK", "yes", less, saving)

    def gained(mine: str, theirs: str) -> tuple[float, ...]:
        return tuple(runs.differences(mine, theirs, "accuracy"))

    for name, paper in (("none", _NOT_50), ("topk-0.15", "ResNet-18, ResNet-34")):
        yield keeps(f"AdaTopK loses no accuracy against {name}", paper, gained("adatopk", name))
    for name, paper in _LESS_ACCURATE.items():
        text, chosen = f"AdaTopK is more accurate than {name}", name == "dc2-da2"
        yield Claim(text, paper, gained("adatopk", name), percent, chosen=chosen)
    for mine, name, paper in (("AdaTopK", "adatopk", "ResNet-50"), ("dc2-da5", "dc2-da5", "yes")):
        yield Claim(f"{mine} is less accurate than none", paper, gained("none", name), percent)
    declines = tuple(runs.declines("adatopk", WARM))
    text = f"AdaTopK's k, which starts at its largest by our choice, declines after step {WARM}"
    yield Claim(text, "yes", declines, _K.format)
    yield from _chosen(runs)
    yield from _observations(runs)


def _chosen(runs: Runs) -> Iterator[Claim]:
    """Orderings that the rules of our family were chosen by."""
    high = tuple(runs.declines("dc2-da2"))
    yield Claim("DA2's k is high, then low", "yes", high, _K.format, chosen=True)
    above_ = tuple(runs.differences("dc2-da4", "dc2-da5", "mean_k"))
    yield Claim("mean k: DA4 above DA5", "yes", above_, _K.format, chosen=True)
    for name in (*_FASTER, "topk-0.15"):
        logs = tuple(runs.faster(name, "dc2-da4"))
        yield Claim(f"time: {name} below dc2-da4", "yes", logs, saving, chosen=name in _FASTER)
    for name in ("dc2-da4", "dc2-da5", "none", "topk-0.15"):
        less = tuple(runs.differences(name, "dc2-da2", "accuracy"))
        yield Claim(f"accuracy: dc2-da2 below {name}", "lowest", less, percent, chosen=True)


def _observations(runs: Runs) -> Iterator[Claim]:
    for name, paper in zip(_FIXED, ("very high", "above 99 %", "100 %", "high"), strict=True):
        above_ = tuple(each - HIGH for each in _trained(runs, name).values())
        text = f"observation 1: {name} reaches a training accuracy of 99 % (distance to it)"
        yield Claim(text, paper, above_, percent)
    for mine, theirs, paper in (
        ("topk-0.15", "none", "ResNet-18, ResNet-50"),
        ("topk-0.01", "topk-0.15", "VGG-19"),
    ):
        gained = tuple(runs.differences(mine, theirs, "accuracy"))
        text = f"observation 2: {mine} is more accurate than {theirs}"
        yield Claim(text, paper, gained, percent)
    own, other = (_trained(runs, name) for name in ("topk-0.001", "none"))
    least = tuple(own[seed] - other[seed] for seed in own if seed in other)
    text = "observation 3: topk-0.001 has none's accuracy on the training set"
    yield keeps(text, "high", least)
    lost = tuple(runs.differences("none", "topk-0.001", "accuracy"))
    yield Claim("… and less than none's on the test set", "yes", lost, percent)


_ABOUT = "What this is, and how it is judged: [README.md](README.md#orderings-within-the-family)."
_FEWEST = 20
"""Settings from which an ordering is judged."""
Holding = tuple[int, int]
"""In how many settings an ordering holds, and in how many it was looked at."""


def _modelled(results: Results) -> dict[str, Holding]:
    """Orderings of densities and times in the model."""
    by_setting: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in results.measured["model"]:
        if row["setting"]:
            by_setting.setdefault(row["setting"], {})[row["rule"]] = row
    return _orderings_of(list(by_setting.values()))


def _run(results: Results) -> dict[str, Holding]:
    """The same in runs, and orderings of accuracies."""
    settings: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for record in sound(list(results.groups["family"])):
        rule, _, number = record["algorithm"].rpartition("-")
        settings.setdefault((number, record["seed"]), {})[rule] = record
    beside = {
        (each["algorithm"], each["seed"]): each
        for each in sound(list(results.groups.get("beside", ())))
    }
    for (_, seed), of in settings.items():
        of.update({name: beside[name, seed] for name in _BESIDE if (name, seed) in beside})
    return _orderings_of(list(settings.values()))


_BESIDE = ("adatopk", "none", "topk-0.15")
CHOSEN_BY = (
    ("dc2-da5", "dc2-da4", "mean_k"),
    ("dc2-da2", "dc2-da4", "time_s"),
    ("dc2-da5", "dc2-da4", "time_s"),
    *(("dc2-da2", other, "accuracy") for other in ("dc2-da4", "dc2-da5", *_BESIDE)),
)
"""Orderings that our rules were chosen by: the first has less of it than the second."""
_OWN = tuple(
    pair
    for other in DC2
    for pair in (("adatopk", other, "time_s"), (other, "adatopk", "accuracy"))
    if pair not in CHOSEN_BY
)
_FALLS = "DA2's k is high, then low"


def _orderings_of(settings: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Holding]:
    falls = [of[DC2[0]]["decline"] > 0 for of in settings if DC2[0] in of]
    counts = {_FALLS: (sum(falls), len(falls))}
    for less, more, measure in (*CHOSEN_BY, *_OWN):
        known = [
            of[less][measure] < of[more][measure]
            for of in settings
            if measure in of.get(less, ()) and measure in of.get(more, ())
        ]
        if known:
            counts[_text(less, more, measure)] = sum(known), len(known)
    return counts


def _text(less: str, more: str, measure: str) -> str:
    what = {"mean_k": "mean k", "time_s": "time"}.get(measure, measure)
    return f"{what}: {less} below {more}"


def _family(results: Results) -> str:
    """In how many of the family's settings each ordering holds."""
    model, runs = _modelled(results), _run(results)
    chosen = {_FALLS, *(_text(*each) for each in CHOSEN_BY)}
    rows_ = []
    for text, own in runs.items():
        of = model.get(text)
        cells = ["–" if each is None else f"{each[0]} of {each[1]}" for each in (of, own)]
        rows_.append([text, "yes" if text in chosen else "–", *cells, _robust(*(of or own))])
    return table(["ordering, as in the paper", "chosen by", "model", "runs", ""], rows_)


def _apart(results: Results) -> str:
    """How far the model is from the runs of the same settings."""
    model = {(row["rule"], str(row["setting"])): row for row in results.measured["model"]}
    pairs = [
        (model[rule, number], record)
        for record in sound(list(results.groups["family"]))
        for rule, _, number in (record["algorithm"].rpartition("-"),)
    ]
    rows_ = []
    for rule in DC2:
        own = [(of, run) for of, run in pairs if of["rule"] == rule]
        times = interval([of["time_s"] / run["time_s"] - 1 for of, run in own])
        k = interval([of["mean_k"] - run["mean_k"] for of, run in own])
        worst = max(abs(of["time_s"] / run["time_s"] - 1) for of, run in own)
        cells = [written(times, "{:+.1%}"), f"{worst:.1%}", written(k, _K)]
        rows_.append([f"`{rule}`", str(len(own)), *cells])
    return table(["rule", "runs", "time: model over run − 1", "at most", "mean k: apart"], rows_)


def _robust(holding: int, count: int) -> str:
    if count < _FEWEST:
        return "too few"
    if holding >= ROBUST * count:
        return "**robust**"
    return "**reversed**" if holding <= (1 - ROBUST) * count else "**hangs on constants**"


def _trained(runs: Runs, name: str) -> dict[int, float]:
    """Training accuracy of the last tenth of the steps, by seed."""
    return {int(each["seed"]): fmean(each["train"][-_LAST:]) for each in runs.of(name)}


def _speedup(results: Results, model: str, name: str) -> float:
    runs = results.runs(f"static-{model}")
    (base,), (own,) = (runs.values(each, "step_s").values() for each in ("none", name))
    return base / own


def _static(results: Results) -> Iterator[Row]:
    """Speed-ups of Table 1, which have no variance: within a tenth of the paper's."""
    for model, paper in TABLE.items():
        for name, claimed, near in zip(STATIC, paper, (HOLDS, CHOSEN), strict=True):
            own = _speedup(results, model, name)
            verdict = near if abs(own / claimed - 1) <= _NEAR else NOT
            text = f"{model}, 1 Gbit/s: {name} is so many times as fast as none"
            yield Row(text, f"{claimed:.2f}×", f"{own:.2f}×", verdict)


def _table_1(results: Results) -> str:
    head, rows_ = ["share of", "k = 1", "k = 0.15 (paper)", "k = 0.001 (paper)"], []
    for model, paper in TABLE.items():
        speeds = [_speedup(results, model, name) for name in STATIC]
        cells = [f"{own:.2f} ({claimed:.2f})" for own, claimed in zip(speeds, paper, strict=True)]
        if results.gpu is not None:
            cells += [gpu_speedup(results.gpu, f"static-{model}", name) for name in STATIC]
        rows_.append([model, "1", *cells])
    if results.gpu is None:
        return table(head, rows_)
    head += [f"k = {k:g}, measured on a GPU" for k in (0.15, 0.001)]
    return f"{table(head, rows_)}\n\n{gpu_setup(results.gpu)}"


def _algorithms(runs: Runs) -> str:
    head = ["algorithm", "time (s)", "speed-up"]
    head += ["test accuracy", "training accuracy", "mean k", "MB"]
    rows_ = []
    for name in runs.names():
        speed = interval(runs.faster(name, "none")).through(exp)
        own = runs.of(name)
        sent = [fmean(each[key] for each in own) / 1e6 for key in ("bytes_up", "bytes_down")]
        rows_.append(
            [
                f"`{name}`",
                written(interval([each["time_s"] for each in own]), "{:.2f}"),
                "1" if name == "none" else written(speed, "{:.2f}"),
                written(interval([each["accuracy"] for each in own]), "{:.2%}"),
                written(interval([*_trained(runs, name).values()]), "{:.2%}"),
                f"{fmean(each['mean_k'] for each in own):.4f}",
                f"{sent[0]:.1f} / {sent[1]:.1f}",
            ]
        )
    return table(head, rows_)


def _courses(runs: Runs) -> str:
    """Mean k of ten parts of a run, over seeds."""
    rows_ = []
    for name in ("adatopk", *DC2):
        density = [record["density"] for record in runs.of(name)]
        size = len(density[0]) // 10
        parts = [
            fmean(k for own in density for k in own[i * size : (i + 1) * size]) for i in range(10)
        ]
        rows_.append([f"`{name}`", *(f"{part:.3f}" for part in parts)])
    return table(["algorithm", *(f"{number}" for number in range(1, 11))], rows_)


def rows(runs: Runs) -> Iterator[Row]:
    """All claims, in the order of the page."""
    yield from _times(runs)
    yield from _accuracies(runs)
    yield from _orderings(runs)
    yield from _band(runs)


def _times(runs: Runs) -> Iterator[Row]:
    saved = runs.saved("adatopk", "none")
    yield Row(
        "AdaTopK saves time against no compression",
        "29 %",
        written(saved, _PERCENT),
        as_much(saved, 0.29),
    )
    for name in FAMILY:
        saved = runs.saved("adatopk", name)
        yield Row(f"… against {name}", "15 % (DC2)", written(saved, _PERCENT), as_much(saved, 0.15))
    for name in ABLATIONS:
        saved = runs.saved("adatopk", name)
        claim = "more" if name == "topk-0.15" else "–"
        yield Row(f"… against {name}", claim, written(saved, _PERCENT), above(saved))


def _accuracies(runs: Runs) -> Iterator[Row]:
    for name in ("none", *FAMILY, *ABLATIONS):
        difference = runs.difference("adatopk", name, "accuracy")
        yield Row(
            f"AdaTopK loses no accuracy against {name} (margin 0.5 points)",
            "none lost" if name == "none" else "–",
            written(difference, _POINTS),
            no_loss(difference),
        )


def _orderings(runs: Runs) -> Iterator[Row]:
    mean_k = interval([*runs.values("adatopk", "mean_k").values()])
    yield Row("AdaTopK's mean k (the ablations have 0.222)", "–", written(mean_k, "{:.4f}"), "–")
    measured = runs.decline("adatopk")
    yield Row(
        "AdaTopK's k starts high and declines (first tenth − second half)",
        "yes",
        written(measured, _K),
        above(measured),
    )
    measured = runs.decline("dc2-da2")
    yield Row("DA2's k is high, then low", "yes", written(measured, _K), _by_choice(measured))
    measured = runs.difference("dc2-da4", "dc2-da5", "mean_k")
    yield Row("mean k: DA4 above DA5", "yes", written(measured, _K), _by_choice(measured))
    for name in ("dc2-da2", "dc2-da5"):
        measured = runs.saved(name, "dc2-da4")
        text = f"time: {name} below DA4"
        yield Row(text, "yes", written(measured, _PERCENT), _by_choice(measured))
    for name in (*FAMILY[:1], *FAMILY[2:], "adatopk", "none", "topk-0.15"):
        measured = runs.difference(name, "dc2-da2", "accuracy")
        text = f"accuracy: DA2 below {name}"
        yield Row(text, "lowest", written(measured, _POINTS), _by_choice(measured))


def _by_choice(measured: Interval) -> str:
    """The verdict on an ordering that our rules were chosen by."""
    said = above(measured)
    return CHOSEN if said == HOLDS else said


def _band(runs: Runs) -> Iterator[Row]:
    for name in runs.names():
        if name.startswith("adatopk-"):
            saved, lost = runs.saved(name, "none"), runs.difference(name, "none", "accuracy")
            verdicts = f"{as_much(saved, 0.29)} / {no_loss(lost)}"
            both = f"{written(saved, _PERCENT)}; {written(lost, _POINTS)}"
            yield Row(
                f"{name}: time saved; accuracy, against none", "29 %; none lost", both, verdicts
            )


if __name__ == "__main__":
    sys.stdout.write(page(list(rows(Runs.read(Path(sys.argv[1]))))) + "\n")
