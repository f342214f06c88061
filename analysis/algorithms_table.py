"""The table of a comparison: one row per algorithm, for a terminal and as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.compared import Compared, Outcome
from analysis.paired import times
from analysis.statistics import Interval
from analysis.table import megabytes

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {"valid": "green", "degraded": "yellow", "invalid": "red"}
_DASH = "–"


def rows(found: Compared) -> list[dict[str, Any]]:
    """A row per algorithm, numbers in full; times in model seconds, intervals as ``_low`` and ``_high``."""
    return [_row(outcome, found.target) for outcome in found.algorithms]


def rich_table(found: Compared) -> Table:
    """The same for a terminal."""
    from rich.table import Table

    target = "no common target" if found.target is None else f"to {found.target:g}"
    headings = [
        "algorithm", "time", "speed-up", target, "test accuracy", "up", "down", "mean k", "verdicts",
    ]  # fmt: skip
    shown = Table(*headings)
    for column in shown.columns[1:-1]:
        column.justify = "right"
    for outcome in found.algorithms:
        shown.add_row(*_cells(outcome, found))
    return shown


def _row(outcome: Outcome, target: float | None) -> dict[str, Any]:
    said = outcome.to_json()
    row: dict[str, Any] = {"algorithm": outcome.algorithm}
    for key in ("time_s", "speedup", "accuracy"):
        row |= {key if end == "mean" else f"{key}_{end}": value for end, value in said[key].items()}
    reached = next((each for each in outcome.targets if each.target == target), None)
    return row | {
        "inferiority": outcome.inferiority,
        "target": target,
        "time_to_target_s": reached and reached.time_s.mean,
        "seeds_reached": reached and reached.reached,
        **{key: said[key] for key in ("bytes_up", "bytes_down", "mean_k")},
        **{verdict: outcome.verdicts.get(verdict, 0) for verdict in _COLOURS},
    }


def _cells(outcome: Outcome, found: Compared) -> list[str]:
    accuracy = _interval(outcome.accuracy, "{:.3f}")
    if outcome.inferiority is not None:
        accuracy += f"\n{outcome.inferiority}"
    verdicts = [f"[{_COLOURS[name]}]{count} {name}[/]" for name, count in outcome.verdicts.items()]
    return [
        outcome.algorithm + (" (baseline)" if outcome.algorithm == found.baseline else ""),
        _interval(outcome.time_s, "{:.1f}", " s"),
        "1" if outcome.algorithm == found.baseline else times(outcome.speedup),
        _target(outcome, found.target),
        accuracy,
        *(_DASH if size is None else megabytes(round(size)) for size in (outcome.bytes_up, outcome.bytes_down)),
        _DASH if outcome.mean_k is None else f"{outcome.mean_k:.3g}",
        ", ".join(verdicts) or _DASH,
    ]  # fmt: skip


def _target(outcome: Outcome, target: float | None) -> str:
    reached = next((each for each in outcome.targets if each.target == target), None)
    if reached is None or reached.time_s.mean is None:
        return _DASH
    of = "" if reached.reached == reached.seeds else f" ({reached.reached} of {reached.seeds})"
    return f"{reached.time_s.mean:.1f} s{of}"


def _interval(found: Interval, form: str, unit: str = "") -> str:
    if found.mean is None:
        return _DASH
    if found.high is None:
        return form.format(found.mean) + unit
    return f"{form.format(found.mean)} ± {form.format(found.high - found.mean)}{unit}"
