"""From a job's records to its verdict, its certificate and its summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from testbed.record.around import around, counted, trips, unaccounted
from testbed.record.asked import Asked
from testbed.record.directory import LINKS, SUMMARY, RunDirectory, read_events, read_jsonl
from testbed.record.evidence import Evidence
from testbed.record.gather import gather
from testbed.record.gather import unaccounted as unaccounted_links
from testbed.record.history import LinkHistory
from testbed.record.job_summary import summarise_job
from testbed.record.lost import Events
from testbed.record.node_events import nodes_seen
from testbed.record.spans import Spans
from testbed.record.traffic import Traffic, TrafficRows
from testbed.record.verdict import Verdict
from testbed.scenario.load import Loaded
from testbed.scenario.node_events import node_changes
from testbed.session.judgement import certify, ways_of

if TYPE_CHECKING:
    from testbed.job.performance import Performance


WAYS = ("carried", "socket", "shared")
"""Kinds of events that tell by which ways a job's bytes went."""


def conclude(
    performance: Performance,
    loaded: Loaded,
    directory: RunDirectory,
    held: Mapping[str, Any],
    error: BaseException | None,
) -> dict[str, Any]:
    """Find the verdict, write ``certificate.json`` and ``summary.json``; returns the summary."""
    history, traffic = _read(directory)
    dilation = loaded.scenario.dilation
    if error is not None:
        cut_short = Verdict.of_failure(error)
        verdict = certify(directory, Evidence(), history, Spans(), dilation, cut_short)
    else:
        events = read_events(directory.path, WAYS)
        evidence = _evidence(performance, loaded, held, history, events)
        verdict = certify(directory, evidence, history, history.under_way, dilation)
    summary = summarise_job(directory.path, verdict, traffic)
    directory.write_json(SUMMARY, summary)
    return summary


def _read(directory: RunDirectory) -> tuple[LinkHistory, Traffic]:
    """The links' records, gone through once: of a day there are millions."""
    rows = TrafficRows()
    history = LinkHistory(rows.passing(read_jsonl(directory.path / LINKS)), rates=False)
    return history, Traffic(rows)


def _evidence(
    performance: Performance,
    loaded: Loaded,
    held: Mapping[str, Any],
    history: LinkHistory,
    events: Events,
) -> Evidence:
    links = [] if performance.links is None else performance.links.to_json()["links"]
    until_s = max((float(link["to_s"]) for link in links), default=0.0)
    assert performance.watch is not None, "a job that has begun is watched"
    carried, sockets = events.get("carried", []), events.get("socket", [])
    asked, scenario = Asked.of(loaded.timeline(), until_s), loaded.wall()
    found = gather(
        links,
        history,
        asked,
        seconds=performance.seconds,
        processors=os.cpu_count() or 1,
        under_way=history.under_way,
        held=held["links"],
        trips=trips(sockets),
        ways=ways_of(scenario, asked),
    )
    return replace(
        found,
        sockets=counted(sockets),
        unaccounted={
            **unaccounted(carried, sockets),
            **unaccounted_links(asked, performance.bystanders.crossed),
            **{str(end): why for end in asked.ends for why in performance.watch.missed[:1]},
        },
        around=around(carried, sockets, processes=performance.processes),
        unwatched=performance.watch.missed,
        nodes=nodes_seen(node_changes(scenario), history.nodes, performance.seconds),
        foreign_drops={"the host's receive backlog": performance.backlog_drops},
    )
