"""``testbed bench coded``: steps to an accuracy in virtual time, a step's time on real links, and
what redundancy saves.

The model of coded synchronous SGD (Li et al.) is T(r) = r · T_calc + T_comm / r. With c = T_calc /
(T_calc + T_comm) of SSGD by multicast, T(r) / T(1) = r·c + (1 − c)/r: how much a redundancy r saves
is decided by c alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.bench.results import Say, Suite, locate_files, measurement, write_json, write_scenario
from testbed.errors import ExperimentError
from testbed.fidelity.summary import first_reached
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import SUMMARY, read_events, read_json
from testbed.runner.experiment import prepare
from testbed.runner.run import ParallelTask, side_by_side
from testbed.runner.run import run as carry_out
from testbed.runner.signals import interruptible
from testbed.scenario.load import load
from testbed.scenario.yaml import parse

SCHEMES = (
    "ssgd",
    "ssgd-multicast",
    "cssgd-r2",
    "cssgd-r9",
    "replicated-r2",
    "replicated-r5",
    "grouped-r4",
    "combined-r4",
)
"""Schemes that are measured. r + 1 divides 10 for 4 and 9, r does for 2 and 5."""
BASE, ASYNC = "ssgd-multicast", "asgd"
SHARES = (0.05, 0.2, 0.5)
_NAME = 31
"""Characters of a scenario's name, at most."""


@dataclass(frozen=True, slots=True)
class CodedPlan:
    """Request for a measurement. ``share``: c of the runs on real links; ``shares``: of those in
    virtual time."""

    accuracy: float
    share: float = 0.05
    shares: tuple[float, ...] = SHARES
    schemes: tuple[str, ...] = SCHEMES
    rates: tuple[float, ...] = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
    """Learning rates that are tried in virtual time, for SSGD and ASGD apart."""
    steps: int = 30
    """Steps of every measurement of a step's time."""
    most: int = 400
    """Steps within which the accuracy must be reached."""
    every: int = 2
    """Steps from one evaluation to the next, where the accuracy is looked for."""
    seed: int = 1


def pace_s(share: float, communication_s: float) -> float:
    """Return the time that a node's share of a mini-batch must take for ``share`` of SSGD's step to
    be computation."""
    return share / (1 - share) * communication_s


@dataclass(frozen=True, slots=True)
class Variant:
    """Differences from the scenario; None: nothing differs."""

    name: str
    algorithms: tuple[str, ...]
    steps: int | None = None
    accuracy: float | None = None
    """Where a run stops besides."""
    every: int | None = None
    pace_s: float | None = None
    """In model time."""
    rate: float | None = None
    """Learning rate."""
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The scenario ``base`` (as it was read) with these changes."""
        train = dict(base.get("train", {}))
        stop = {"steps": self.steps, "accuracy": self.accuracy}
        train["stop"] = {key: value for key, value in stop.items() if value is not None}
        train["evaluate_every"] = self.every or self.steps or train["evaluate_every"]
        if self.pace_s is not None:
            train["pace"] = f"{1e6 * self.pace_s:.0f} us"
        if self.rate is not None:
            train["optimizer"] = {**train.get("optimizer", {}), "lr": self.rate}
        name = f"{base['name']}-{self.name}".replace(".", "-")[:_NAME].rstrip("-")
        return {**base, "name": name, "train": train, "algorithms": list(self.algorithms)}


def rows(known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for every scheme and c: on real links first, then in virtual time.

    Schemes share the steps of SSGD as long as nothing ``saturated``: else they compute another
    gradient.
    """
    steps, plan = int(known["steps"]), known["plan"]
    real = known["steps_real"]
    yield from _rows("real", plan["share"], steps, real, known["async_real"]["time_s"])
    for share, simulated in known["virtual"].items():
        yield from _rows("virtual", float(share), steps, simulated["steps"], simulated["async_s"])


def _rows(
    links: str, share: float, steps: int, timed: Mapping[str, Any], async_s: float | None
) -> Iterator[dict[str, Any]]:
    base_s = steps * float(timed[BASE]["step_s"])
    for name, result in timed.items():
        taken_s = steps * float(result["step_s"])
        yield {
            "links": links,
            "c": share,
            "scheme": name,
            "step_s": result["step_s"],
            "time_s": taken_s,
            "saved_ssgd": 1 - taken_s / base_s,
            "saved_asgd": None if async_s is None else 1 - taken_s / async_s,
            "sent_mb_step": result["bytes_up"] / max(1, result["steps"]) / 1e6,
            "saturated": result["saturated"],
            "verdict": result["verdict"],
        }
    yield {
        "links": links,
        "c": share,
        "scheme": ASYNC,
        "step_s": None,
        "time_s": async_s,
        "saved_ssgd": None if async_s is None else 1 - async_s / base_s,
        "saved_asgd": 0.0,
        "sent_mb_step": None,
        "saturated": None,
        "verdict": None,
    }


RESULT = "coded.json"
_PROBE = 10
"""Steps of SSGD by multicast from which T_comm is taken."""


class CodedBench:
    """One call. ``known``: what was found so far, which is what ``coded.json`` holds."""

    def __init__(
        self, source: Path, plan: CodedPlan, out: Path, say: Say, processes: int = 1
    ) -> None:
        self._plan, self._say, self._processes = plan, say, processes
        load(source)  # complains where something is wrong
        self._base: Mapping[str, Any] = parse(source.read_text("utf-8"), str(source)).data
        locate_files(self._base, source.parent)
        self.directory = measurement(out, "coded")
        self.known: dict[str, Any] = {"plan": asdict(plan), "machine": machine_facts()}

    def run(self, fabric: str) -> Suite:
        """All of it. Raises NarrowsError for a run that failed, ExperimentError for an accuracy not
        reached."""
        with interruptible():
            self._learn()
            self._measure(fabric)
            self._model()
        suite = Suite("coded", list(rows(self.known)), [], about=self.known)
        self._keep("rows", list(suite.rows))
        return suite

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
            reached = {rate: value for rate, value in of.items() if value is not None}
            if not reached:
                raise ExperimentError(
                    f"{name} reached no accuracy of {plan.accuracy:g} within {plan.most} steps, "
                    f"with no learning rate of {', '.join(of)}"
                )
            best[name] = min(reached, key=lambda rate: reached[rate])
        self._keep("reached_s", tried)
        self._keep("learning_rate", {name: float(rate) for name, rate in best.items()})
        chosen = variants[[f"{rate:g}" for rate in plan.rates].index(best[BASE])]
        self._keep("steps", self._steps(self._paths[chosen.name]))

    def _measure(self, fabric: str) -> None:
        """A step's time of every scheme, and ASGD whole, on real links."""
        plan, rate = self._plan, self.known["learning_rate"]
        (probe,) = self._real(fabric, Variant("probe", (BASE,), steps=_PROBE, rate=rate[BASE]))
        communication_s = _communication_s(probe)
        pace = pace_s(plan.share, communication_s)
        self._keep("real", {"communication_s": communication_s, "pace_s": pace})
        timed = Variant("timed", plan.schemes, steps=plan.steps, pace_s=pace, rate=rate[BASE])
        self._keep("steps_real", self._listed(self._real(fabric, timed)))
        (path,) = self._real(fabric, self._whole("whole", pace))
        self._keep("async_real", {"time_s": self._reached(path), "dir": str(path)})

    def _model(self) -> None:
        """The same in virtual time, for every c."""
        plan, rate = self._plan, self.known["learning_rate"]
        (probe,) = self._virtual([Variant("sim-probe", (BASE,), steps=_PROBE, rate=rate[BASE])])
        communication_s = _communication_s(probe)
        by_share = {}
        for share in plan.shares:
            pace, name = pace_s(share, communication_s), f"c{100 * share:.0f}"
            timed = [
                Variant(f"{name}-{scheme}", (scheme,), steps=_PROBE, pace_s=pace, rate=rate[BASE])
                for scheme in plan.schemes
            ]
            *paths, last = self._virtual([*timed, self._whole(f"{name}-whole", pace)])
            by_share[f"{share:g}"] = {
                "pace_s": pace,
                "steps": self._listed(paths),
                "async_s": self._reached(last),
            }
        self._keep("virtual", by_share)

    def _whole(self, name: str, pace: float) -> Variant:
        """ASGD until the accuracy is reached."""
        plan, rate = self._plan, self.known["learning_rate"][ASYNC]
        return Variant(name, (ASYNC,), plan.most, plan.accuracy, plan.every, pace, rate)

    def _virtual(self, variants: Iterable[Variant]) -> list[Path]:
        """Run directories, by variant, each of one algorithm."""
        listed = list(variants)
        tasks = [ParallelTask(self._written(v), v.algorithms[0], self._plan.seed) for v in listed]
        directories: dict[int, Path] = {}
        for number, entry, took_s in side_by_side(
            tasks, self.directory / "virtual", self._processes
        ):
            directories[number] = Path(entry["dir"])
            self._say(
                f"{listed[number].name}: {entry['time_s']:.1f} s in virtual time ({took_s:.0f} s)"
            )
        self._paths = {v.name: directories[number] for number, v in enumerate(listed)}
        return [directories[number] for number in range(len(listed))]

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
        content = variant.of(self._base)
        return write_scenario(self.directory / "scenarios", variant.name, content)

    def _listed(self, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
        """Return the parts of summaries that count, by algorithm."""
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
        results = {}
        for path in paths:
            summary = read_json(path / SUMMARY)
            records = read_events(path).get("coded", [])
            cut_off = sum(int(event["saturated"]) for event in records)
            results[summary["algorithm"]] = {key: summary[key] for key in kept} | {
                "saturated": cut_off
            }
        return results

    def _reached(self, run: Path) -> float | None:
        """Model seconds to the accuracy."""
        evaluations = read_events(run).get("evaluation", [])
        return first_reached(
            evaluations, self._plan.accuracy, float(self._base.get("dilation", 1.0))
        )

    def _steps(self, run: Path) -> int:
        evaluations = read_events(run).get("evaluation", [])
        return min(
            int(e["step"]) for e in evaluations if float(e["accuracy"]) >= self._plan.accuracy
        )

    def _keep(self, name: str, value: Any) -> None:
        self.known[name] = value
        write_json(self.directory / RESULT, self.known)


def _communication_s(run: Path) -> float:
    """Return the time of a mean step that is not computation."""
    summary = read_json(run / SUMMARY)
    return float(summary["step_s"] - summary["phases_s"]["compute"])
