"""``testbed bench link``: runs suites, writes what they found as soon as each has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.bench.result import Suite
from testbed.bench.setup import Setup
from testbed.bench.suites import SUITES, suite
from testbed.errors import InputError, Interrupted, MachineError, NarrowsError
from testbed.record.directory import fresh, to_json, write_atomically
from testbed.record.machine import machine
from testbed.session.interrupt import interruptible

RESULT = "bench.json"


@dataclass
class Outcome:
    """What was found so far. ``path``: the file that holds the same."""

    path: Path
    machine: dict[str, Any]
    suites: dict[str, Suite] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """``{"suites": {name: {...}}, "machine": {...}}``."""
        found = {name: each.to_json() for name, each in self.suites.items()}
        return {"suites": found, "machine": self.machine}

    def save(self) -> None:
        """Write the file."""
        write_atomically(self.path, to_json(self.to_json(), indent=2) + "\n")


def run(
    names: Sequence[str],
    out: Path,
    say: Callable[[str], None],
    *,
    repeat: int = 5,
    quick: bool = False,
) -> Outcome:
    """Carry out the suites called ``names`` (all, where there are none).

    A suite that fails is recorded with its reason, and the others go on. Raises InputError for an
    unknown suite, Interrupted when asked to end; what was finished is on disk then.
    """
    chosen = {name: suite(name) for name in names or SUITES}
    directory = fresh(out / "measurements", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_link")
    outcome = Outcome(directory / RESULT, machine())
    setup = Setup(directory, say, repeat, quick)
    with interruptible():
        for name, measure in chosen.items():
            try:
                outcome.suites[name] = measure(setup)
            except (Interrupted, InputError):
                raise
            except MachineError as error:
                outcome.suites[name] = Suite(name, [], [], absent=[str(error)])
            except (NarrowsError, OSError) as error:
                outcome.suites[name] = Suite(name, [], [], failure=str(error))
            outcome.save()
    return outcome
