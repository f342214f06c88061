"""What a job moved from node to node without its links, out of its records: each way in words, with what to set. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from testbed.record.gather import Trip
from testbed.record.thresholds import THRESHOLDS, Thresholds
from testbed.scenario.shape import SEGMENT_HEADER_BYTES

Records = Sequence[Mapping[str, Any]]

IPV6_MORE_BYTES = 20
"""By which its header is longer than IPv4's."""
_CONTROL = (
    "Set GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to $NARROWS_INTERFACE, and have programs listen "
    "on $NARROWS_ADDRESS and connect to $MASTER_ADDR"
)
_LOOPBACK = (
    "Either everything ran inside one node, or a name resolved to 127.0.0.1: use $NARROWS_ADDRESS and $MASTER_ADDR; "
    "where several processes of a node talk to each other, say how many with --nproc"
)


def around(
    carried: Records,
    sockets: Records,
    *,
    processes: int,
    limits: Thresholds = THRESHOLDS,
) -> list[str]:
    """A sentence for every way that bytes took around the shaped interfaces; records as in ``job_events``.

    ``processes``: of each node. Where there are several, they may use its loopback.
    """
    allowed = _allowed(carried, limits)
    return [
        *_control(carried, sockets, allowed),
        *(_loopback(carried, limits) if processes == 1 else ()),
    ]


def counted(sockets: Records) -> list[dict[str, Any]]:
    """Connections over links in the form that ``identity.class_bytes_expected`` takes."""
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


def unaccounted(
    carried: Records, sockets: Records, limits: Thresholds = THRESHOLDS
) -> dict[str, str]:
    """By place, why connections do not account for all the link's bytes: some were not TCP's, or of no node's."""
    nodes = {one["node"] for one in carried}
    tcp = Counter[str]()
    found: dict[str, str] = {}
    for socket in counted(sockets):
        tcp[socket["node"]] += socket["bytes_sent"] + socket["header_bytes"] * socket["segs_out"]
        if socket["peer"] is None:
            found[f"{socket['node']} down"] = "it has spoken with somebody who is no node"
    for one in carried:
        # An interface counts a bundle's headers once, so that it never counts more than the packets had.
        node, more = one["node"], one["sent_bytes"] - tcp[one["node"]]
        slack = limits.identity_slack_bytes + limits.identity_deviation * one["sent_bytes"]
        if one["role"] == "data" and more > slack:
            said = f"{node} has sent {more} B that no TCP connection accounts for"
            ends = [f"{node} up", *(f"{other} down" for other in nodes if other != node)]
            found.update((end, said) for end in ends)
    return found


def trips(sockets: Records) -> list[Trip]:
    """The least round-trip times between nodes, and to the switch."""
    return [
        (socket["node"], socket["peer_node"], socket["least_rtt_us"] / 1e6)
        for socket in sockets
        if socket["interface"] == "data" and socket["least_rtt_us"] is not None
    ]


def _allowed(carried: Records, limits: Thresholds) -> Callable[[str], float]:
    """By node, how much may go elsewhere: a meeting's messages are no training."""
    linked = _linked(carried)
    return lambda node: max(limits.around_floor_bytes, limits.around_share * linked[node])


def _linked(carried: Records) -> Counter[str]:
    """By node, bytes both ways over its shaped interface."""
    found = Counter[str]()
    for one in carried:
        if one["role"] == "data":
            found[one["node"]] += one["sent_bytes"] + one["received_bytes"]
    return found


def _control(carried: Records, sockets: Records, allowed: Callable[[str], float]) -> Iterator[str]:
    """What left by it, but for connections to others than nodes: those go where no link is."""
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
            f"{node} sent {octets} B over the control network, which is not shaped{_to(node, sockets)}"
            f"{_more(found)}. {_CONTROL}"
        )


def _loopback(carried: Records, limits: Thresholds) -> Iterator[str]:
    """What a node says to itself misses no link: only where it is more than all that it says to others is it a sign."""
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
            f"the loopback interface of {node} carried {octets} B{_more(found)}, more than its link, and one process "
            f"was to run there. "
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
