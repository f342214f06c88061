"""``testbed bench overlap``: every bandwidth, the variants of each in turns; what was found is on disk after each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.bench.order import interleaved
from testbed.bench.overlap.ideal import Chain, Variant
from testbed.bench.overlap.judge import chain_of, checks, median_step_s, rows
from testbed.bench.overlap.plan import VARIANTS, Plan, rate_bits, scenario
from testbed.bench.result import Suite
from testbed.bench.sound import ATTEMPTS
from testbed.record.directory import fresh, read_events, to_json, write_atomically
from testbed.record.machine import machine
from testbed.session.experiment import Experiment, prepare
from testbed.session.interrupt import interruptible
from testbed.session.run import run as carry_out

Say = Callable[[str], None]
RESULT = "overlap.json"
_Trial = tuple[Algorithm, int]


class Bench:
    """One call. ``known``: what was found so far, which is what ``overlap.json`` holds."""

    def __init__(self, plan: Plan, out: Path, say: Say) -> None:
        self._plan, self._say = plan, say
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_overlap"
        self.directory = fresh(out / "measurements", name)
        self.known: dict[str, Any] = {
            "plan": asdict(plan), "machine": machine(), "rows": [], "discarded": [], "runs": []
        }  # fmt: skip

    def run(self) -> Suite:
        """All of it. Raises NarrowsError for a run that failed."""
        with interruptible():
            for load in self._plan.loads:
                self.known["rows"] += self._measured(load)
                self._save()
        found = Suite(
            "Steps with and without overlap, against the bound of computation and links",
            self.known["rows"],
            checks(self.known["rows"], self._plan.loads),
            {"discarded": self.known["discarded"]},
        )
        self.known["checks"] = [asdict(check) for check in found.checks]
        self._save()
        return found

    def _measured(self, load: float) -> list[dict[str, Any]]:
        """The rows of one bandwidth. Runs that are invalid are made again."""
        plan, experiment = self._plan, prepare(self._written(load))
        rate, steps = rate_bits(load, plan.pace_s), {v: list[float]() for v in VARIANTS}
        chains: list[Chain] = []
        left = self._order(experiment)
        for _ in range(ATTEMPTS):
            again: list[_Trial] = []
            for trial, entry in zip(left, self._carried_out(experiment, left), strict=True):
                if entry["verdict"] == "invalid":
                    again.append(trial)
                    continue
                events = read_events(Path(entry["dir"]))
                variant: Variant = entry["algorithm"]
                steps[variant].append(median_step_s(events, plan.skip))
                if "bucket" in events and not chains:
                    chains.append(chain_of(events, rate, plan.pace_s))
            if not (left := again):
                break
        return rows(load, rate, chains[0], steps) if chains else []

    def _order(self, experiment: Experiment) -> list[_Trial]:
        plan = self._plan
        turns = interleaved(experiment.algorithms, plan.repeat)
        return [(algorithm, plan.seeds[repetition]) for repetition, algorithm in turns]

    def _carried_out(self, experiment: Experiment, order: list[_Trial]) -> list[dict[str, Any]]:
        done = carry_out(experiment, self._plan.fabric, self.directory, quiet=True, order=order)
        name = experiment.loaded.scenario.name
        for entry in done.runs:
            about = f"{name} {entry['algorithm']} s{entry['seed']}"
            self._say(f"{about}: {entry['time_s']:.1f} s, {entry['verdict']}")
            self.known["runs"].append({"name": about, **entry})
            if entry["verdict"] == "invalid":
                self.known["discarded"].append(about)
        return done.runs

    def _written(self, load: float) -> Path:
        folder = self.directory / "scenarios"
        folder.mkdir(exist_ok=True)
        content = scenario(self._plan, load)
        # JSON is YAML too.
        text = json.dumps(content, indent=2) + "\n"
        return write_atomically(folder / f"{content['name']}.yaml", text)

    def _save(self) -> None:
        write_atomically(self.directory / RESULT, to_json(self.known, indent=2) + "\n")
