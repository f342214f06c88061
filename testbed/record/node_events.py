"""Whether what a scenario does to nodes (pause, resume, kill, restart) was done, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.record.evidence import NodesSeen
from testbed.record.finding import Finding
from testbed.record.quantiles import spread
from testbed.record.thresholds import Thresholds
from testbed.scenario.node_events import NodeChange

STILL_S = 1.0
"""What was due so shortly before the end may be on its way."""
Made = Mapping[str, Any]


def nodes_seen(asked: Iterable[NodeChange], made: Iterable[Made], until_s: float) -> NodesSeen:
    """``made``: the ``node`` records of ``links.jsonl``; what was due after ``until_s`` is not expected."""
    left = {
        (record["node"], record["action"], round(float(record["due_s"]), 6)): record
        for record in made
    }
    found = _Found()
    for change in asked:
        key = change.node, change.action, round(change.time_s, 6)
        if (record := left.pop(key, None)) is not None:
            found.expected += 1
            found.late_ms.append(1e3 * (float(record["applied_s"]) - float(record["due_s"])))
        elif change.time_s <= until_s - STILL_S:
            found.expected += 1
            found.faults.append(
                f"{change.action} of {change.node}, due at {change.time_s:.3f} s, was never done"
            )
    found.faults += [
        f"{action} of {node} at {due_s:.3f} s: nobody asked for it" for node, action, due_s in left
    ]
    return NodesSeen(found.expected, len(found.late_ms), found.faults, spread(found.late_ms))


@dataclass(slots=True)
class _Found:
    expected: int = 0
    late_ms: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def node_findings(nodes: NodesSeen | None, limits: Thresholds) -> Iterator[Finding]:
    """``node_events``: all were done; ``node_lateness_ms``: the latest of them."""
    if nodes is None or not (nodes.expected or nodes.faults):
        yield Finding("node_events", "nothing was to happen to nodes")
        yield Finding("node_lateness_ms", "nothing was to happen to nodes")
        return
    said = nodes.faults[0] if nodes.faults else f"all {nodes.expected} events of nodes were done"
    more = f" (and {len(nodes.faults) - 1} more)" if len(nodes.faults) > 1 else ""
    yield Finding("node_events", f"{said}{more}", float(len(nodes.faults)))
    if (most := nodes.lateness_ms["max"]) is None:
        yield Finding("node_lateness_ms", "nothing was done to nodes")
        return
    yield Finding(
        "node_lateness_ms",
        f"an event of a node was done {most:.1f} ms late; at most {limits.node_lateness_ms:g} ms is right",
        most, limits.node_lateness_ms,
    )  # fmt: skip
