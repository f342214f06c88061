"""Run directories of jobs made by calculation: links of ``link_pauses``, with marks or without."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from link_pauses import NODES, swinging, synchronous
from synthetic_run import MACHINE

from testbed.fidelity.summary import summarise_job
from testbed.fidelity.verdict import Verdict
from testbed.records.job_steps import CarriedRecord, MarkRecord, ProcessRecord
from testbed.records.manifest import manifest
from testbed.records.run_directory import RunDirectory

COMPUTE_S = 0.4


@dataclass
class Job:
    """What a synthetic job is made of."""

    label: str = "fp32"
    megabytes: float = 2.0
    steps: int = 20
    marked: bool = True
    dilation: float = 1.0
    scenario: str = "four"
    verdict: Verdict = field(default_factory=lambda: Verdict("valid"))


def make_job(out: Path, job: Job) -> Path:
    """Write a whole run directory as ``testbed exec`` would."""
    directory = RunDirectory.create(
        out, scenario_name=job.scenario, algorithm=job.label, seed=0, content_hash="0123456789ab"
    )
    nodes = {name: {"role": "worker", "rank": i, "peer": i} for i, name in enumerate(NODES)}
    command = ["python", "train.py", "--hook", job.label]
    directory.write_json(
        "manifest.json",
        manifest(
            scenario_name=job.scenario, content_hash="0123456789ab",
            algorithm={"name": job.label, "command": command, "nproc": 1}, seed=0,
            dilation=job.dilation, pace_s=None, nodes=nodes, links=[], fabric="netns",
            machine=MACHINE, started_utc="2026-01-01T00:00:00+00:00",
        ),
    )  # fmt: skip
    links, ends = synchronous(swinging, [COMPUTE_S] * job.steps, job.megabytes)
    directory.link(links.samples())
    for rank, node in enumerate(NODES):
        if job.marked:
            directory.events("worker", rank, [m.to_json() for m in _marks(node, rank, ends)])
        process = ProcessRecord(node, rank, 0, 0.0, ends[-1] + 0.5, 0, False)
        carried = CarriedRecord(node, "eth0", "data", 7, 1, 9, 1)
        directory.events("worker", rank, [process.to_json(), carried.to_json()])
    directory.write_json("summary.json", summarise_job(directory.path, job.verdict))
    directory.close()
    return directory.path


def _marks(node: str, rank: int, ends: list[float]) -> list[MarkRecord]:
    """The first process ends each step a little sooner than the second."""
    early_s = 0.01 * (1 - rank)
    marks = [MarkRecord(node, rank, 0, "begin", None, None, ends[0], {})]
    for number, (start_s, end_s) in enumerate(pairwise(ends), start=1):
        marks += [
            MarkRecord(node, rank, 0, "phase", "compute", None, start_s, {}),
            MarkRecord(node, rank, 0, "phase", "exchange", None, start_s + COMPUTE_S, {}),
            MarkRecord(node, rank, 0, "step", None, number, end_s - early_s, {"loss": (rank + 1) / number}),
        ]  # fmt: skip
    return marks
