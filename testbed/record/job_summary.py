"""What a job that is somebody else's came to, from its run directory alone. Times in model time unless a name says
``wall``."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from testbed.record.directory import LINKS, MANIFEST, read_events, read_json, read_jsonl
from testbed.record.inferred import Inferred, infer
from testbed.record.job_steps import JobStep, JobSteps, job_steps, last_values, marked_steps
from testbed.record.lost import Events
from testbed.record.summary import verdict_of
from testbed.record.traffic import Traffic
from testbed.record.verdict import Verdict


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
    """Whether the run was of a command that knows nothing of us."""
    return "command" in manifest["algorithm"]


def known_steps(events: Events, traffic: Traffic) -> KnownSteps:
    """By marks where there are any, else as the links' traffic shows."""
    marked = job_steps(marked_steps(events.get("mark", [])), events.get("process", []))
    if marked:
        return KnownSteps(marked, "marks", 1.0, "The job's processes marked their steps.")
    found = infer(traffic)
    by = "traffic" if found.ends_s else None
    return KnownSteps(_as_steps(found), by, found.confidence, found.reason)


def summarise_job(
    directory: Path, verdict: Verdict | None = None, traffic: Traffic | None = None
) -> dict[str, Any]:
    """The object that becomes ``summary.json``; without ``verdict`` the one already there is kept.

    ``traffic``: what its links carried, where that has been read already. Raises InputError when the directory has no manifest.
    """
    manifest = read_json(directory / MANIFEST)
    events = read_events(directory)
    if traffic is None:
        traffic = Traffic(read_jsonl(directory / LINKS))
    known = known_steps(events, traffic)
    dilation = float(manifest["dilation"])
    wall_s = _ended_s(events, known.steps, traffic)
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


def share_of(steps: Sequence[JobStep], traffic: Traffic, wall_s: float) -> float | None:
    """The share of the steps' time in which the busiest link was busy; of the whole run where there are no steps."""
    first = next((step.start_s for step in steps if step.start_s is not None), None)
    if first is None:
        return traffic.share(0.0, wall_s)
    return traffic.share(first, steps[-1].end_s)


def _as_steps(found: Inferred) -> Sequence[JobStep]:
    steps = JobSteps()
    for number, pair in enumerate(pairwise(found.ends_s), start=1):
        steps.append(JobStep(number, *pair, {}, {}))
    return steps


def _ended_s(events: Events, steps: Sequence[JobStep], traffic: Traffic) -> float:
    """When the last process ended; without any such record, when the records do."""
    if processes := events.get("process"):
        return max(float(process["ended_s"]) for process in processes)
    last_s = float(traffic.times_s[-1]) if len(traffic) else 0.0
    return max([last_s, *(step.end_s for step in steps)])


def _node(name: str, events: Events, traffic: Traffic) -> dict[str, Any]:
    """Bytes on its link, or at its data interface where its link was not sampled; its processes' exit statuses."""
    found = traffic.bytes_of(name)
    if found is None:
        own = [c for c in events.get("carried", []) if c["node"] == name and c["role"] == "data"]
        found = sum(int(c["sent_bytes"]) for c in own), sum(int(c["received_bytes"]) for c in own)
    ended = [process for process in events.get("process", []) if process["node"] == name]
    return {
        "up_bytes": found[0],
        "down_bytes": found[1],
        "statuses": [int(p["status"]) for p in sorted(ended, key=lambda p: int(p["local_rank"]))],
    }
