"""``testbed bench select`` and ``testbed bench threshold``: every selector against what everybody
has, and whether the Laplacian threshold hits its mark in real trainings.

What is timed is the library's whole way from a gradient to indices and values, without error
feedback: the pass for the statistics that every message begins with (``NoMemory``), used or not,
and the selection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from math import log
from random import Random
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from testbed.bench.compress.inputs import (
    UNJUDGED,
    Step,
    Timed,
    Training,
    Vectors,
    check_sparse,
    read_once,
    stated,
    steps,
    threads_of_torch,
    timed,
    vectors_for,
)
from testbed.bench.results import ResultCheck, Say, Suite, at_least, at_most, mean, percentile
from testbed.compress import gradient_stats, kernels
from testbed.compress.base import AccumulatedGradient, Selector, selectors
from testbed.compress.gradient_stats import element_count
from testbed.compress.kernels.base import GradientStatistics
from testbed.compress.kernels.compilation import MAGNITUDE
from testbed.compress.kernels.torch_ops import Operations
from testbed.compress.selectors.laplace import Laplace
from testbed.compress.selectors.topk import Radix
from testbed.errors import InputError

TORCH, NUMPY, READ = "torch.topk", "np.partition", "read_once"
PLAIN = " (PyTorch)"
"""Ends the name of the same method with every pass in plain PyTorch."""
NO_PASSES = ("topk", "dense", "randk")
"""Selectors without passes that could be in PyTorch, or that are in PyTorch anyway."""
BARE = "radix (no statistics)"
"""Without the pass that every message begins with, which radix does not need."""
DENSITY = 0.01
"""For which limits are stated."""
_WARM = 2


@dataclass(frozen=True, slots=True)
class SelectTurn:
    """Result of one call: elements that were chosen, and passes that it says it took."""

    count: int
    passes: float | None = None


@dataclass(frozen=True, slots=True)
class SelectResult:
    """Results of ``testbed bench select``."""

    elements: int
    density: float
    threads: int
    source: str
    about: str
    references: dict[str, float]
    results: dict[str, Timed[SelectTurn]]
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """``{"elements", "density", "threads", "source", "references", "results"}``; times in
        seconds."""
        return {
            "elements": self.elements,
            "density": self.density,
            "threads": self.threads,
            "source": self.source,
            "references": self.references,
            "results": [self._result(name) for name in self.results],
        }

    def suite(self) -> Suite:
        """As a table; with its checks where limits are stated for such a measurement."""
        rows = [
            *({"method": name, "median_s": seconds} for name, seconds in self.references.items()),
            *({**self._result(name), **self._ratios(name)} for name in self.results),
        ]
        title = (
            f"{self.elements:,} elements, density {self.density:g}, threads {self.threads}: "
            f"{self.about}"
        )
        absent = [f"{name}: {reason}" for name, reason in self.left_out.items()]
        if self.density == DENSITY and stated(self.elements, self.threads):
            return Suite(title, rows, self._checks(), absent=absent)
        return Suite(title, rows, [], absent=[*absent, f"{UNJUDGED}, density {DENSITY:g}"])

    def over(self, slower: str, faster: str) -> float:
        """How many times as long one takes as the other."""
        return self._median(slower) / self._median(faster)

    def _ratios(self, name: str) -> dict[str, float]:
        return {
            f"{TORCH} /": self.over(TORCH, name),
            f"{NUMPY} /": self.over(NUMPY, name),
            f"/ {READ}": self.over(name, READ),
        }

    def _checks(self) -> list[ResultCheck]:
        if not {"laplace", "radix"} <= set(self.results):
            return []
        return [
            at_least("torch.topk / laplace", self.over(TORCH, "laplace"), 15.0),
            at_least("np.partition / laplace", self.over(NUMPY, "laplace"), 2.5),
            at_least("radix / laplace", self.over("radix", "laplace"), 1.62),
            at_most("laplace / read once", self.over("laplace", READ), 5.0),
            at_least("np.partition / radix", self.over(NUMPY, "radix"), 1.5),
        ]

    def _median(self, name: str) -> float:
        return self.references[name] if name in self.references else self.results[name].median_s

    def _result(self, name: str) -> dict[str, Any]:
        timing = self.results[name]
        return {
            "method": name,
            "median_s": timing.median_s,
            "achieved_density": fmean(turn.count for turn in timing.results) / self.elements,
            "passes": mean([turn.passes for turn in timing.results if turn.passes is not None]),
        }


def run(
    elements: int, density: float, threads: int, source: str, repeat: int, say: Say
) -> SelectResult:
    """Measure. Raises InputError for what cannot be measured."""
    check_sparse(elements, density)
    given = vectors_for(source, elements, _WARM + repeat, density, threads, say)
    with threads_of_torch(threads):
        return _measured(given, density, threads, source, repeat, say)


def _measured(
    given: Vectors, density: float, threads: int, source: str, repeat: int, say: Say
) -> SelectResult:
    flats = given.flats
    elements = flats[0].numel()
    known, left_out = each_selector(flats[0], density)
    room, mask = np.empty(elements, np.int32), np.empty(elements, np.bool_)
    calls: dict[str, Callable[[int], SelectTurn]] = {
        TORCH: lambda turn: torch_topk(flats[turn], density),
        NUMPY: lambda turn: _np_partition(flats[turn].numpy(), room, mask, density),
        READ: lambda turn: _read(flats[turn]),
    }
    for name, selector in known.items():
        calls[name] = _selecting(selector, flats, density)
        if name not in NO_PASSES:
            calls[name + PLAIN] = _selecting(deepcopy(selector), flats, density, _plain)
    calls[BARE] = _selecting(Radix(), flats, density, statistics=False)
    outcomes = timed(calls, repeat, _WARM, say)
    references = {name: outcomes.pop(name).median_s for name in (TORCH, NUMPY, READ)}
    return SelectResult(
        elements, density, threads, source, given.about, references, outcomes, left_out
    )


def turns(
    elements: int, density: float, count: int, methods: Sequence[str], say: Say
) -> list[Mapping[str, Any]]:
    """Return ``{method, seconds, density}`` of selectors and references by name: a time for every
    turn, on one thread, on recorded gradients that all share turn by turn."""
    check_sparse(elements, density)
    given = vectors_for("recorded", elements, _WARM + count, density, 1, say)
    flats, room = given.flats, np.empty(elements, np.int32)
    known, _ = each_selector(flats[0], density)
    mask = np.empty(elements, np.bool_)
    references: dict[str, Callable[[int], SelectTurn]] = {
        TORCH: lambda turn: torch_topk(flats[turn], density),
        NUMPY: lambda turn: _np_partition(flats[turn].numpy(), room, mask, density),
    }
    calls = {
        name: references.get(name) or _selecting(known[name], flats, density) for name in methods
    }
    with threads_of_torch(1):
        outcomes = timed(calls, count, _WARM, say)
    return [
        {
            "method": name,
            "seconds": outcome.seconds,
            "density": fmean(turn.count for turn in outcome.results) / elements,
        }
        for name, outcome in outcomes.items()
    ]


def each_selector(first: Tensor, density: float) -> tuple[dict[str, Selector[Any]], dict[str, str]]:
    """One of each that is registered, and those that cannot be made without options, with the
    reason."""
    count = element_count(first.numel(), density)
    usual = float(first.abs().topk(count, sorted=False).values.min())
    options: dict[str, dict[str, Any]] = {"threshold": {"at": usual}}
    known: dict[str, Selector[Any]] = {}
    left_out = {}
    for name in selectors:
        try:
            known[name] = selectors.get(name)(**options.get(name, {}))
        except (InputError, TypeError) as error:
            left_out[name] = str(error)
    return known, left_out


def _selecting(
    selector: Selector[Any],
    flats: list[Tensor],
    density: float,
    operations: Callable[[Tensor], Operations] = kernels.of,
    *,
    statistics: bool = True,
) -> Callable[[int], SelectTurn]:
    """One call of ``selector``, with the pass before it, on ``operations`` in place of what it
    would take."""
    rng = Random(1)

    def select(turn: int) -> SelectTurn:
        flat = flats[turn]
        with patch.object(kernels, "of", operations):
            measured = (
                operations(flat).measure(flat) if statistics else GradientStatistics(0.0, 0.0)
            )
            sent = selector.select(
                AccumulatedGradient(flat, measured.sum_abs, measured.max_abs), density, rng
            )
        return SelectTurn(sent.count, None if sent.selection is None else sent.selection.passes)

    return select


def _plain(_: Tensor) -> Operations:
    return Operations()


def _read(flat: Tensor) -> SelectTurn:
    read_once(flat.numpy())
    return SelectTurn(0)


def torch_topk(flat: Tensor, density: float) -> SelectTurn:
    """Indices and values by ``torch.topk`` alone, in no order."""
    count = element_count(flat.numel(), density)
    indices = flat.abs().topk(count, sorted=False).indices
    return SelectTurn(flat[indices].numel())


def _np_partition(
    flat: NDArray[np.float32], room: NDArray[np.int32], chosen: NDArray[np.bool_], density: float
) -> SelectTurn:
    """A fair opponent: its memory is made beforehand, and magnitudes are compared as integers,
    which numpy partitions faster than floats and which are in the same order."""
    count = element_count(flat.size, density)
    bits, mask = flat.view(np.int32), np.int32(MAGNITUDE)
    np.bitwise_and(bits, mask, out=room)
    room.partition(flat.size - count)
    threshold = room[flat.size - count]
    np.bitwise_and(bits, mask, out=room)
    indices = np.flatnonzero(np.greater_equal(room, threshold, out=chosen))
    return SelectTurn(flat[indices].size)


TRAININGS = (
    Training("digits", "cnn", 3.25),
    Training("digits", "mlp", 60.0),
    Training("synthetic", "resnet18", 0.25, batch=16),
)
"""Each has 500,000 parameters at least; all of them are one vector, whose layers differ in
scale."""
DENSITIES = (0.1, 0.01, 0.001)
WARM = 20
"""First steps, which do not count."""
TOLERANCE = 0.05


@dataclass(slots=True)
class CountedSelection:
    """One training at one density; lists have one entry for each step after the first ``WARM``."""

    training: Training
    density: float
    elements: int
    ratios: list[float] = field(default_factory=list)
    """Elements sent over those asked for, or over those that are not 0 where these are fewer."""
    one_shot: list[float] = field(default_factory=list)
    """Elements at or above −b·ln k over those asked for: what the estimate alone would have
    sent."""
    passes: list[float] = field(default_factory=list)
    ties: int = 0
    """Steps in which equal magnitudes left no threshold within the tolerance."""
    fits: list[gradient_stats.Fit] = field(default_factory=list)

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
        self.one_shot.append(operations.count_above(flat, estimate) / wanted)
        if sent.count < wanted * (1 - TOLERANCE):
            wanted = min(wanted, int(flat.count_nonzero()))
        self.ratios.append(sent.count / wanted)
        if sent.selection is not None:
            self.passes.append(sent.selection.passes)
            self.ties += sent.selection.ties > 0

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
            "fit_laplace": mean([fit.laplace for fit in self.fits]),
            "fit_normal": mean([fit.normal for fit in self.fits]),
        }


def measure_thresholds(
    say: Say,
    count: int = 150,
    trainings: Sequence[Training] = TRAININGS,
    densities: Sequence[float] = DENSITIES,
) -> Suite:
    """``count`` steps after the first ``WARM`` of every training at every density."""
    results = [_counted(t, density, count, say) for t in trainings for density in densities]
    ratios = sum(len(result.ratios) for result in results)
    within = sum(result.within * len(result.ratios) for result in results) / ratios
    passes = mean([passes for result in results for passes in result.passes])
    checks = [
        at_least("share of steps within 5 % of the count asked for", within, 0.99),
        at_least(
            "the same, training and density with the least", min(o.within for o in results), 0.99
        ),
        at_most("passes per step, statistics included", passes, 2.5),
        at_most("the same, worst", max(mean(result.passes) or 0.0 for result in results), 2.5),
    ]
    title = f"Laplacian threshold, {count} steps after {WARM}, SGD with error feedback, one worker"
    return Suite(title, [result.to_json() for result in results], checks)


def _counted(training: Training, density: float, count: int, say: Say) -> CountedSelection:
    counted = CountedSelection(training, density, training.elements())
    rng = Random(0)
    for step in islice(steps(training, Laplace(tolerance=TOLERANCE), density), WARM + count):
        if step.number > WARM:
            counted.take(step)
        if step.number % (WARM + count) == 0 or step.number == WARM:
            counted.fits.append(gradient_stats.report(step.given.flat, rng, step.given.sum_abs))
    say(
        f"{training.name} at {density:g}: {counted.within:.1%} of the steps within 5 %, "
        f"{mean(counted.passes) or 0.0:.2f} passes"
    )
    return counted


def _spread(name: str, ratios: Sequence[float]) -> dict[str, float | None]:
    """The ends of the middle nine tenths, and the middle."""
    return {f"{name}_p{share}": percentile(ratios, share / 100) for share in (5, 50, 95)}
