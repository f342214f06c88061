"""What a suite found: rows of figures, and its checks against the limits that it states. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against its limit. ``measured`` None: it could not be measured, and is not met."""

    name: str
    measured: float | None
    limit: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Suite:
    """The outcome of one suite. ``absent`` names what this machine lacks for parts of it."""

    title: str
    rows: Sequence[Row]
    checks: Sequence[Check]
    about: Mapping[str, Any] = field(default_factory=dict)
    absent: Sequence[str] = ()
    failure: str | None = None

    @property
    def met(self) -> bool | None:
        """Whether every check is; None where one could not be measured and none has failed."""
        if self.failure is not None:
            return False
        outcomes = [check.met for check in self.checks]
        if False in outcomes:
            return False
        return None if None in outcomes or not outcomes else True

    def to_json(self) -> dict[str, Any]:
        """``{"title", "met", "checks": [...], "rows": [...], "about", "absent", "failure"}``."""
        return {
            "title": self.title,
            "met": self.met,
            "checks": [asdict(check) for check in self.checks],
            "rows": [dict(row) for row in self.rows],
            "about": dict(self.about),
            "absent": list(self.absent),
            "failure": self.failure,
        }


def within(name: str, measured: float | None, low: float, high: float) -> Check:
    """A figure that must lie between two limits, both included."""
    met = None if measured is None else low <= measured <= high
    return Check(name, measured, f"{low:g} to {high:g}", met)


def at_most(name: str, measured: float | None, limit: float) -> Check:
    """A figure that must not exceed its limit."""
    return Check(
        name, measured, f"at most {limit:g}", None if measured is None else measured <= limit
    )


def at_least(name: str, measured: float | None, limit: float) -> Check:
    """A figure that must reach its limit."""
    return Check(
        name, measured, f"at least {limit:g}", None if measured is None else measured >= limit
    )


def table(rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of rows, as they are shown: every key is a column, in order of appearance."""
    listed = list(rows)
    columns = list(dict.fromkeys(key for row in listed for key in row))
    return columns, [[cell(row.get(column)) for column in columns] for row in listed]


def cell(value: Any) -> str:
    """A figure in few digits; what was not measured is a dash."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
        case _:
            return str(value)
