"""Message completion: did messages take the time that the asked rates give them? And why some
cannot be judged.

In training, traffic is on and off, so mean rates say little. Here every group of messages that
travel together (one step's gradients to the server; its replies) is held against the service curve
of the links on its way. Times are taken where messages arrive, in the receiver's network stack: not
at the shaped queue, and not where a process gets round to reading them (that is the processor's
doing, and judged apart).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from testbed.fidelity.reference import PathModel
from testbed.fidelity.service_curve import (
    Bits,
    Delay,
    MessageGroup,
    bottleneck_s,
    no_delay,
    slowest_rate,
)
from testbed.records.intervals import IntervalSet, quantiles
from testbed.records.link_log import LinkLog
from testbed.records.manifest import THRESHOLDS, Thresholds
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES, LinkDirection
from testbed.scenario.node_timeline import Flow, NodeChange

ExclusionRule = Callable[[MessageGroup], bool]
"""A rule that says whether a group of messages cannot be judged for some reason."""


def measure_groups(
    groups: Iterable[MessageGroup],
    bits: Bits,
    excuses: Mapping[str, ExclusionRule] | None = None,
    delay: Delay = no_delay,
    overhead: Callable[[list[LinkDirection]], int | None] = lambda _: 0,
    thresholds: Thresholds = THRESHOLDS,
    segment_bytes: int = SEGMENT_BYTES,
) -> dict[str, Any]:
    """Errors of all groups against their service curves.

    Counted but not judged: groups that the links could carry in less than ``completion_floor_s``
    (``short``); groups on links for which ``bits`` raises KeyError (``unsampled``); groups for
    which one of ``excuses`` holds, by the first name that does. ``segment_bytes``: payload of the
    TCP segments that messages travel in.

    Result: ``groups``, ``judged``, these counts, and p50, p99 and max of ``used`` (error over
    tolerance), ``error`` (over the predicted time, without waits between buckets), ``error_ms``,
    and ``all_error_ms`` (of groups not judged, too).
    """
    excuses = excuses or {}
    used, error, error_ms, all_ms = (array("d") for _ in range(4))
    not_judged = dict.fromkeys(("short", "unsampled", *excuses), 0)
    for group in groups:
        charged = group.charged(overhead(group.ends) or 0, segment_bytes)
        try:
            predicted = charged.done(bits, delay) - group.start_s
        except KeyError:
            not_judged["unsampled"] += 1
            continue
        off = abs(group.last_s - group.start_s - predicted)
        all_ms.append(1e3 * off)
        why = next((name for name, excuse in excuses.items() if excuse(group)), None)
        worked = _worked_s(charged, predicted, bits)
        if worked < thresholds.completion_floor_s or why is not None:
            not_judged[why or "short"] += 1
            continue
        used.append(off / _tolerance_s(group, predicted, worked, bits, thresholds))
        error.append(off / worked)
        error_ms.append(1e3 * off)
    return {
        "groups": len(all_ms) + not_judged["unsampled"],
        "judged": len(used),
        "not_judged": not_judged,
        "used": quantiles(used),
        "error": quantiles(error),
        "error_ms": quantiles(error_ms),
        "all_error_ms": quantiles(all_ms),
    }


def _worked_s(group: MessageGroup, predicted_s: float, bits: Bits) -> float:
    """Return the part of the predicted time in which the busiest link works: between buckets it may
    have waited for the computation."""
    if len(group.loads) == len(group.routes):
        return predicted_s
    stop_s = group.start_s + predicted_s
    return min(predicted_s, bottleneck_s(bits, group.link_bits(), group.start_s, stop_s))


def _tolerance_s(
    group: MessageGroup, predicted_s: float, worked_s: float, bits: Bits, limits: Thresholds
) -> float:
    rate = slowest_rate(bits, group.ends, group.start_s, group.start_s + predicted_s)
    packets_s = limits.completion_packets * 8 * FRAME_BYTES / rate if rate > 0 else 0.0
    return limits.completion_share * worked_s + packets_s


NEVER = IntervalSet()


def exclusion_rules(
    history: LinkLog,
    ways: PathModel,
    flows: Iterable[Flow],
    changes: Iterable[NodeChange],
    until_s: float,
    limits: Thresholds,
    servers: int = 1,
    returns: IntervalSet = NEVER,
) -> dict[str, ExclusionRule]:
    """Return the exclusion rules by name, in the order of asking: the first that holds is counted.

    ``servers``: there are several, whose messages share the workers' links, and the service curve
    knows of one. ``racks`` and ``traffic``: something else is on the way, which the service curve
    does not know of. ``nodes``: a node was held or started anew. ``returns``: a worker that had
    been away was sent the parameters meanwhile. ``outage``, ``drops``, ``random``, ``round_trip``:
    TCP sends again, waits for its timers or is only starting; that is what the emulated network
    does to it. ``stolen``: the host lost a processor to others, which is a measure of its own.
    """
    crossing = _crossing(ways, flows, until_s)
    stopped = _stopped_intervals(changes)

    def passed(group: MessageGroup) -> list[LinkDirection]:
        return list(dict.fromkeys(end for route in group.routes for end in ways.path(*route)))

    def during(group: MessageGroup) -> tuple[float, float]:
        return group.start_s, group.last_s

    return {
        "servers": lambda _: servers > 1,
        "racks": lambda group: any(ways.racks_on(*route) for route in group.routes),
        "traffic": lambda group: any(
            end in crossing and crossing[end].overlaps(*during(group)) for end in passed(group)
        ),
        "nodes": lambda group: any(
            node in stopped and stopped[node].overlaps(*during(group))
            for route in group.routes
            for node in route
        ),
        "returns": lambda group: returns.overlaps(*during(group)),
        "outage": lambda group: ways.outage(passed(group), *during(group)),
        "drops": lambda group: history.dropped(passed(group), *during(group)),
        "random": lambda group: ways.random(passed(group)) or ways.overhead(passed(group)) is None,
        "round_trip": lambda group: any(
            ways.round_trip_s(*route)[1] > limits.completion_rtt_s for route in group.routes
        ),
        "stolen": lambda group: history.stolen(*during(group)),
    }


def _crossing(
    ways: PathModel, flows: Iterable[Flow], until_s: float
) -> Mapping[LinkDirection, IntervalSet]:
    """When which link direction carries other traffic; acknowledgements go the other way."""
    by_end: dict[LinkDirection, list[tuple[float, float]]] = {}
    for flow in flows:
        bursts = list(flow.bursts_until(until_s))
        for end in [*ways.path(flow.source, flow.sink), *ways.path(flow.sink, flow.source)]:
            by_end.setdefault(end, []).extend(bursts)
    # What stood in a queue when a burst ended is still under way.
    return {end: IntervalSet((a, b + 1.0) for a, b in bursts) for end, bursts in by_end.items()}


def _stopped_intervals(changes: Iterable[NodeChange]) -> Mapping[str, IntervalSet]:
    """When which node was paused or dead."""
    since: dict[str, float] = {}
    by_node: dict[str, list[tuple[float, float]]] = {}
    for change in changes:
        if change.action in {"pause", "kill"}:
            since.setdefault(change.node, change.time_s)
        elif change.node in since:
            by_node.setdefault(change.node, []).append((since.pop(change.node), change.time_s))
    for node, from_s in since.items():
        by_node.setdefault(node, []).append((from_s, float("inf")))
    return {node: IntervalSet(spans) for node, spans in by_node.items()}
