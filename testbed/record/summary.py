"""What a run came to, from its files alone. Times in model time unless a name says ``wall``."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from testbed.errors import InputError
from testbed.record.directory import LINKS, MANIFEST, SUMMARY, read_events, read_json, read_jsonl
from testbed.record.expected import expected_step_s
from testbed.record.history import LinkHistory
from testbed.record.lost import Events, dropped, led_steps, lost_workers, staleness
from testbed.record.manifest import peer_names, recorded_every
from testbed.record.stored import Joined
from testbed.record.verdict import Verdict

PHASES = ("compute", "stall", "compress", "send", "wait", "receive", "decompress", "apply")
"""The phases of a step in their order, as in ``StepRecord``'s ``<phase>_s``."""

ENTRY = (
    "dir", "algorithm", "seed", "verdict", "time_s", "steps", "accuracy", "bytes_up", "bytes_down", "mean_k",
)  # fmt: skip
"""The keys of a run's entry in ``--json`` and ``comparison.json``."""

SELECTION = ("mean_achieved_k", "mean_passes")
"""The keys that say how well ``mean_k`` was met, and at what cost; they follow it in summaries and tables."""

STALENESS = ("mean_staleness", "max_staleness")
"""The keys that say how old an asynchronous server's gradients were; without a value in other runs."""

UNFINISHED = Verdict(
    "invalid", ["The run was cut short before its verdict was found."], ended=False
)
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Of test accuracy: when each was reached is in every summary."""
Records = Sequence[Mapping[str, Any]]


def summarise(directory: Path, verdict: Verdict | None = None) -> dict[str, Any]:
    """The object that becomes ``summary.json``; without ``verdict`` the one already there is kept.

    A run with neither was cut short: it is summed up as far as it came, and invalid. Raises InputError
    when the directory has no manifest.
    """
    manifest = read_json(directory / MANIFEST)
    events = read_events(directory)
    steps, rounds = events.get("step", []), events.get("round", [])
    taken = Joined(steps, events.get("rest", []))
    evaluations = sorted(events.get("evaluation", []), key=lambda seen: int(seen["step"]))
    dilation = float(manifest["dilation"])
    wall_s = _ended_s(events)
    up, down = _bytes(manifest, Joined(taken, events.get("away", [])), rounds)
    return {
        "dir": str(directory),
        "algorithm": manifest["algorithm"]["name"],
        "seed": manifest["seed"],
        **verdict_of(directory, verdict),
        "time_s": wall_s / dilation,
        "wall_s": wall_s,
        "steps": _steps(events, manifest),
        "accuracy": float(evaluations[-1]["accuracy"]) if evaluations else None,
        "bytes_up": up,
        "bytes_down": down,
        "mean_k": fmean(float(step["density"]) for step in steps) if steps else None,
        **selection_means(steps),
        "phases_s": phase_means(steps, dilation),
        "time_to_accuracy_s": time_to_accuracy(evaluations, dilation),
        **_step_times(directory, manifest, steps, taken, rounds, dilation),
        **staleness(events),
        "dropped": dropped(events, peer_names(manifest)),
        "lost": lost_workers(events),
        "labels": {str(one["node"]): one["labels"] for one in events.get("labels", [])},
    }


def finished(directory: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its end, whatever its verdict; None of one that was cut short or failed."""
    if not (directory / SUMMARY).exists():
        return None
    summary = read_json(directory / SUMMARY)
    return summary if summary.get("ended") else None


def mean_density(directory: Path) -> float:
    """``mean_k`` of a finished run. Raises InputError where it is not one, or has no usable mean."""
    summary = read_json(directory / SUMMARY)
    mean = summary.get("mean_k")
    if not summary.get("ended"):
        raise InputError("the run was cut short", where=str(directory))
    if not isinstance(mean, int | float) or isinstance(mean, bool) or not 0 < mean <= 1:
        raise InputError(
            f"the run has no mean density above 0 and at most 1: its mean_k is {mean!r}",
            where=str(directory),
        )
    return float(mean)


def entry(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a summary that is listed."""
    return {key: summary[key] for key in ENTRY}


def _ended_s(events: Events) -> float:
    """When the last update was applied: by a worker, or by an asynchronous server, whose parameters are the model's."""
    gradients = events.get("gradient", [])
    if gradients:
        return max(float(gradient["applied_s"]) for gradient in gradients)
    taken = Joined(events.get("step", []), events.get("rest", []))
    return max((float(step["end_s"]) for step in taken), default=0.0)


def _steps(events: Events, manifest: Mapping[str, Any]) -> int:
    workers = sum(node["role"] == "worker" for node in manifest["nodes"].values())
    led = led_steps(events, workers)
    taken = Joined(events.get("step", []), events.get("rest", []))
    return finished_steps(taken, manifest) if led is None else led


def finished_steps(steps: Records, manifest: Mapping[str, Any]) -> int:
    """Steps that every worker has finished of whose steps there are records."""
    every = recorded_every(manifest)
    workers = [
        name
        for name, node in manifest["nodes"].items()
        if node["role"] == "worker" and int(node["rank"]) % every == 0
    ]
    made = Counter(step["node"] for step in steps)
    return min((made[worker] for worker in workers), default=0)


def phase_means(steps: Records, dilation: float) -> dict[str, float]:
    """Mean seconds per step and worker of every phase."""
    if not steps:
        return {}
    columns = [array("d") for _ in PHASES]
    for step in steps:
        for column, phase in zip(columns, PHASES, strict=True):
            column.append(phase_s(step, phase))
    return {p: fmean(column) / dilation for p, column in zip(PHASES, columns, strict=True)}


def phase_s(step: Mapping[str, Any], phase: str) -> float:
    """Wall seconds of a phase of a ``step`` record; 0 of one that was not known yet when it was written."""
    return float(step.get(f"{phase}_s", 0.0))


def selection_means(steps: Records) -> dict[str, float | None]:
    """Mean share of elements sent, and mean passes over the vector of those steps that tell them."""
    shares, passes = array("d"), array("d")
    for step in steps:
        shares.append(int(step["sent_count"]) / int(step["size"]))
        if (how := step.get("selection")) is not None:
            passes.append(float(how["passes"]))
    means = fmean(shares) if shares else None, fmean(passes) if passes else None
    return dict(zip(SELECTION, means, strict=True))


def time_to_accuracy(evaluations: Records, dilation: float) -> dict[str, float]:
    """When each level of test accuracy was first reached; levels never reached are left out."""
    found = {f"{level:g}": first_reached(evaluations, level, dilation) for level in LEVELS}
    return {level: time_s for level, time_s in found.items() if time_s is not None}


def first_reached(evaluations: Records, level: float, dilation: float) -> float | None:
    """Model seconds until the first evaluation of at least ``level``; None if there is none."""
    for seen in sorted(evaluations, key=lambda seen: int(seen["step"])):
        if seen["accuracy"] >= level:
            return float(seen["time_s"]) / dilation
    return None


def _bytes(manifest: Mapping[str, Any], steps: Records, rounds: Records) -> tuple[int, int]:
    """Frame bytes of all gradients and of all replies."""
    if recorded_every(manifest) == 1:
        up = down = 0
        for step in steps:
            up, down = up + int(step["bytes_up"]), down + int(step["bytes_down"])
        return up, down
    up = sum(int(message["bytes"]) for round_ in rounds for message in round_["messages"])
    return up, sum(int(round_["bytes_down"]) for round_ in rounds)


def _step_times(directory: Path, manifest: Mapping[str, Any], steps: Records, taken: Records, rounds: Records,
                dilation: float) -> dict[str, float | None]:  # fmt: skip
    """``taken``: steps, and those in which workers rested. How long a step took, how long it should have, and its share of communication."""
    if not steps:
        return dict.fromkeys(("step_s", "expected_step_s", "communication_share"))
    history = LinkHistory(read_jsonl(directory / LINKS))
    expected = expected_step_s(manifest, taken, rounds, history)
    lengths, waited = array("d"), array("d")
    for step in steps:
        lengths.append(float(step["end_s"]) - float(step["start_s"]))
        waited.append(float(step["delay_s"]) + phase_s(step, "stall"))
    return {
        "step_s": fmean(lengths) / dilation,
        "expected_step_s": None if expected is None else expected / dilation,
        "communication_share": sum(waited) / max(sum(lengths), 1e-9),
    }


def verdict_of(directory: Path, verdict: Verdict | None) -> dict[str, Any]:
    """A summary's keys of its verdict; without one, those of the summary already there, or of a run cut short."""
    if verdict is None and (directory / SUMMARY).exists():
        before = read_json(directory / SUMMARY)
        return {key: before.get(key) for key in ("verdict", "reasons", "measures", "ended")}
    found = asdict(verdict or UNFINISHED)
    return {"verdict": found.pop("state"), **found}
