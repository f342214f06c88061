"""What one measurement of a cell came to, and the row that several of them make. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from testbed.bench.exchange.cell import Cell
from testbed.bench.figures import median, percentile, times


@dataclass(frozen=True, slots=True)
class Sample:
    """``rounds_s``: how long each took; ``cpu_s_per_gb``: processor seconds of all nodes' processes per 10⁹ bytes of gradients
    and sums; ``carried``: bytes over what had to be carried, at the interface where least was."""

    rounds_s: Sequence[float]
    cpu_s_per_gb: float | None
    carried: float | None = None

    @property
    def round_s(self) -> float:
        """Mean time of a round."""
        return fmean(self.rounds_s)


def bypass(cell: Cell, rounds: int, counted: Mapping[int, tuple[int, int]]) -> float:
    """Bytes that interfaces received and sent over those that had to pass them: the least of all nodes and both ways."""
    shares = []
    for own, (received, sent) in counted.items():
        due = cell.entry.carried(own, cell.nodes, cell.bytes)
        shares += [received / (rounds * due[0]), sent / (rounds * due[1])]
    return min(shares)


def row(cell: Cell, samples: Sequence[Sample], failures: Sequence[str]) -> dict[str, Any]:
    """Medians over the repetitions; None for what was not measured."""
    rates = [1 / sample.round_s for sample in samples]
    several = [sample for sample in samples if len(sample.rounds_s) > 1]
    latest = [percentile(sample.rounds_s, 0.99) for sample in several]
    return {
        "exchange": cell.exchange,
        "nodes": cell.nodes,
        "bytes": cell.bytes,
        "link": cell.link.name,
        "rounds_per_s": median(rates),
        "line_rate_fraction": median(times(cell.least_s, each.round_s) for each in samples),
        "p99_ms": median(None if late is None else 1e3 * late for late in latest),
        "cpu_s_per_gb": median(each.cpu_s_per_gb for each in samples),
        "lowest": min(rates, default=None),
        "highest": max(rates, default=None),
        "rounds": median(len(sample.rounds_s) for sample in several),
        "carried": median(sample.carried for sample in samples),
        "failure": failures[0] if failures else None,
        "failures": len(failures),
    }
