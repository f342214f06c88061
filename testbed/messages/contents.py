"""What a trace holds, in numbers."""

from __future__ import annotations

from typing import Any

from testbed.messages.trace import MessageTrace, Place


def contents(trace: MessageTrace) -> dict[str, Any]:
    """``{"source", "nodes", "messages", "bytes", "least_s"}``; ``least_s``: if messages took no time."""
    nodes = [_node(trace, name) for name in trace.nodes]
    return {
        "source": trace.source,
        "nodes": nodes,
        "messages": sum(node["sent"] for node in nodes),
        "bytes": sum(node["bytes_sent"] for node in nodes),
        "least_s": least_s(trace),
    }


def _node(trace: MessageTrace, name: str) -> dict[str, Any]:
    own = trace.operations[name]
    sent = [one.bytes for one in own if one.kind == "send"]
    received = [one.bytes for one in own if one.kind == "receive"]
    return {
        "name": name,
        "role": trace.roles.get(name),
        "sent": len(sent),
        "received": len(received),
        "bytes_sent": sum(sent),
        "bytes_received": sum(received),
        "compute_s": sum(one.seconds for one in own),
    }


def least_s(trace: MessageTrace) -> float:
    """The longest chain of computations, each waiting for the one before: no network is faster."""
    ends: dict[Place, float] = {}
    sent_as = {here: there for there, here in trace.received_as.items()}
    for place in trace.order:
        one, node = trace.of(place), place[0]
        before = [ends[node, earlier] for earlier in one.after]
        if place in sent_as:
            before.append(ends[sent_as[place]])
        ends[place] = max(before, default=0.0) + one.seconds
    return max(ends.values(), default=0.0)
