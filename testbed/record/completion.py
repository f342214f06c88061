"""Message completion: did messages take the time that the asked rates give them?

In training, traffic is on and off, so mean rates say little. Here every group of messages that travel
together (one step's gradients to the server; its replies) is held against the service curve of the links
on its way. Times are taken where messages arrive, in the receiver's network stack: not at the shaped queue,
and not where a process gets round to reading them (that is the processor's doing, and judged apart).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from testbed.record.fluid import Bits, bottleneck_s, slowest_rate
from testbed.record.groups import Delay, Group, groups, no_delay
from testbed.record.quantiles import spread
from testbed.record.stored import Records
from testbed.record.thresholds import THRESHOLDS, Thresholds
from testbed.scenario.shape import FRAME_BYTES, End

Excuse = Callable[[Group], bool]
"""Whether a group of messages cannot be judged for some reason."""


def measure(
    rounds: Records,
    steps: Records,
    links: Mapping[int, str],
    bits: Bits,
    excuses: Mapping[str, Excuse] | None = None,
    delay: Delay = no_delay,
    overhead: Callable[[list[End]], int | None] = lambda _: 0,
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Any]:
    """``measure_groups`` of the groups of all finished rounds (``testbed.record.groups``)."""
    found = groups(rounds, steps, links)
    return measure_groups(found, bits, excuses, delay, overhead, thresholds)


def measure_groups(
    found: Iterable[Group],
    bits: Bits,
    excuses: Mapping[str, Excuse] | None = None,
    delay: Delay = no_delay,
    overhead: Callable[[list[End]], int | None] = lambda _: 0,
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Any]:
    """Errors of all groups against their service curves.

    Counted but not judged: groups that the links could carry in less than ``completion_floor_s`` (``short``);
    groups on links for which ``bits`` raises KeyError (``unsampled``); groups for which one of ``excuses``
    holds, by the first name that does.

    Result: ``groups``, ``judged``, these counts, and p50, p99 and max of ``used`` (error over tolerance),
    ``error`` (over the predicted time, without waits between buckets), ``error_ms``, and ``all_error_ms`` (of groups not judged, too).
    """
    excuses = excuses or {}
    used, error, error_ms, all_ms = (array("d") for _ in range(4))
    not_judged = dict.fromkeys(("short", "unsampled", *excuses), 0)
    for group in found:
        charged = group.charged(overhead(group.ends) or 0)
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
        "groups": len(all_ms) + not_judged["unsampled"], "judged": len(used), "not_judged": not_judged,
        "used": spread(used), "error": spread(error), "error_ms": spread(error_ms),
        "all_error_ms": spread(all_ms),
    }  # fmt: skip


def _worked_s(group: Group, predicted_s: float, bits: Bits) -> float:
    """Of the predicted time, what the busiest link works: between buckets it may have waited for the computation."""
    if len(group.loads) == len(group.routes):
        return predicted_s
    stop_s = group.start_s + predicted_s
    return min(predicted_s, bottleneck_s(bits, group.link_bits(), group.start_s, stop_s))


def _tolerance_s(
    group: Group, predicted_s: float, worked_s: float, bits: Bits, limits: Thresholds
) -> float:
    rate = slowest_rate(bits, group.ends, group.start_s, group.start_s + predicted_s)
    packets_s = limits.completion_packets * 8 * FRAME_BYTES / rate if rate > 0 else 0.0
    return limits.completion_share * worked_s + packets_s
