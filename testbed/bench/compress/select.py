"""``testbed bench select``: every selector against what everybody has, over the same vectors, in turns.

What is timed is the library's whole way from a gradient to indices and values, without error feedback: the
pass for the statistics that every message begins with (``Forget``), used or not, and the selection.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.bench.compress.recorded import Vectors, vectors
from testbed.bench.compress.timing import UNJUDGED, Say, Timed, read_once, stated, timed
from testbed.bench.figures import mean
from testbed.bench.result import Check, Suite, at_least, at_most
from testbed.compress import kernels
from testbed.compress.base import Compensated, Selector, selectors
from testbed.compress.elements import check_density, element_count
from testbed.compress.kernels import Operations, Statistics
from testbed.compress.kernels.grid import MAGNITUDE
from testbed.compress.kernels.reference import Reference
from testbed.compress.selectors.radix import Radix
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
class Turn:
    """What came of one call: elements that were chosen, and passes that it says it took."""

    count: int
    passes: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What ``testbed bench select`` measured."""

    elements: int
    density: float
    threads: int
    source: str
    about: str
    references: dict[str, float]
    results: dict[str, Timed[Turn]]
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """``{"elements", "density", "threads", "source", "references", "results"}``; times in seconds."""
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
        title = f"{self.elements:,} elements, density {self.density:g}, threads {self.threads}: {self.about}"
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

    def _checks(self) -> list[Check]:
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


def run(elements: int, density: float, threads: int, source: str, repeat: int, say: Say) -> Found:
    """Measure. Raises InputError for what cannot be measured."""
    check_density(density)
    if element_count(elements, density) == elements:
        raise InputError(
            f"density {density:g} of {elements} elements is all of them", where="--density"
        )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(max(before, threads))
        given = vectors(source, elements, _WARM + repeat, density, say)
        torch.set_num_threads(threads)
        return _measured(given, density, threads, source, repeat, say)
    finally:
        torch.set_num_threads(before)


def _measured(
    given: Vectors, density: float, threads: int, source: str, repeat: int, say: Say
) -> Found:
    flats = given.flats
    elements = flats[0].numel()
    made, left_out = _selectors(flats[0], density)
    room, mask = np.empty(elements, np.int32), np.empty(elements, np.bool_)
    calls: dict[str, Callable[[int], Turn]] = {
        TORCH: lambda turn: _torch_topk(flats[turn], density),
        NUMPY: lambda turn: _np_partition(flats[turn].numpy(), room, mask, density),
        READ: lambda turn: _read(flats[turn]),
    }
    for name, selector in made.items():
        calls[name] = _selecting(selector, flats, density)
        if name not in NO_PASSES:
            calls[name + PLAIN] = _selecting(deepcopy(selector), flats, density, _plain)
    calls[BARE] = _selecting(Radix(), flats, density, statistics=False)
    outcomes = timed(calls, repeat, _WARM, say)
    references = {name: outcomes.pop(name).median_s for name in (TORCH, NUMPY, READ)}
    return Found(elements, density, threads, source, given.about, references, outcomes, left_out)


def _selectors(first: Tensor, density: float) -> tuple[dict[str, Selector], dict[str, str]]:
    """One of each that is registered, and those that cannot be made without options, with the reason."""
    usual = float(
        first.abs().kthvalue(first.numel() - element_count(first.numel(), density) + 1).values
    )
    options: dict[str, dict[str, Any]] = {"threshold": {"at": usual}}
    made: dict[str, Selector] = {}
    left_out = {}
    for name in selectors:
        try:
            made[name] = selectors.get(name)(**options.get(name, {}))
        except TypeError as error:
            left_out[name] = str(error)
    return made, left_out


def _selecting(
    selector: Selector,
    flats: list[Tensor],
    density: float,
    operations: Callable[[Tensor], Operations] = kernels.of,
    *,
    statistics: bool = True,
) -> Callable[[int], Turn]:
    """One call of ``selector``, with the pass before it, on ``operations`` in place of what it would take."""
    rng = Random(1)

    def select(turn: int) -> Turn:
        flat = flats[turn]
        with patch.object(kernels, "of", operations):
            seen = operations(flat).measure(flat) if statistics else Statistics(0.0, 0.0)
            sent = selector.select(Compensated(flat, seen.sum_abs, seen.max_abs), density, rng)
        return Turn(sent.count, None if sent.how is None else sent.how.passes)

    return select


def _plain(_: Tensor) -> Operations:
    return Reference()


def _read(flat: Tensor) -> Turn:
    read_once(flat.numpy())
    return Turn(0)


def _torch_topk(flat: Tensor, density: float) -> Turn:
    count = element_count(flat.numel(), density)
    indices = flat.abs().topk(count, sorted=False).indices
    return Turn(flat[indices].numel())


def _np_partition(
    flat: NDArray[np.float32], room: NDArray[np.int32], chosen: NDArray[np.bool_], density: float
) -> Turn:
    """A fair opponent: its memory is made beforehand, and magnitudes are compared as integers, which numpy
    partitions faster than floats and which are in the same order."""
    count = element_count(flat.size, density)
    bits, mask = flat.view(np.int32), np.int32(MAGNITUDE)
    np.bitwise_and(bits, mask, out=room)
    room.partition(flat.size - count)
    threshold = room[flat.size - count]
    np.bitwise_and(bits, mask, out=room)
    indices = np.flatnonzero(np.greater_equal(room, threshold, out=chosen))
    return Turn(flat[indices].size)
