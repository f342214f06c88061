"""Page of the Laplacian threshold (Chen, Liu and Han): how well distributions fit, what selection
takes, and time to equal accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, log
from statistics import fmean

from analysis.papers import (
    Claim,
    Results,
    Runs,
    Sections,
    factor,
    judge,
    overview,
    page,
    table,
    times_as_fast,
    written,
)
from analysis.statistics import interval

ACCURACY = 0.9
OURS, RADIX, SAMPLED = "laplace-0.01", "radix-0.01", "hierarchical-0.01"
PAPER = {RADIX: 1.62, SAMPLED: 1.30}
"""Speed-ups of training, at most, that the paper has."""
LINKS = {"fast": "10 Gbit/s", "slow": "1 Gbit/s"}
_LEAST = 512
"""Elements above which the estimate is used; smaller parameters are chosen from exactly."""


def sections(results: Results) -> Sections:
    """The page's marked parts."""
    if "fits" not in results.groups:
        return overview(results)
    return {
        "claims": page(judge(list(_claims(results)))),
        "selection": _selection(results),
        "runs": _runs(results),
        "fits": _fits(results.runs("fits")),
    }


def _claims(results: Results) -> Iterator[Claim]:
    yield Claim(
        "gradients of layers are nearer to a Laplace than to a normal distribution "
        "(ratio of 1-Wasserstein distances)",
        "yes",
        tuple(_nearer(results.runs("fits"))),
        factor,
    )
    for group, links in LINKS.items():
        for other, claimed in PAPER.items():
            yield times_as_fast(
                f"time to {ACCURACY:.0%} against {_plain(other)}, links of {links}",
                f"up to {claimed:.2f}×",
                results.runs(group).faster(OURS, other, ACCURACY),
                claimed,
            )
    for other in PAPER:
        yield Claim(
            f"no more steps to {ACCURACY:.0%} than with {_plain(other)} (margin 5 %)",
            "same accuracy",
            tuple(_steps(results.runs("fast"), other)),
            factor,
            -log(1.05),
            -log(1.05),
            -log(1.05),
        )
    for other, claimed in PAPER.items():
        yield times_as_fast(
            f"selection alone against {_plain(other)}, one thread of this machine",
            f"(training: {claimed:.2f}×)",
            _turns(results, _plain(other)),
            claimed,
        )


def _plain(algorithm: str) -> str:
    return algorithm.removesuffix("-0.01")


def _nearer(runs: Runs) -> Iterator[float]:
    """Mean over steps and layers of log(distance to a normal ÷ to a Laplace distribution), by
    seed."""
    for record in runs.of("laplace-fitted"):
        yield fmean(
            log(normal / laplace)
            for _, _, size, laplace, normal in record["fits"]
            if size > _LEAST and laplace and normal
        )


def _steps(runs: Runs, other: str) -> Iterator[float]:
    """log(their steps ÷ own) to the accuracy, by seed."""
    own, theirs = runs.reached(OURS, ACCURACY), runs.reached(other, ACCURACY)
    for seed in sorted(set(own) & set(theirs)):
        yield log(theirs[seed][1] / own[seed][1])


def _turns(results: Results, other: str) -> list[float]:
    """log(their time ÷ own) of every turn, which had the same gradient."""
    seconds = _seconds(results)
    return [log(b / a) for a, b in zip(seconds["laplace"], seconds[other], strict=True)]


def _seconds(results: Results) -> Mapping[str, list[float]]:
    return {row["method"]: row["seconds"] for row in results.measured["selection"]}


def _selection(results: Results) -> str:
    ours, rows = _seconds(results)["laplace"], []
    for row in results.measured["selection"]:
        seconds = row["seconds"]
        times = interval([log(b / a) for a, b in zip(ours, seconds, strict=True)]).through(exp)
        rows.append(
            [
                f"`{row['method']}`",
                f"{1e3 * fmean(seconds):.1f}",
                written(times, "{:.2f}"),
                f"{row['density']:.4f}",
            ]
        )
    return table(["method", "ms", "over `laplace`", "sent"], rows)


def _runs(results: Results) -> str:
    rows = []
    for group, links in LINKS.items():
        runs = results.runs(group)
        for name in runs.names():
            reached = runs.reached(name, ACCURACY)
            against = interval(runs.faster(OURS, name, ACCURACY)).through(exp)
            own = runs.of(name)
            rows.append(
                [
                    links,
                    f"`{name}`",
                    f"{len(reached)} of {len(own)}",
                    written(interval([at[0] for at in reached.values()]), "{:.2f}"),
                    f"{fmean(at[1] for at in reached.values()):.0f}" if reached else "–",
                    f"{1e3 * fmean(each['step_s'] for each in own):.1f}",
                    "1" if name == OURS else written(against, "{:.2f}"),
                ]
            )
    head = ["links", "algorithm", "seeds", "to 90 % (s)", "steps", "a step (ms)", "over `laplace`"]
    return table(head, rows)


def _fits(runs: Runs) -> str:
    """Distances by step: means over layers of more than ``_LEAST`` elements and seeds."""
    records = runs.of("laplace-fitted")
    steps = sorted({fit[0] for record in records for fit in record["fits"]})
    rows = []
    for step in steps:
        fits = [f for r in records for f in r["fits"] if f[0] == step and f[2] > _LEAST]
        shares = [fit[3] < fit[4] for fit in fits]
        rows.append(
            [
                str(step),
                f"{fmean(fit[3] for fit in fits):.3f}",
                f"{fmean(fit[4] for fit in fits):.3f}",
                f"{fmean(shares):.0%}",
            ]
        )
    head = ["step", "to a Laplace distribution", "to a normal one", "layers nearer to Laplace"]
    return table(head, rows)
