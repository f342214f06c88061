"""How far simulated step times are from measured ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median, stdev
from typing import Any

from testbed.bench.agreement.matrix import Cell
from testbed.bench.result import Check, Row, Suite, at_least, at_most

NEAR, FAR, SHARE = 0.05, 0.10, 0.9
"""So many of the runs are to be within ``NEAR``, and all within ``FAR``."""
_NORMAL_95 = 1.96

Lengths = Mapping[Cell, Mapping[str, Sequence[float]]]
"""Seconds of every step but the first, by cell and algorithm."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One algorithm in one cell: mean seconds of a step, measured (with the 95 % half width) and simulated."""

    cell: Cell
    algorithm: str
    measured_s: float
    half_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_s / self.measured_s - 1

    def row(self) -> Row:
        """For the table."""
        return {
            **self.cell.to_json(), "algorithm": self.algorithm, "measured_s": self.measured_s,
            "half_s": self.half_s, "simulated_s": self.simulated_s, "error": self.error,
            "judged": not self.cell.calibrates,
        }  # fmt: skip


def pairs(measured: Lengths, simulated: Lengths) -> list[Pair]:
    """All runs that are in both."""
    return list(_pairs(measured, simulated))


def misfit(found: Sequence[Pair]) -> tuple[float, float]:
    """What calibration makes small: the share of runs that are further off than ``NEAR``, then the root mean square."""
    far = fmean(abs(pair.error) > NEAR for pair in found)
    return far, fmean(pair.error**2 for pair in found) ** 0.5


def verdict(found: Sequence[Pair], about: Mapping[str, Any]) -> Suite:
    """The half that judges, against its limits; all runs are rows."""
    judged = [pair for pair in found if not pair.cell.calibrates]
    return Suite(
        title="Mean step time in virtual time against real links",
        rows=[pair.row() for pair in found],
        checks=list(_checks(judged)),
        about={**about, "runs": len(found), "judged": len(judged)},
    )


def _pairs(measured: Lengths, simulated: Lengths) -> Iterator[Pair]:
    for cell, by_algorithm in measured.items():
        for algorithm, lengths in by_algorithm.items():
            if algorithm in simulated.get(cell, {}):
                half = (
                    _NORMAL_95 * stdev(lengths) / len(lengths) ** 0.5 if len(lengths) > 1 else 0.0
                )
                there = fmean(simulated[cell][algorithm])
                yield Pair(cell, algorithm, fmean(lengths), half, there)


def _checks(judged: Sequence[Pair]) -> Iterator[Check]:
    errors = [abs(pair.error) for pair in judged]
    near = fmean(error <= NEAR for error in errors) if errors else None
    yield at_least(f"share of runs within {NEAR:.0%}", near, SHARE)
    yield at_most("worst error", max(errors, default=None), FAR)
    yield at_most("median error", median(errors) if errors else None, NEAR)
    yield at_most("algorithms ranked otherwise where intervals are disjoint", _misranked(judged), 0)


def _misranked(judged: Sequence[Pair]) -> int:
    wrong = 0
    for one, other in combinations(judged, 2):
        apart = abs(one.measured_s - other.measured_s) > one.half_s + other.half_s
        if one.cell == other.cell and apart:
            order = one.measured_s - other.measured_s
            wrong += order * (one.simulated_s - other.simulated_s) <= 0
    return wrong
