"""Claims of the AdaTopK paper (Huang and Gao) about a dynamic network, checked against a comparison
of runs.

python -m analysis.papers.adatopk comparisons/<…>_paper-adatopk_<…>
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from analysis.papers import Row, Runs, above, as_much, no_loss, page, written
from analysis.statistics import interval

FAMILY = tuple(f"dc2-da{number}" for number in range(1, 6))
ABLATIONS = ("fixed-at-mean", "walk-at-mean", "topk-0.15")
_PERCENT, _POINTS, _K = "{:.1%}", "{:+.2%}", "{:+.4f}"


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
