"""Claims of the AdaTopK paper (Huang and Gao) about a dynamic network, checked against a comparison
of runs.

python -m analysis.papers.adatopk comparisons/<…>_paper-adatopk_<…>
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import exp
from pathlib import Path
from statistics import fmean

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
    judge,
    keeps,
    no_loss,
    page,
    percent,
    saves,
    saving,
    table,
    written,
)
from analysis.statistics import interval

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
WARM = 18
"""First steps, in which AdaTopK has no choice: its window is not full."""
HIGH = 0.99
_NEAR = 0.1
_LAST = 3
"""Pieces of a record at its end whose training accuracy is looked at."""


def sections(results: Results) -> Sections:
    """Marked parts of the page, of the runs of its plan."""
    runs = results.runs("dynamic")
    return {
        "claims": page([*judge(list(_claims(runs))), *_static(results)]),
        "static": _table_1(results),
        "algorithms": _algorithms(runs),
        "course": _courses(runs),
    }


def _claims(runs: Runs) -> Iterator[Claim]:
    def saved(name: str) -> list[float]:
        return runs.faster("adatopk", name)

    yield saves("AdaTopK saves time against no compression", "29 %", saved("none"), 0.29)
    for name in DC2:
        yield saves(f"… against {name}", "15 % (DC2)", saved(name), 0.15)
    yield Claim("… against topk-0.15", "more", tuple(saved("topk-0.15")), saving)
    yield Claim("… against a fixed density of 0.222", "–", tuple(saved("fixed-at-mean")), saving)

    def gained(mine: str, theirs: str) -> tuple[float, ...]:
        return tuple(runs.differences(mine, theirs, "accuracy"))

    yield keeps("AdaTopK loses no accuracy against none", "yes", gained("adatopk", "none"))
    for name in DC2:
        yield Claim(
            f"AdaTopK is more accurate than {name}", "yes", gained("adatopk", name), percent
        )
    yield Claim(
        "AdaTopK is less accurate than none", "ResNet-50", gained("none", "adatopk"), percent
    )
    declines = tuple(runs.declines("adatopk", WARM))
    yield Claim("AdaTopK's k starts high and declines, after step 18", "yes", declines, _k)
    yield from _chosen(runs)
    yield from _observations(runs)


def _chosen(runs: Runs) -> Iterator[Claim]:
    """Orderings that the rules of our family were chosen by."""
    high = tuple(runs.declines("dc2-da2"))
    yield Claim("DA2's k is high, then low", "yes", high, _k, chosen=True)
    above_ = tuple(runs.differences("dc2-da4", "dc2-da5", "mean_k"))
    yield Claim("mean k: DA4 above DA5", "yes", above_, _k, chosen=True)
    for name in ("dc2-da2", "dc2-da5"):
        logs = tuple(runs.faster(name, "dc2-da4"))
        yield Claim(f"time: {name} below dc2-da4", "yes", logs, saving, chosen=True)
    for name in ("dc2-da4", "dc2-da5", "adatopk", "none", "topk-0.15"):
        less = tuple(runs.differences(name, "dc2-da2", "accuracy"))
        yield Claim(f"accuracy: dc2-da2 below {name}", "lowest", less, percent, chosen=True)


def _observations(runs: Runs) -> Iterator[Claim]:
    for name in ("none", "topk-0.15", "topk-0.01", "topk-0.001"):
        above_ = tuple(each - HIGH for each in _trained(runs, name))
        text = f"observation 1: {name} reaches a training accuracy of 99 % (distance to it)"
        yield Claim(text, "yes", above_, percent)
    for mine, theirs in (("topk-0.15", "none"), ("topk-0.01", "topk-0.15")):
        gained = tuple(runs.differences(mine, theirs, "accuracy"))
        yield Claim(f"observation 2: {mine} is more accurate than {theirs}", "yes", gained, percent)
    trained = zip(_trained(runs, "topk-0.001"), _trained(runs, "none"), strict=True)
    least = tuple(own - other for own, other in trained)
    text = "observation 3: topk-0.001 has none's accuracy on the training set"
    yield keeps(text, "yes", least)
    lost = tuple(runs.differences("none", "topk-0.001", "accuracy"))
    yield Claim("… and less than none's on the test set", "yes", lost, percent)


def _k(value: float) -> str:
    return f"{value:+.4f}"


def _trained(runs: Runs, name: str) -> list[float]:
    """Training accuracy of the last tenth of the steps, by seed."""
    return [fmean(record["train"][-_LAST:]) for record in runs.of(name)]


def _speedup(results: Results, model: str, name: str) -> float:
    runs = results.runs(f"static-{model}")
    (base,), (own,) = (runs.values(each, "step_s").values() for each in ("none", name))
    return base / own


def _static(results: Results) -> Iterator[Row]:
    """Speed-ups of Table 1, which have no variance: within a tenth of the paper's."""
    for model, paper in TABLE.items():
        for name, claimed, near in zip(
            ("topk-0.15", "topk-0.001"), paper, (HOLDS, CHOSEN), strict=True
        ):
            own = _speedup(results, model, name)
            verdict = near if abs(own / claimed - 1) <= _NEAR else NOT
            text = f"{model}, 1 Gbit/s: {name} is so many times as fast as none"
            yield Row(text, f"{claimed:.2f}×", f"{own:.2f}×", verdict)


def _table_1(results: Results) -> str:
    rows_ = []
    for model, paper in TABLE.items():
        speeds = [_speedup(results, model, name) for name in ("topk-0.15", "topk-0.001")]
        cells = [f"{own:.2f} ({claimed:.2f})" for own, claimed in zip(speeds, paper, strict=True)]
        rows_.append([model, "1", *cells])
    return table(["share of", "k = 1", "k = 0.15 (paper)", "k = 0.001 (paper)"], rows_)


def _algorithms(runs: Runs) -> str:
    head = [
        "algorithm",
        "time (s)",
        "speed-up",
        "test accuracy",
        "training accuracy",
        "mean k",
        "MB",
    ]
    rows_ = []
    for name in runs.names():
        speed = interval(runs.faster(name, "none")).through(exp)
        own = runs.of(name)
        sent = [fmean(each[way] for each in own) / 1e6 for way in ("bytes_up", "bytes_down")]
        rows_.append(
            [
                f"`{name}`",
                written(interval([each["time_s"] for each in own]), "{:.2f}"),
                "1" if name == "none" else written(speed, "{:.2f}"),
                written(interval([each["accuracy"] for each in own]), "{:.2%}"),
                written(interval(_trained(runs, name)), "{:.2%}"),
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
    yield Row("DA2's k is high, then low", "yes", written(measured, _K), above(measured))
    measured = runs.difference("dc2-da4", "dc2-da5", "mean_k")
    yield Row("mean k: DA4 above DA5", "yes", written(measured, _K), above(measured))
    for name in ("dc2-da2", "dc2-da5"):
        measured = runs.saved(name, "dc2-da4")
        yield Row(f"time: {name} below DA4", "yes", written(measured, _PERCENT), above(measured))
    for name in (*FAMILY[:1], *FAMILY[2:], "adatopk", "none", "topk-0.15"):
        measured = runs.difference(name, "dc2-da2", "accuracy")
        yield Row(
            f"accuracy: DA2 below {name}", "lowest", written(measured, _POINTS), above(measured)
        )


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
