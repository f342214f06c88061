"""From a foreign job's records to its verdict, certificate and summary, and bytes that it moved
without its links.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from testbed.fidelity.evidence import Evidence, Trip, gather
from testbed.fidelity.evidence import unattributed_bytes as link_unattributed
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.run_checks import nodes_seen
from testbed.fidelity.summary import Events, summarise_job
from testbed.fidelity.verdict import Verdict
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog, LinkTraffic, TrafficRows
from testbed.records.manifest import THRESHOLDS, Thresholds
from testbed.records.run_directory import LINKS, SUMMARY, RunDirectory, read_events, read_jsonl
from testbed.runner.judge import ways_of, write_certificate
from testbed.scenario.link_state import SEGMENT_HEADER_BYTES
from testbed.scenario.load import Loaded
from testbed.scenario.node_timeline import node_changes

if TYPE_CHECKING:
    from testbed.runner.exec.trial import ExecTrial


Records = Sequence[Mapping[str, Any]]

IPV6_MORE_BYTES = 20
"""Bytes by which IPv6's header is longer than IPv4's."""
_CONTROL = (
    "Set GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to $NARROWS_INTERFACE, and "
    "have programs listen on $NARROWS_ADDRESS and connect to $MASTER_ADDR"
)
_LOOPBACK = (
    "Either everything ran inside one node, or a name resolved to 127.0.0.1: use $NARROWS_ADDRESS "
    "and $MASTER_ADDR; where several processes of a node talk to each other, say how many with "
    "--nproc"
)


def bypass_findings(
    carried: Records,
    sockets: Records,
    *,
    processes: int,
    limits: Thresholds = THRESHOLDS,
) -> list[str]:
    """A sentence for every way that bytes took around the shaped interfaces; records as in
    ``records.job_steps``.

    ``processes``: of each node. Where there are several, they may use its loopback.
    """
    allowed = _allowed(carried, limits)
    return [
        *_control(carried, sockets, allowed),
        *(_loopback(carried, limits) if processes == 1 else ()),
    ]


def socket_counts(sockets: Records) -> list[dict[str, Any]]:
    """Connections over links in the form that ``run_checks.class_bytes_expected`` takes."""
    return [
        {
            "node": socket["node"],
            "peer": socket["peer_node"],
            "bytes_sent": socket["bytes_sent"],
            "segs_out": socket["segments_out"],
            "header_bytes": _header(socket),
        }
        for socket in sockets
        if socket["interface"] == "data"
    ]


def unattributed_bytes(
    carried: Records, sockets: Records, limits: Thresholds = THRESHOLDS
) -> dict[str, str]:
    """Return why connections leave bytes of a link unaccounted, keyed by place: not TCP's, or of no
    node."""
    nodes = {one["node"] for one in carried}
    tcp = Counter[str]()
    found: dict[str, str] = {}
    for socket in socket_counts(sockets):
        tcp[socket["node"]] += socket["bytes_sent"] + socket["header_bytes"] * socket["segs_out"]
        if socket["peer"] is None:
            found[f"{socket['node']} down"] = "it has spoken with somebody who is no node"
    for one in carried:
        # An interface counts a bundle's headers once, so that it never counts more than the packets
        # had.
        node, more = one["node"], one["sent_bytes"] - tcp[one["node"]]
        slack = limits.identity_slack_bytes + limits.identity_deviation * one["sent_bytes"]
        if one["role"] == "data" and more > slack:
            said = f"{node} has sent {more} B that no TCP connection accounts for"
            ends = [f"{node} up", *(f"{other} down" for other in nodes if other != node)]
            found.update((end, said) for end in ends)
    return found


def round_trips(sockets: Records) -> list[Trip]:
    """The least round-trip times between nodes, and to the switch."""
    return [
        (socket["node"], socket["peer_node"], socket["least_rtt_us"] / 1e6)
        for socket in sockets
        if socket["interface"] == "data" and socket["least_rtt_us"] is not None
    ]


def _allowed(carried: Records, limits: Thresholds) -> Callable[[str], float]:
    """Return a function of the node for the bytes that may go elsewhere: a meeting's messages are
    no training."""
    linked = _linked(carried)
    return lambda node: max(limits.around_floor_bytes, limits.around_share * linked[node])


def _linked(carried: Records) -> Counter[str]:
    """Return bytes both ways over a node's shaped interface, keyed by node."""
    found = Counter[str]()
    for one in carried:
        if one["role"] == "data":
            found[one["node"]] += one["sent_bytes"] + one["received_bytes"]
    return found


def _control(carried: Records, sockets: Records, allowed: Callable[[str], float]) -> Iterator[str]:
    """Yield a finding for what left by the control network, save connections to others than nodes:
    no link is there."""
    sent = Counter[str]()
    for one in carried:
        if one["role"] == "control":
            sent[one["node"]] += one["sent_bytes"]
    for socket in sockets:
        if socket["interface"] == "control" and socket["peer_node"] is None:
            packets = _header(socket) * socket["segments_out"]
            sent[socket["node"]] -= socket["bytes_sent"] + packets
    found = [(node, octets) for node, octets in sent.most_common() if octets > allowed(node)]
    for node, octets in found[:1]:
        yield (
            f"{node} sent {octets} B over the control network, which is not "
            f"shaped{_to(node, sockets)}{_more(found)}. {_CONTROL}"
        )


def _loopback(carried: Records, limits: Thresholds) -> Iterator[str]:
    """Yield a finding where a node says more to itself than to all others: less is no sign, as it
    misses no link."""
    if len({one["node"] for one in carried}) == 1:
        return  # there is nobody else
    sent, linked = Counter[str](), _linked(carried)
    for one in carried:
        if one["role"] == "loopback":
            sent[one["node"]] += one["sent_bytes"]
    found = [
        (node, octets)
        for node, octets in sent.most_common()
        if octets > max(limits.around_floor_bytes, linked[node])
    ]
    for node, octets in found[:1]:
        yield (
            f"the loopback interface of {node} carried {octets} B{_more(found)}, more than its "
            "link, and one process was to run there. "
            f"{_LOOPBACK}"
        )


def _to(node: str, sockets: Records) -> str:
    """The connection that sent the most of it."""
    mine = [
        socket
        for socket in sockets
        if socket["node"] == node and socket["interface"] == "control" and socket["peer_node"]
    ]
    if not mine:
        return ""
    most = max(mine, key=lambda socket: int(socket["bytes_sent"]))
    return f" (most of it from {most['own']} to {most['peer']} of {most['peer_node']})"


def _more(found: Sequence[object]) -> str:
    return f" (and {len(found) - 1} more of the kind)" if len(found) > 1 else ""


def _header(socket: Mapping[str, Any]) -> int:
    return SEGMENT_HEADER_BYTES + (IPV6_MORE_BYTES if socket["own"].startswith("[") else 0)


WAYS = ("carried", "socket", "shared")
"""Kinds of events that tell by which ways a job's bytes went."""


def conclude(
    performance: ExecTrial,
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
        verdict = write_certificate(
            directory, Evidence(), history, IntervalSet(), dilation, cut_short
        )
    else:
        events = read_events(directory.path, WAYS)
        evidence = _evidence(performance, loaded, held, history, events)
        verdict = write_certificate(directory, evidence, history, history.under_way, dilation)
    summary = summarise_job(directory.path, verdict, traffic)
    directory.write_json(SUMMARY, summary)
    return summary


def _read(directory: RunDirectory) -> tuple[LinkLog, LinkTraffic]:
    """The links' records, gone through once: of a day there are millions."""
    rows = TrafficRows()
    history = LinkLog(rows.passing(read_jsonl(directory.path / LINKS)), rates=False)
    return history, LinkTraffic(rows)


def _evidence(
    performance: ExecTrial,
    loaded: Loaded,
    held: Mapping[str, Any],
    history: LinkLog,
    events: Events,
) -> Evidence:
    links = [] if performance.links is None else performance.links.to_json()["links"]
    until_s = max((float(link["to_s"]) for link in links), default=0.0)
    assert performance.watch is not None, "a job that has begun is watched"
    carried, sockets = events.get("carried", []), events.get("socket", [])
    asked, scenario = RequestedLinks.of(loaded.timeline(), until_s), loaded.wall()
    found = gather(
        links,
        history,
        asked,
        seconds=performance.seconds,
        processors=os.cpu_count() or 1,
        under_way=history.under_way,
        held=held["links"],
        trips=round_trips(sockets),
        ways=ways_of(scenario, asked),
    )
    return replace(
        found,
        sockets=socket_counts(sockets),
        unattributed={
            **unattributed_bytes(carried, sockets),
            **link_unattributed(asked, performance.bystanders.crossed),
            **{str(end): why for end in asked.ends for why in performance.watch.missed[:1]},
        },
        bypasses=bypass_findings(carried, sockets, processes=performance.processes),
        bypass_unwatched=performance.watch.missed,
        nodes=nodes_seen(node_changes(scenario), history.nodes, performance.seconds),
        foreign_drops={"the host's receive backlog": performance.backlog_drops},
    )
