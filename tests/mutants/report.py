"""What `make mutants` prints: the share killed of every file, and the survivors that nobody has explained."""

# ruff: noqa: T201 - a command, which prints
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from statistics import NormalDist

from mutants import Mutant

COLUMNS = ("mutants", "killed", "timed out", "survived", "not reached")
KILLED = ("killed", "timed out")


def report(
    outcomes: dict[str, list[tuple[Mutant, str]]],
    totals: dict[str, int],
    least: float,
    explained: Path,
    gone: Callable[[str], bool],
) -> int:
    """Print it; 1 if a group has less than ``least`` of its mutants killed. ``gone``: no such mutant exists."""
    known = {line.rpartition("  # ")[0].rstrip() for line in explained.read_text().splitlines()}
    print(f"{'':44}" + "".join(f"{column:>12}" for column in COLUMNS) + f"{'share':>8}")
    failed = 0
    for group, tried in outcomes.items():
        for path in sorted({mutant.path for mutant, _ in tried}):
            _row(path, Counter(outcome for mutant, outcome in tried if mutant.path == path))
        counts = Counter(outcome for _, outcome in tried)
        share = _row(f"{group}, all", counts)
        if len(tried) < totals[group]:
            low, high = interval(sum(counts[each] for each in KILLED), len(tried))
            print(
                f"    {len(tried)} of {totals[group]} mutants; of all, {low:.1%} to {high:.1%} (95 %)"
            )
        failed += share < least
    keys = {
        mutant.key
        for tried in outcomes.values()
        for mutant, outcome in tried
        if outcome not in KILLED
    }
    dead = {
        mutant.key for tried in outcomes.values() for mutant, outcome in tried if outcome in KILLED
    }
    _listed("survive, and nobody has said why:", keys - known)
    _listed("are killed, but listed as survivors:", dead & known)
    _listed(
        "are listed as survivors, but no such mutant exists any more:",
        {key for key in known if key.startswith("testbed/") and gone(key)},
    )
    if failed:
        print(f"less than {least:.0%} killed in {failed} of {len(outcomes)} groups")
    return 1 if failed else 0


def interval(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, grown = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / grown
    half = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / grown
    return middle - half, middle + half


def _row(name: str, counts: Counter[str]) -> float:
    total = sum(counts.values())
    share = sum(counts[each] for each in KILLED) / total if total else 1.0
    numbers = [total, *(counts[column] for column in COLUMNS[1:])]
    print(f"{name:44}" + "".join(f"{number:12}" for number in numbers) + f"{share:8.1%}")
    return share


def _listed(title: str, keys: set[str]) -> None:
    if keys:
        print(f"\n{len(keys)} {title}")
        print("\n".join(sorted(keys)))
