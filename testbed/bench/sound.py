"""Runs that figures may be made of: an invalid one is made again, and what stays invalid is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testbed.bench.result import Check, at_most

ATTEMPTS = 3
"""How often a run is made at most: once, and twice more where it was invalid."""
_LONGEST = 200
Summary = dict[str, Any]


@dataclass
class Sound:
    """Summaries of runs that are not invalid, ``lost`` repetitions without one, and why runs were discarded."""

    attempts: int = ATTEMPTS
    runs: list[Summary] = field(default_factory=list)
    lost: int = 0
    discarded: list[str] = field(default_factory=list)

    def add(self, make: Callable[[], Summary]) -> None:
        """One more repetition. ``make``: a run, and its summary."""
        for _ in range(self.attempts):
            run = make()
            if run["verdict"] != "invalid":
                self.runs.append(run)
                return
            self.discarded.append("; ".join(run.get("reasons", []))[:_LONGEST] or "no reason given")
        self.lost += 1


def all_sound(name: str, found: Sound) -> Check:
    """Whether every repetition had a run to make figures of; says why not."""
    reason = f" ({found.discarded[-1]})" if found.lost else ""
    return at_most(f"repetitions that stayed invalid, {name}{reason}", found.lost, 0)
