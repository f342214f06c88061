"""From a foreign job's records to its verdict, certificate and summary, and bytes that it moved
without its links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed.fidelity.evidence import Evidence, Trip
from testbed.fidelity.evidence import unattributed_bytes as link_unattributed
from testbed.fidelity.run_checks import nodes_seen
from testbed.fidelity.summary import summarise_job
from testbed.records.link_log import LinkLog, LinkTraffic, TrafficRows
from testbed.records.manifest import THRESHOLDS, Thresholds
from testbed.records.run_directory import LINKS, SUMMARY, RunDirectory, read_events, read_jsonl
from testbed.records.stored import Events, Records
from testbed.runner.judge import (
    link_evidence,
    path_model,
    requested_links,
    write_certificate,
    write_failure,
)
from testbed.runner.trial import TrialOutcome, TrialPlan
from testbed.scenario.link_state import SEGMENT_HEADER_BYTES
from testbed.scenario.node_timeline import node_changes

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
    carried: Records, sockets: Records, *, processes: int, limits: Thresholds = THRESHOLDS
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
    """Return why connections leave bytes of a link unaccounted, keyed by link direction."""
    nodes = {interface["node"] for interface in carried}
    tcp = Counter[str]()
    reasons: dict[str, str] = {}
    for socket in socket_counts(sockets):
        tcp[socket["node"]] += socket["bytes_sent"] + socket["header_bytes"] * socket["segs_out"]
        if socket["peer"] is None:
            reasons[f"{socket['node']} down"] = "it has spoken with somebody who is no node"
    for interface in carried:
        # An interface counts a bundle's headers once, so that it never counts more than the packets
        # had.
        node, sent = interface["node"], interface["sent_bytes"]
        more = sent - tcp[node]
        slack = limits.identity_slack_bytes + limits.identity_deviation * sent
        if interface["role"] == "data" and more > slack:
            ends = [f"{node} up", *(f"{other} down" for other in nodes if other != node)]
            why = f"{node} has sent {more} B that no TCP connection accounts for"
            reasons.update(dict.fromkeys(ends, why))
    return reasons


def round_trips(sockets: Records) -> list[Trip]:
    """The least round-trip times between nodes, and to the switch."""
    return [
        (socket["node"], socket["peer_node"], socket["least_rtt_us"] / 1e6)
        for socket in sockets
        if socket["interface"] == "data" and socket["least_rtt_us"] is not None
    ]


def _allowed(carried: Records, limits: Thresholds) -> Callable[[str], float]:
    """Return the bytes that a node may send elsewhere: a rendezvous is no training."""
    linked = _linked(carried)
    return lambda node: max(limits.around_floor_bytes, limits.around_share * linked[node])


def _linked(carried: Records) -> Counter[str]:
    """Return bytes both ways over a node's shaped interface, keyed by node."""
    linked = Counter[str]()
    for interface in carried:
        if interface["role"] == "data":
            linked[interface["node"]] += interface["sent_bytes"] + interface["received_bytes"]
    return linked


def _sent_over(carried: Records, role: str) -> Counter[str]:
    """Return bytes that a node sent over its interfaces of ``role``, keyed by node."""
    sent = Counter[str]()
    for interface in carried:
        if interface["role"] == role:
            sent[interface["node"]] += interface["sent_bytes"]
    return sent


def _control(carried: Records, sockets: Records, allowed: Callable[[str], float]) -> Iterator[str]:
    """Yield a finding for what went between nodes over the control network: it has no links."""
    sent = _sent_over(carried, "control")
    for socket in sockets:
        if socket["interface"] == "control" and socket["peer_node"] is None:
            packets = _header(socket) * socket["segments_out"]
            sent[socket["node"]] -= socket["bytes_sent"] + packets
    most = [(node, octets) for node, octets in sent.most_common() if octets > allowed(node)]
    for node, octets in most[:1]:
        yield (
            f"{node} sent {octets} B over the control network, which is not "
            f"shaped{_to(node, sockets)}{_more(most)}. {_CONTROL}"
        )


def _loopback(carried: Records, limits: Thresholds) -> Iterator[str]:
    """Yield a finding where a node sent more to itself than to all others."""
    if len({interface["node"] for interface in carried}) == 1:
        return  # there is nobody else
    sent, linked, floor = (
        _sent_over(carried, "loopback"),
        _linked(carried),
        limits.around_floor_bytes,
    )
    most = [
        (node, octets) for node, octets in sent.most_common() if octets > max(floor, linked[node])
    ]
    for node, octets in most[:1]:
        yield (
            f"the loopback interface of {node} carried {octets} B{_more(most)}, more than its "
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


def _more(nodes: Sequence[object]) -> str:
    return f" (and {len(nodes) - 1} more of the kind)" if len(nodes) > 1 else ""


def _header(socket: Mapping[str, Any]) -> int:
    return SEGMENT_HEADER_BYTES + (IPV6_MORE_BYTES if socket["own"].startswith("[") else 0)


ROUTES = ("carried", "socket")
"""Kinds of events that tell by which routes a job's bytes went."""


def conclude(
    plan: TrialPlan, outcome: TrialOutcome, *, seconds: float, processes: int, missed: Sequence[str]
) -> dict[str, Any]:
    """Find the verdict, write ``certificate.json`` and ``summary.json``; returns the summary.

    ``seconds``: from t0 to the last process's end; ``processes``: of each node; ``missed``: why
    connections are missing.
    """
    directory = plan.directory
    history, traffic = _read(directory)
    if outcome.error is not None:
        verdict = write_failure(plan, history, outcome.error)
    else:
        events = read_events(directory.path, ROUTES)
        evidence = _evidence(plan, outcome, history, events, seconds)
        carried, sockets = events.get("carried", []), events.get("socket", [])
        evidence = replace(
            evidence,
            unattributed={
                **unattributed_bytes(carried, sockets),
                **evidence.unattributed,
                **{str(end): why for end in plan.experiment.timeline.ends for why in missed[:1]},
            },
            bypasses=bypass_findings(carried, sockets, processes=processes),
            bypass_unwatched=missed,
        )
        verdict = write_certificate(plan, evidence, history, history.under_way)
    summary = summarise_job(directory.path, verdict, traffic)
    directory.write_json(SUMMARY, summary)
    return summary


def _read(directory: RunDirectory) -> tuple[LinkLog, LinkTraffic]:
    """The links' records, gone through once: of a day there are millions."""
    rows = TrafficRows()
    history = LinkLog(rows.passing(read_jsonl(directory.path / LINKS)), rates=False)
    return history, LinkTraffic(rows)


def _evidence(
    plan: TrialPlan, outcome: TrialOutcome, history: LinkLog, events: Events, seconds: float
) -> Evidence:
    scenario, requested = plan.experiment.scenario, requested_links(plan, outcome)
    sockets = events.get("socket", [])
    evidence = link_evidence(
        outcome,
        history,
        requested,
        path_model(scenario, requested),
        seconds=seconds,
        under_way=history.under_way,
        trips=round_trips(sockets),
    )
    return replace(
        evidence,
        sockets=socket_counts(sockets),
        unattributed=link_unattributed(requested, outcome.crossed),
        nodes=nodes_seen(node_changes(scenario), history.nodes, seconds),
    )
