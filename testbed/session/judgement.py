"""From a trial's records to its verdict and its summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import LinkError
from testbed.record.completion import measure
from testbed.record.directory import LINKS, read_events, read_jsonl
from testbed.record.history import LinkHistory
from testbed.record.summary import entry, summarise
from testbed.record.verdict import Evidence, Verdict, judge
from testbed.session.consistency import faults

if TYPE_CHECKING:
    from testbed.session.trial import Trial


EVIDENCE = "evidence.json"
"""What a verdict was found on besides the records: the links' report, the kernel's count of every socket."""


def conclude(trial: Trial) -> dict[str, Any]:
    """Find the verdict, write ``summary.json``, return the run's entry."""
    path = trial.directory.path
    summary = summarise(path, _verdict(trial, path))
    trial.directory.write_json("summary.json", summary)
    return entry(summary)


def _verdict(trial: Trial, path: Path) -> Verdict:
    outcome = trial.outcome
    if outcome.error is not None:
        return Verdict("invalid", [f"The run did not end: {outcome.error}"])
    evidence = _evidence(trial, path)
    trial.directory.write_json(
        EVIDENCE, {"links": evidence.links, "sockets": evidence.sockets, "nodes": outcome.done}
    )
    return judge(evidence)


def _evidence(trial: Trial, path: Path) -> Evidence:
    events, history = read_events(path), LinkHistory(read_jsonl(path / LINKS))
    steps, rounds = events.get("step", []), events.get("round", [])
    report = trial.outcome.links
    seconds = max((step["end_s"] for step in steps), default=0.0)
    return Evidence(
        seconds=seconds,
        links=[] if report is None else report.to_json()["links"],
        steps=steps,
        rounds=rounds,
        sockets=_sockets(trial.outcome.done),
        completion=measure(
            rounds,
            steps,
            {spec.peer: spec.name for spec in trial.session.specs},
            trial.experiment.timeline.bits,
            history.dropped,
            history.stolen,
        ),
        stolen_share=history.stolen_s / max(seconds * (os.cpu_count() or 1), 1e-9),
        foreign_drops={"the host's receive backlog": trial.outcome.backlog_drops},
        faults=faults(trial.outcome.done, steps, events.get("epoch", [])),
        mismatches=[str(error) for error in [trial.outcome.error] if isinstance(error, LinkError)],
    )


def _sockets(done: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Socket counters by the names of both ends, out of the nodes' last messages."""
    return [
        {
            "node": node,
            "peer": peer,
            "bytes_sent": counted["bytes_sent"],
            "segs_out": counted["segments_out"],
        }
        for node, message in done.items()
        for peer, counted in message["counters"].items()
    ]
