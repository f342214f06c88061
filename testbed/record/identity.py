"""Byte identity: three counts of the same bytes that must agree (the kernel's class, sockets, frames)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.scenario.shape import FRAME_BYTES, SEGMENT_HEADER_BYTES

Records = Sequence[Mapping[str, Any]]
_Counts = tuple[int, int, int]
"""Bytes up, bytes down, and workers."""


def class_bytes_expected(links: Records, sockets: Records) -> dict[str, tuple[int, float, float]]:
    """Per link direction ``(bytes at its class, least, most that the sockets account for)``.

    Up carries what the node's sockets sent, down what its peers' sockets sent to it. A packet dropped
    on the way was sent but never counted at the class: it takes away at least a bare header and at
    most a full bundle (``gso_max_segs`` frames; 1 if the report does not say). What a rack's link loses may
    be missing at any node's down link. Links that no socket names are left out.

    A multicast is one copy on its sender's link and one on each member's: records of it name one side only, and
    ``by`` whom it was sent; their datagrams have ``header_bytes``.
    """
    if not sockets:
        return {}
    result = {}
    nodes = {str(socket[side]) for socket in sockets for side in ("node", "peer") if socket[side]}
    bare = min(_header(socket) for socket in sockets)
    for link in links:
        node, direction = link["link"], link["direction"]
        if node not in nodes:
            continue  # a rack's link: no socket is its own
        side = "node" if direction == "up" else "peer"
        mine = [socket for socket in sockets if socket[side] == node]
        senders = {str(socket.get("by", socket["node"])) for socket in mine}
        sent = sum(s["bytes_sent"] + _header(s) * s["segs_out"] for s in mine)
        least = most = 0
        for other in links:
            own = other["link"] == node and other["direction"] == direction
            before = direction == "down" and (
                other["link"] not in nodes
                or (other["direction"] == "up" and other["link"] in senders)
            )
            if own or before:
                drops = int(other.get("drops") or 0)
                lost = int(other.get("line_lost") or 0) + int(other.get("line_limit") or 0)
                most += (drops + lost) * FRAME_BYTES * int(other.get("gso_max_segs") or 1)
                # A packet lost one hop earlier may have been meant for another node.
                least += drops * bare if own else 0
        result[f"{node} {direction}"] = (
            int(link["class_bytes"]),
            float(sent - most),
            float(sent - least),
        )
    return result


def _header(socket: Mapping[str, Any]) -> int:
    return int(socket.get("header_bytes", SEGMENT_HEADER_BYTES))


def frames_disagree(steps: Records, rounds: Records) -> list[str]:
    """A sentence for every finished round whose bytes differ between the workers and the servers.

    ``steps``: of workers that took part and of those that rested.
    """
    sent: dict[int, _Counts] = {}
    for step in steps:
        number = int(step["step"])
        up, down, workers = sent.get(number, (0, 0, 0))
        sent[number] = up + int(step["bytes_up"]), down + int(step["bytes_down"]), workers + 1
    seen: dict[int, tuple[int, int]] = {}
    for round_ in rounds:
        number, messages = int(round_["step"]), round_["messages"]
        if sent.get(number, (0, 0, 0))[2] != len(messages) + len(round_.get("others", [])):
            continue  # cut short: some worker never finished this step
        up, down = seen.get(number, (0, 0))
        up += sum(int(m["bytes"]) for m in messages)
        seen[number] = up, down + int(round_["bytes_down"])
    return [
        f"step {number}: the workers counted {sent[number][0]} B up and {sent[number][1]} B down, "
        f"the server {up} B and {down} B; not a byte may differ"
        for number, (up, down) in seen.items()
        if (up, down) != sent[number][:2]
    ]
