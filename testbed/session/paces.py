"""The paces of a scenario's workers: what their jobs are told of them, and what a manifest and people are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

from testbed.record.directory import RunDirectory
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.scenario.pace import LogNormalPace, Pace, RecordedPace
from testbed.scenario.paced import worker_paces
from testbed.train.step_times import StepTimes, times_of

P = TypeVar("P")


def recorded_times(pace: Pace | None, loaded: Loaded) -> tuple[float, ...]:
    """Seconds of model time that ``pace`` plays; none where it plays none."""
    return loaded.step_times[pace.key] if isinstance(pace, RecordedPace) else ()


def longest_pace_s(paces: Iterable[Pace | None], loaded: Loaded) -> float:
    """Wall seconds that a worker's computation may take, whichever it is."""
    different = dict.fromkeys(paces)
    times = (_times(pace, loaded, loaded.scenario.dilation) for pace in different)
    return max((one.longest_s for one in times if one is not None), default=0.0)


def usual_pace_s(loaded: Loaded) -> float | None:
    """Model seconds of a usual step by ``train.pace``; None: nothing is held."""
    times = _times(loaded.scenario.train.pace, loaded)
    return None if times is None else times.usual_s


def slowest_pace_s(loaded: Loaded) -> float:
    """Model seconds of a usual step of the slowest worker; 0 where nothing is held."""
    times = (_times(pace, loaded) for pace in dict.fromkeys(worker_paces(loaded.scenario).values()))
    return max((one.usual_s for one in times if one is not None), default=0.0)


def one_pace_s(loaded: Loaded) -> float | None:
    """Wall seconds that every step of every worker is held to; None where there is no such time."""
    paces = set(worker_paces(loaded.wall()).values())
    pace = paces.pop() if len(paces) == 1 else None
    return None if pace is None or not isinstance(pace, float) else float(pace)


def paces_told(loaded: Loaded) -> dict[str, dict[str, Any]] | None:
    """Of every worker, model time; None where all have one time, or none."""
    paces = worker_paces(loaded.scenario)
    if len(set(paces.values())) == 1 and isinstance(next(iter(paces.values())), float | None):
        return None
    return {node: _told(pace, loaded) for node, pace in paces.items()}


def keep_paces(directory: RunDirectory, loaded: Loaded) -> Scenario:
    """Write recorded times beside the scenario, and return it with their names."""
    kept = {key: f"pace-{place}.json" for place, key in enumerate(loaded.step_times)}
    for key, name in kept.items():
        directory.write_json(name, {"step_s": loaded.step_times[key]})

    def here(pace: P) -> P | RecordedPace:
        if isinstance(pace, RecordedPace):
            return pace.model_copy(update={"file": kept[pace.key], "column": None})
        return pace

    train = loaded.scenario.train
    paces = {name: here(pace) for name, pace in train.paces.items()}
    train = train.model_copy(update={"pace": here(train.pace), "paces": paces})
    return loaded.scenario.model_copy(update={"train": train})


def in_words(told: dict[str, dict[str, Any]]) -> str:
    """What ``paces_told`` found, for people."""
    counted = Counter(_words(one) for one in told.values())
    if len(counted) == 1:
        return next(iter(counted))
    return "; ".join(f"{words} ({many} of the workers)" for words, many in counted.items())


def _times(pace: Pace | None, loaded: Loaded, dilation: float = 1.0) -> StepTimes | None:
    return times_of(pace, 0, "", recorded_times(pace, loaded), dilation)


def _told(pace: Pace | None, loaded: Loaded) -> dict[str, Any]:
    times = _times(pace, loaded)
    usual = {"usual_s": None if times is None else times.usual_s}
    if isinstance(pace, LogNormalPace):
        return {"name": pace.name, **usual, "sigma": pace.sigma}
    if isinstance(pace, RecordedPace):
        return {"name": pace.name, **usual, "file": pace.key, "begin": pace.begin}
    return {"name": "constant", **usual}


def _words(told: dict[str, Any]) -> str:
    usual = f"{1e3 * told['usual_s']:.4g} ms"
    if told["name"] == "lognormal":
        return (
            f"times drawn from a log-normal distribution of median {usual}, sigma {told['sigma']:g}"
        )
    if told["name"] == "file":
        return f"the times of {told['file']}, median {usual}"
    return usual
