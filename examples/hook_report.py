"""Steps and losses of one training script under several gradient hooks, paired by seed.

From run directories of ``testbed exec … -- python SCRIPT [HOOK] --seed S``: the job's name is the
hook, its command holds the seed, its output ends with ``loss L on unseen text``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.statistics import Interval, interval, ratio
from testbed.records.run_directory import LINKS, MANIFEST, SUMMARY, read_json, read_jsonl

HEADER_BYTES = 66
"""Ethernet, IP and TCP with timestamps, of every packet that a link counts."""
_LOSS = re.compile(r"rank 0: loss ([\d.]+) on unseen text")


@dataclass(frozen=True, slots=True)
class Trained:
    """One job that ended. ``loss``: nats per character. ``sent_bytes``: TCP payload, by node."""

    hook: str
    seed: int
    steps: int
    step_s: float
    loss: float
    verdict: str
    sent_bytes: tuple[float, ...]


def trained(directory: Path) -> Trained | None:
    """The job of a run directory; None where it did not end, or its steps are not known."""
    if not (directory / SUMMARY).exists():
        return None
    summary, manifest = read_json(directory / SUMMARY), read_json(directory / MANIFEST)
    command = manifest["algorithm"]["command"]
    output = "".join(path.read_text() for path in sorted((directory / "log").glob("*.log")))
    said = _LOSS.search(output)
    if said is None or summary["step_s"] is None or "--seed" not in command:
        return None
    return Trained(
        hook=manifest["algorithm"]["name"],
        seed=int(command[command.index("--seed") + 1]),
        steps=int(command[command.index("--steps") + 1]),
        step_s=summary["step_s"],
        loss=float(said[1]),
        verdict=summary["verdict"],
        sent_bytes=_sent_bytes(directory, list(manifest["nodes"])),
    )


def trained_in(folder: Path) -> list[Trained]:
    """All jobs under ``folder``/runs; of several with the same hook, seed and steps the last
    one."""
    results = (trained(path) for path in sorted((folder / "runs").glob("*")))
    jobs = [job for job in results if job is not None]
    return list({(job.hook, job.seed, job.steps): job for job in jobs}.values())


def report(
    jobs: Sequence[Trained],
    ours: str,
    names: Sequence[str],
    size_bytes: float,
    steps: int | None = None,
) -> Iterator[str]:
    """Lines: every hook's step, loss and bytes; then how ``ours`` compares with each other one of
    ``names``.

    ``size_bytes``: of all gradients in float32, D; ring all-reduce sends 2(n − 1)/n · D per node
    and step. ``steps``: of the jobs that count; None: those with most.
    """
    steps = steps or max(job.steps for job in jobs)
    jobs = [job for job in jobs if job.steps == steps]
    for name in names:
        mine = [job for job in jobs if job.hook == name]
        step, loss = interval([job.step_s for job in mine]), interval([job.loss for job in mine])
        shares = [_share(job, size_bytes) for job in mine]
        verdicts = ", ".join(sorted({job.verdict for job in mine}))
        yield (
            f"{name}: {len(mine)} seeds, {steps} steps of {_text(step)} s, loss {_text(loss)}, "
            f"bytes {min(shares):.4f}–{max(shares):.4f} of float32 all-reduce; {verdicts}"
        )
    for other in names:
        if other != ours and (pairs := _pairs(jobs, ours, other)):
            faster = ratio([b.step_s for _, b in pairs], [a.step_s for a, _ in pairs])
            worse = ratio([a.loss for a, _ in pairs], [b.loss for _, b in pairs])
            yield (
                f"{ours} against {other}: {_text(faster)} times as fast per step, "
                f"{_text(worse)} of its loss, {len(pairs)} pairs"
            )


def _pairs(jobs: Sequence[Trained], ours: str, other: str) -> list[tuple[Trained, Trained]]:
    theirs = {job.seed: job for job in jobs if job.hook == other}
    mine = (job for job in jobs if job.hook == ours and job.seed in theirs)
    return [(job, theirs[job.seed]) for job in mine]


def _share(job: Trained, size_bytes: float) -> float:
    """Return the bytes that an average node sent, as a share of ring all-reduce's in float32."""
    nodes = len(job.sent_bytes)
    return sum(job.sent_bytes) / nodes / (2 * (nodes - 1) / nodes * size_bytes * job.steps)


def _sent_bytes(directory: Path, nodes: Sequence[str]) -> tuple[float, ...]:
    sent = dict.fromkeys(nodes, 0.0)
    for sample in read_jsonl(directory / LINKS):
        if sample.get("kind") == "sample" and sample["direction"] == "up":
            bytes_up = sample["delivered_bits"] / 8 - HEADER_BYTES * sample["packets"]
            sent[sample["link"]] = sent.get(sample["link"], 0.0) + bytes_up
    return tuple(sent.values())


def _text(estimate: Interval) -> str:
    if estimate.low is None or estimate.high is None:
        return "–" if estimate.mean is None else f"{estimate.mean:.4g}"
    return f"{estimate.mean:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"
