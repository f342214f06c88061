"""``testbed bench coded``: steps to an accuracy in virtual time, a step's time on real links, and what follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.bench.coded.judge import rows
from testbed.bench.coded.plan import ASYNC, BASE, Plan, Variant, pace_s
from testbed.bench.result import Suite
from testbed.errors import ExperimentError
from testbed.record.directory import (
    SUMMARY,
    fresh,
    read_events,
    read_json,
    to_json,
    write_atomically,
)
from testbed.record.machine import machine
from testbed.record.summary import first_reached
from testbed.scenario.load import load
from testbed.scenario.yaml_text import parse
from testbed.session.experiment import prepare
from testbed.session.interrupt import interruptible
from testbed.session.parallel import Task, side_by_side
from testbed.session.run import run as carry_out

Say = Callable[[str], None]
RESULT = "coded.json"
_PROBE = 10
"""Steps of SSGD by multicast from which T_comm is taken."""


class Bench:
    """One call. ``known``: what was found so far, which is what ``coded.json`` holds."""

    def __init__(self, source: Path, plan: Plan, out: Path, say: Say, processes: int = 1) -> None:
        self._plan, self._say, self._processes = plan, say, processes
        load(source)  # complains where something is wrong
        self._base: Mapping[str, Any] = parse(source.read_text("utf-8"), str(source)).data
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_coded"
        self.directory = fresh(out / "measurements", name)
        self.known: dict[str, Any] = {"plan": asdict(plan), "machine": machine()}

    def run(self, fabric: str) -> Suite:
        """All of it. Raises NarrowsError for a run that failed, ExperimentError for an accuracy not reached."""
        with interruptible():
            self._learn()
            self._measure(fabric)
            self._model()
        found = Suite("coded", list(rows(self.known)), [], about=self.known)
        self._keep("rows", list(found.rows))
        return found

    def _learn(self) -> None:
        """Steps and times to the accuracy, with every learning rate, in virtual time."""
        plan = self._plan
        tried: dict[str, dict[str, float | None]] = {BASE: {}, ASYNC: {}}
        variants = [
            Variant(f"{name}-{rate:g}", (name,), steps=plan.most, every=plan.every, rate=rate)
            for name in tried
            for rate in plan.rates
        ]
        for variant, path in zip(variants, self._virtual(variants), strict=True):
            (name,) = variant.algorithms
            tried[name][f"{variant.rate:g}"] = self._reached(path)
        best = {}
        for name, of in tried.items():
            found = {rate: value for rate, value in of.items() if value is not None}
            if not found:
                raise ExperimentError(
                    f"{name} reached no accuracy of {plan.accuracy:g} within {plan.most} steps, with no "
                    f"learning rate of {', '.join(of)}"
                )
            best[name] = min(found, key=lambda rate: found[rate])
        self._keep("reached_s", tried)
        self._keep("learning_rate", {name: float(rate) for name, rate in best.items()})
        chosen = variants[[f"{rate:g}" for rate in plan.rates].index(best[BASE])]
        self._keep("steps", self._steps(self._paths[chosen.name]))

    def _measure(self, fabric: str) -> None:
        """A step's time of every scheme, and ASGD whole, on real links."""
        plan, rate = self._plan, self.known["learning_rate"]
        (probe,) = self._real(fabric, Variant("probe", (BASE,), steps=_PROBE, rate=rate[BASE]))
        summary = read_json(probe / SUMMARY)
        communication_s = summary["step_s"] - summary["phases_s"]["compute"]
        pace = pace_s(plan.share, communication_s)
        self._keep("real", {"communication_s": communication_s, "pace_s": pace})
        timed = Variant("timed", plan.schemes, steps=plan.steps, pace_s=pace, rate=rate[BASE])
        self._keep("steps_real", self._listed(self._real(fabric, timed)))
        whole = Variant(
            "whole", (ASYNC,), steps=plan.most, accuracy=plan.accuracy, every=plan.every,
            pace_s=pace, rate=rate[ASYNC],
        )  # fmt: skip
        (path,) = self._real(fabric, whole)
        self._keep("async_real", {"time_s": self._reached(path), "dir": str(path)})

    def _model(self) -> None:
        """The same in virtual time, for every c."""
        plan, rate = self._plan, self.known["learning_rate"]
        (probe,) = self._virtual([Variant("sim-probe", (BASE,), steps=_PROBE, rate=rate[BASE])])
        summary = read_json(probe / SUMMARY)
        communication_s = summary["step_s"] - summary["phases_s"]["compute"]
        found = {}
        for share in plan.shares:
            pace, name = pace_s(share, communication_s), f"c{100 * share:.0f}"
            timed = [
                Variant(f"{name}-{scheme}", (scheme,), steps=_PROBE, pace_s=pace, rate=rate[BASE])
                for scheme in plan.schemes
            ]
            whole = Variant(
                f"{name}-whole", (ASYNC,), steps=plan.most, accuracy=plan.accuracy, every=plan.every,
                pace_s=pace, rate=rate[ASYNC],
            )  # fmt: skip
            *paths, last = self._virtual([*timed, whole])
            found[f"{share:g}"] = {
                "pace_s": pace,
                "steps": self._listed(paths),
                "async_s": self._reached(last),
            }
        self._keep("virtual", found)

    def _virtual(self, variants: Iterable[Variant]) -> list[Path]:
        """Run directories, by variant, each of one algorithm."""
        asked = list(variants)
        tasks = [Task(self._written(v), v.algorithms[0], self._plan.seed) for v in asked]
        found: dict[int, Path] = {}
        for place, entry, took_s in side_by_side(
            tasks, self.directory / "virtual", self._processes
        ):
            found[place] = Path(entry["dir"])
            self._say(
                f"{asked[place].name}: {entry['time_s']:.1f} s in virtual time ({took_s:.0f} s)"
            )
        self._paths = {v.name: found[place] for place, v in enumerate(asked)}
        return [found[place] for place in range(len(asked))]

    def _real(self, fabric: str, variant: Variant) -> list[Path]:
        """Run directories, by algorithm."""
        experiment = prepare(self._written(variant), seeds=[self._plan.seed])
        done = carry_out(experiment, fabric, self.directory / "real", quiet=True)
        for entry in done.runs:
            self._say(
                f"{variant.name} {entry['algorithm']}: {entry['time_s']:.1f} s, {entry['verdict']}"
            )
        return [Path(entry["dir"]) for entry in done.runs]

    def _written(self, variant: Variant) -> Path:
        folder = self.directory / "scenarios"
        folder.mkdir(exist_ok=True)
        # JSON is YAML too.
        text = json.dumps(variant.of(self._base), indent=2) + "\n"
        return write_atomically(folder / f"{variant.name}.yaml", text)

    def _listed(self, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
        """What counts of summaries, by algorithm."""
        kept = (
            "step_s",
            "verdict",
            "reasons",
            "bytes_up",
            "bytes_down",
            "steps",
            "phases_s",
            "dir",
        )
        found = {}
        for path in paths:
            summary = read_json(path / SUMMARY)
            told = read_events(path).get("coded", [])
            cut_off = sum(int(event["saturated"]) for event in told)
            found[summary["algorithm"]] = {key: summary[key] for key in kept} | {
                "saturated": cut_off
            }
        return found

    def _reached(self, run: Path) -> float | None:
        """Model seconds to the accuracy."""
        seen = read_events(run).get("evaluation", [])
        return first_reached(seen, self._plan.accuracy, float(self._base.get("dilation", 1.0)))

    def _steps(self, run: Path) -> int:
        seen = read_events(run).get("evaluation", [])
        return min(int(e["step"]) for e in seen if float(e["accuracy"]) >= self._plan.accuracy)

    def _keep(self, name: str, value: Any) -> None:
        self.known[name] = value
        write_atomically(self.directory / RESULT, to_json(self.known, indent=2) + "\n")
