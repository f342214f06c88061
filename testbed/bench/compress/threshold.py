"""``testbed bench threshold``: whether the Laplacian threshold hits its mark in real trainings, and in how many passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import log
from random import Random
from typing import Any

from testbed.bench.compress.timing import Say
from testbed.bench.compress.trained import Step, Training, steps
from testbed.bench.figures import mean, percentile
from testbed.bench.result import Suite, at_least, at_most
from testbed.compress import fit, kernels
from testbed.compress.elements import element_count
from testbed.compress.selectors.laplace import Laplace

TRAININGS = (
    Training("digits", "cnn", 3.25),
    Training("digits", "mlp", 60.0),
    Training("synthetic", "resnet18", 0.25, batch=16),
)
"""Each has 500,000 parameters at least; all of them are one vector, whose layers differ in scale."""
DENSITIES = (0.1, 0.01, 0.001)
WARM = 20
"""First steps, which do not count."""
TOLERANCE = 0.05


@dataclass(slots=True)
class Counted:
    """One training at one density; lists have one entry for each step after the first ``WARM``."""

    training: Training
    density: float
    elements: int
    ratios: list[float] = field(default_factory=list)
    """Elements sent over those asked for, or over those that are not 0 where these are fewer."""
    one_shot: list[float] = field(default_factory=list)
    """Elements at or above −b·ln k over those asked for: what the estimate alone would have sent."""
    passes: list[float] = field(default_factory=list)
    ties: int = 0
    """Steps in which equal magnitudes left no threshold within the tolerance."""
    fits: list[fit.Fit] = field(default_factory=list)

    @property
    def within(self) -> float:
        """Share of steps whose number of elements is right to within the tolerance."""
        return sum(abs(ratio - 1) <= TOLERANCE for ratio in self.ratios) / len(self.ratios)

    def take(self, step: Step) -> None:
        """Count one step."""
        flat, sent = step.given.flat, step.sent
        wanted = element_count(self.elements, self.density)
        operations = kernels.of(flat)
        estimate = -step.given.sum_abs / self.elements * log(self.density)
        self.one_shot.append(operations.count_from(flat, estimate) / wanted)
        if sent.count < wanted * (1 - TOLERANCE):
            wanted = min(wanted, int(flat.count_nonzero()))
        self.ratios.append(sent.count / wanted)
        if sent.how is not None:
            self.passes.append(sent.how.passes)
            self.ties += sent.how.ties > 0

    def to_json(self) -> dict[str, Any]:
        """One row."""
        return {
            "training": self.training.name,
            "elements": self.elements,
            "density": self.density,
            "steps": len(self.ratios),
            "within": self.within,
            "passes": mean(self.passes),
            "ties": self.ties,
            **_spread("sent", self.ratios),
            **_spread("one_shot", self.one_shot),
            "fit_laplace": mean([one.laplace for one in self.fits]),
            "fit_normal": mean([one.normal for one in self.fits]),
        }


def run(
    say: Say,
    count: int = 150,
    trainings: Sequence[Training] = TRAININGS,
    densities: Sequence[float] = DENSITIES,
) -> Suite:
    """``count`` steps after the first ``WARM`` of every training at every density."""
    found = [_counted(t, density, count, say) for t in trainings for density in densities]
    ratios = sum(len(one.ratios) for one in found)
    within = sum(one.within * len(one.ratios) for one in found) / ratios
    passes = mean([passes for one in found for passes in one.passes])
    checks = [
        at_least("share of steps within 5 % of the count asked for", within, 0.99),
        at_least(
            "the same, training and density with the least", min(o.within for o in found), 0.99
        ),
        at_most("passes per step, statistics included", passes, 2.5),
        at_most("the same, worst", max(mean(one.passes) or 0.0 for one in found), 2.5),
    ]
    title = f"Laplacian threshold, {count} steps after {WARM}, SGD with error feedback, one worker"
    return Suite(title, [one.to_json() for one in found], checks)


def _counted(training: Training, density: float, count: int, say: Say) -> Counted:
    counted = Counted(training, density, training.elements())
    rng = Random(0)
    for step in islice(steps(training, Laplace(TOLERANCE), density), WARM + count):
        if step.number > WARM:
            counted.take(step)
        if step.number % (WARM + count) == 0 or step.number == WARM:
            counted.fits.append(fit.report(step.given.flat, rng, step.given.sum_abs))
    say(
        f"{training.name} at {density:g}: {counted.within:.1%} of the steps within 5 %, "
        f"{mean(counted.passes) or 0.0:.2f} passes"
    )
    return counted


def _spread(name: str, ratios: Sequence[float]) -> dict[str, float | None]:
    """The ends of the middle nine tenths, and the middle."""
    return {f"{name}_p{share}": percentile(ratios, share / 100) for share in (5, 50, 95)}
