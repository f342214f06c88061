"""Summary of a run or of a foreign job, from its directory alone: ``summary.json``.

Times in model time unless a name says ``wall``. A summary includes how long a step takes if only
its computation's pace and its bits on the wire take time, and what the records say of gradients
that were stale, of those that were dropped, and of workers that were lost.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from testbed.errors import InputError
from testbed.fidelity.service_curve import MessageGroup, bottleneck_s, groups
from testbed.fidelity.verdict import Verdict
from testbed.records.events import PHASES, phase_s
from testbed.records.inferred_steps import Inferred, infer
from testbed.records.job_steps import (
    JobStep,
    JobSteps,
    job_steps,
    last_values,
    marked_steps,
    round_trip_s,
)
from testbed.records.link_log import LinkLog, LinkTraffic
from testbed.records.manifest import peer_names, recorded_every
from testbed.records.run_directory import (
    LINKS,
    MANIFEST,
    SUMMARY,
    read_events,
    read_json,
    read_jsonl,
)
from testbed.records.stored import Events, Joined, Records, by_number
from testbed.scenario.link_state import LinkDirection

_LOOKS = 32


def expected_step_s(manifest: Mapping[str, Any], steps: Records, rounds: Records,
                    history: LinkLog) -> float | None:  # fmt: skip
    """Wall seconds that a step takes if only its pace and its bits on the wire take time.

    Pace + Σ over phases (up, down) of max over links of wire bits ÷ mean asked rate in that phase,
    as a mean over steps (of those of which not all workers are recorded, over every so-many-th).
    Without a pace the mean time of the computation stands for it. In buckets, what goes up and what
    comes down share their time: the longer of both counts; with overlap, the longest of these and
    the pace. Where paces differ, the slowest worker's counts, and what others have sent before it
    has computed does not. ``steps``: also those in which workers rested. None: unknown.
    """
    row = manifest["algorithm"]
    every = recorded_every(manifest)
    if every > 1:
        rounds = [round_ for round_ in rounds if (int(round_["step"]) - 1) % every == 0]
    names, pace = peer_names(manifest), manifest.get("pace_s")
    together = max if row.get("bucket_bytes") else sum
    unequal_s, both_s, all_paced = array("d"), array("d"), pace is None
    pairs = _pairs(groups(rounds, steps, names, every), history)
    paces = _paces(steps) if pace is None else iter(())
    paced: tuple[int, Mapping[str, float]] = (-1, {})
    for step, pair in pairs:
        if pair is None:
            return None
        while paced[0] < step and (following := next(paces, None)) is not None:
            paced = following
        all_paced = all_paced and paced[0] == step
        if all_paced:
            unequal_s.append(_unequal_s(row, history, paced[1], pair))
        both_s.append(together(_needed_s(history, part) for part in pair.values()))
    if not both_s:
        return None
    if all_paced:
        return fmean(unequal_s)
    both, computed = fmean(both_s), _computed_s(steps) if pace is None else float(pace)
    return max(computed, both) if row.get("overlap") else computed + both


def _pairs(
    message_groups: Iterable[MessageGroup], history: LinkLog
) -> Iterator[tuple[int, Mapping[str, Sequence[MessageGroup]] | None]]:
    """Yield, for every step with both, its uploads and downloads; None: links were not sampled."""
    for step, own in groupby(message_groups, key=lambda group: group.step):
        pair: dict[str, list[MessageGroup]] = {}
        for group in own:
            if any(end not in history for end in group.ends):
                yield step, None
                return
            pair.setdefault(group.direction, []).append(group)
        if len(pair) == 2:
            yield step, pair


def _computed_s(steps: Records) -> float:
    return fmean(float(step["compute_s"]) for step in steps if "compute_s" in step)


def _paces(steps: Records) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Steps in order, each with the wall seconds that workers were to compute; others left out."""
    for (own,) in by_number(steps):
        paces = {
            str(step["node"]): float(pace_s)
            for step in own
            if (pace_s := step.get("pace_s")) is not None
        }
        if paces:
            yield int(own[0]["step"]), paces


def _unequal_s(
    row: Mapping[str, Any],
    history: LinkLog,
    paces: Mapping[str, float],
    pair: Mapping[str, Sequence[MessageGroup]],
) -> float:
    """Return the time of one step where paces differ. Whatever the order, from any time on links
    have to carry what is computed only then."""
    slowest, down_s = max(paces.values()), _needed_s(history, pair["down"])
    if row.get("bucket_bytes"):
        both = max(_needed_s(history, pair["up"]), down_s)
        return max(slowest, both) if row.get("overlap") else slowest + both
    from_s = sorted(set(paces.values()))
    from_s = from_s[:: -(-len(from_s) // _LOOKS)]  # any of them is a bound; of very many, some
    return down_s + max(
        time_s + _needed_s(history, later)
        for time_s in from_s
        if (later := [part for group in pair["up"] if (part := _since(group, paces, time_s))])
    )


def _since(group: MessageGroup, paces: Mapping[str, float], time_s: float) -> MessageGroup | None:
    """Messages of ``group`` that are computed at ``time_s`` or later; of unknown workers all."""
    loads = tuple(load for load in group.loads if paces.get(load.link, time_s) >= time_s)
    return replace(group, loads=loads) if loads else None


def _needed_s(history: LinkLog, servers: Sequence[MessageGroup]) -> float:
    """Seconds of the busiest link for a step's bits one way, to or from all ``servers``."""
    bits: dict[LinkDirection, float] = {}
    for group in servers:
        for end, more in group.link_bits().items():
            bits[end] = bits.get(end, 0.0) + more
    start_s, last_s = min(g.start_s for g in servers), max(g.last_s for g in servers)
    return bottleneck_s(history.bits, bits, start_s, last_s)


def lost_workers(events: Events) -> list[str]:
    """Names of the workers without whom the run went on, in order."""
    return sorted({str(event["lost"]) for event in events.get("lost", [])})


def lost_reasons(events: Events) -> list[str]:
    """A sentence for each of them."""
    return [_sentence(name, events["lost"]) for name in lost_workers(events)]


def dropped(events: Events, names: Mapping[int, str]) -> dict[str, int]:
    """Count the gradients that came too late for use, by sender. ``names``: of peers, by number."""
    counts = Counter(names[int(event["seen"]["sender"])] for event in events.get("dropped", []))
    return dict(sorted(counts.items()))


def staleness(events: Events) -> dict[str, float | int | None]:
    """``mean_staleness`` and ``max_staleness`` of gradients applied alone; None for means."""
    values = array("q", (int(event["staleness"]) for event in events.get("gradient", [])))
    return {
        "mean_staleness": fmean(values) if values else None,
        "max_staleness": max(values, default=None),
    }


def led_steps(events: Events, workers: int) -> int | None:
    """Steps of a run whose workers make different numbers of them; None for other runs."""
    if gradients := events.get("gradient"):
        return len(gradients) // workers
    skipped = any(step.get("skipped") for step in events.get("step", []))
    if skipped or events.get("dropped") or events.get("lost") or events.get("away"):
        return len(events.get("round", []))
    return None


def _sentence(name: str, lost: Sequence[Mapping[str, Any]]) -> str:
    said = [event for event in lost if event["lost"] == name]
    # what the session says of it comes first: it knows of events, a server of connections alone
    first = min(said, key=lambda event: (event["node"] != name, float(event["time_s"])))
    step = next((event["step"] for event in said if event["step"] is not None), None)
    at = "" if step is None else f" at step {step}"
    return (
        f"{name} was lost{at}, {float(first['time_s']):.1f} s after t0 ({first['reason']}), and "
        "the run went on without it"
    )


ENTRY = (
    "dir", "algorithm", "seed", "verdict", "time_s", "steps", "accuracy", "bytes_up",
    "bytes_down", "mean_k",
)  # fmt: skip
"""The keys of a run's entry in ``--json`` and ``comparison.json``."""

SELECTION = ("mean_achieved_k", "mean_passes")
"""Keys of how well ``mean_k`` was met, and at what cost; they follow it in tables."""

STALENESS = ("mean_staleness", "max_staleness")
"""Keys of how old an asynchronous server's gradients were; no value in other runs."""

UNFINISHED = Verdict(
    "invalid", ["The run was cut short before its verdict was found."], ended=False
)
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Levels of test accuracy: every summary has when each was reached."""


def summarise(directory: Path, verdict: Verdict | None = None) -> dict[str, Any]:
    """The object that becomes ``summary.json``; without ``verdict`` the one already there is kept.

    A run with neither was cut short: it is summed up as far as it came, and invalid. Raises
    InputError when the directory has no manifest.
    """
    manifest = read_json(directory / MANIFEST)
    events = read_events(directory)
    steps, rounds = events.get("step", []), events.get("round", [])
    taken = Joined(steps, events.get("rest", []))
    evaluations = sorted(events.get("evaluation", []), key=lambda each: int(each["step"]))
    dilation = float(manifest["dilation"])
    wall_s = _ended_s(events)
    up, down = _bytes(manifest, events)
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
        "labels": {str(event["node"]): event["labels"] for event in events.get("labels", [])},
    }


def finished(directory: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its end, whatever its verdict; None of any other."""
    if not (directory / SUMMARY).exists():
        return None
    summary = read_json(directory / SUMMARY)
    return summary if summary.get("ended") else None


def mean_density(directory: Path) -> float:
    """``mean_k`` of a finished run. Raises InputError where there is no usable mean."""
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
    """When the last update was applied, by a worker or by an asynchronous server."""
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
    counts = Counter(step["node"] for step in steps)
    return min((counts[worker] for worker in workers), default=0)


def phase_means(steps: Records, dilation: float) -> dict[str, float]:
    """Mean seconds per step and worker of every phase."""
    if not steps:
        return {}
    columns = [array("d") for _ in PHASES]
    for step in steps:
        for column, phase in zip(columns, PHASES, strict=True):
            column.append(phase_s(step, phase))
    return {p: fmean(column) / dilation for p, column in zip(PHASES, columns, strict=True)}


def selection_means(steps: Records) -> dict[str, float | None]:
    """Mean share of elements sent, and mean passes over the vector, of steps that tell them."""
    shares, passes = array("d"), array("d")
    for step in steps:
        shares.append(int(step["sent_count"]) / int(step["size"]))
        if (how := step.get("selection")) is not None:
            passes.append(float(how["passes"]))
    means = fmean(shares) if shares else None, fmean(passes) if passes else None
    return dict(zip(SELECTION, means, strict=True))


def time_to_accuracy(evaluations: Records, dilation: float) -> dict[str, float]:
    """When each level of test accuracy was first reached; levels never reached are left out."""
    times = {f"{level:g}": first_reached(evaluations, level, dilation) for level in LEVELS}
    return {level: time_s for level, time_s in times.items() if time_s is not None}


def first_reached(evaluations: Records, level: float, dilation: float) -> float | None:
    """Model seconds until the first evaluation of at least ``level``; None if there is none."""
    for evaluation in sorted(evaluations, key=lambda evaluation: int(evaluation["step"])):
        if evaluation["accuracy"] >= level:
            return float(evaluation["time_s"]) / dilation
    return None


def step_bytes(manifest: Mapping[str, Any], events: Events) -> Iterator[tuple[int, int, int]]:
    """Yield steps, in no order, and frame bytes that went up and down in them: from every worker's
    records; where not all workers have some, from the servers' rounds."""
    if recorded_every(manifest) > 1:
        for round_ in events.get("round", []):
            up = sum(int(message["bytes"]) for message in round_["messages"])
            yield int(round_["step"]), up, int(round_["bytes_down"])
        return
    for record in Joined(*(events.get(kind, []) for kind in ("step", "rest", "away"))):
        step = int(record.get("returned", record["step"]))
        yield step, int(record["bytes_up"]), int(record["bytes_down"])


def _bytes(manifest: Mapping[str, Any], events: Events) -> tuple[int, int]:
    """Frame bytes of all gradients and of all replies."""
    up = down = 0
    for _, more_up, more_down in step_bytes(manifest, events):
        up, down = up + more_up, down + more_down
    return up, down


def _step_times(directory: Path, manifest: Mapping[str, Any], steps: Records, taken: Records,
                rounds: Records, dilation: float) -> dict[str, float | None]:  # fmt: skip
    """``taken``: steps, and those in which workers rested. How long a step took, how long it should
    have, and its share of communication."""
    if not steps:
        return dict.fromkeys(("step_s", "expected_step_s", "communication_share"))
    history = LinkLog(read_jsonl(directory / LINKS))
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
    """A summary's keys of its verdict: the one given, that there already, or UNFINISHED."""
    if verdict is None and (directory / SUMMARY).exists():
        before = read_json(directory / SUMMARY)
        return {key: before.get(key) for key in ("verdict", "reasons", "measures", "ended")}
    fields = asdict(verdict or UNFINISHED)
    return {"verdict": fields.pop("state"), **fields}


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """A job's steps, and how they are known."""

    steps: Sequence[JobStep]
    by: str | None
    """``marks``; ``traffic``: inferred; None: not known."""
    confidence: float | None
    """1 of marks; of what was inferred, and of an attempt that failed, as ``Inferred`` says."""
    reason: str
    """In a sentence, why they are known or not."""


def is_job(manifest: Mapping[str, Any]) -> bool:
    """Return whether the run was of a command that does not use Narrows."""
    return "command" in manifest["algorithm"]


def known_steps(events: Events, traffic: LinkTraffic) -> KnownSteps:
    """Return the steps from marks where there are any, else as the links' traffic shows."""
    marked = job_steps(marked_steps(events.get("mark", [])), events.get("process", []))
    if marked:
        return KnownSteps(marked, "marks", 1.0, "The job's processes marked their steps.")
    inferred = infer(traffic, round_trip_s(events.get("socket", [])))
    by = "traffic" if inferred.ends_s else None
    return KnownSteps(_as_steps(inferred), by, inferred.confidence, inferred.reason)


def summarise_job(
    directory: Path, verdict: Verdict | None = None, traffic: LinkTraffic | None = None
) -> dict[str, Any]:
    """The object that becomes ``summary.json``; without ``verdict`` the one already there is kept.

    ``traffic``: what its links carried, where that has been read already. Raises InputError when
    the directory has no manifest.
    """
    manifest = read_json(directory / MANIFEST)
    events = read_events(directory)
    if traffic is None:
        traffic = LinkTraffic(read_jsonl(directory / LINKS))
    known = known_steps(events, traffic)
    dilation = float(manifest["dilation"])
    wall_s = _job_ended_s(events, known.steps, traffic)
    every = (step.length_s for step in known.steps)
    lengths = array("d", (length for length in every if length is not None))
    return {
        "dir": str(directory),
        "algorithm": manifest["algorithm"]["name"],
        "seed": manifest.get("seed", 0),
        **verdict_of(directory, verdict),
        "time_s": wall_s / dilation,
        "wall_s": wall_s,
        "steps": len(known.steps),
        "step_s": fmean(lengths) / dilation if lengths else None,
        "step_median_s": median(lengths) / dilation if lengths else None,
        "steps_by": known.by,
        "confidence": known.confidence,
        "steps_said": known.reason,
        "communication_share": share_of(known.steps, traffic, wall_s),
        "values": last_values(known.steps),
        "nodes": {name: _node(name, events, traffic) for name in manifest["nodes"]},
    }


def share_of(steps: Sequence[JobStep], traffic: LinkTraffic, wall_s: float) -> float | None:
    """Share of the steps' time (without steps, of the run's) that the busiest link was busy."""
    first = next((step.start_s for step in steps if step.start_s is not None), None)
    if first is None:
        return traffic.share(0.0, wall_s)
    return traffic.share(first, steps[-1].end_s)


def _as_steps(inferred: Inferred) -> Sequence[JobStep]:
    steps = JobSteps()
    for number, pair in enumerate(pairwise(inferred.ends_s), start=1):
        steps.append(JobStep(number, *pair, {}, {}))
    return steps


def _job_ended_s(events: Events, steps: Sequence[JobStep], traffic: LinkTraffic) -> float:
    """When the last process ended; without any such record, when the records do."""
    if processes := events.get("process"):
        return max(float(process["ended_s"]) for process in processes)
    last_s = float(traffic.times_s[-1]) if len(traffic) else 0.0
    return max([last_s, *(step.end_s for step in steps)])


def _node(name: str, events: Events, traffic: LinkTraffic) -> dict[str, Any]:
    """Bytes on its link, or at its data interface; its processes' exit statuses."""
    carried = traffic.bytes_of(name)
    if carried is None:
        own = [c for c in events.get("carried", []) if c["node"] == name and c["role"] == "data"]
        carried = sum(int(c["sent_bytes"]) for c in own), sum(int(c["received_bytes"]) for c in own)
    ended = [process for process in events.get("process", []) if process["node"] == name]
    return {
        "up_bytes": carried[0],
        "down_bytes": carried[1],
        "statuses": [int(p["status"]) for p in sorted(ended, key=lambda p: int(p["local_rank"]))],
    }
