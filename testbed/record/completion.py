"""Message completion: did messages take the time that the asked rates give them?

In training, traffic is on and off, so mean rates say little. Here every group of messages that travel
together (one step's gradients to the server; its replies) is held against the service curve of the links
on its way. Times are taken where messages arrive, in the receiver's network stack: not at the shaped queue,
and not where a process gets round to reading them (that is the processor's doing, and judged apart).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.record.fluid import Bits, Load, downloads_done, slowest_rate, uploads_done
from testbed.record.quantiles import spread
from testbed.record.thresholds import THRESHOLDS, Thresholds
from testbed.scenario.shape import FRAME_BYTES, End, wire_bytes

Records = Sequence[Mapping[str, Any]]
Delay = Callable[[End], float]
"""The constant delay of a link direction, in seconds."""


def _no_delay(_: End) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that travel together. ``last_s``: when the last byte of the last one had come."""

    step: int
    direction: str
    server: str
    loads: tuple[Load, ...]
    last_s: float

    @property
    def start_s(self) -> float:
        """When the first of them began to be sent."""
        return min(load.start_s for load in self.loads)

    @property
    def ends(self) -> list[End]:
        """The link directions on their way."""
        there: End = End(self.server, "down" if self.direction == "up" else "up")
        own = [End(load.link, "up" if self.direction == "up" else "down") for load in self.loads]
        return [there, *own]

    def link_bits(self) -> dict[End, float]:
        """Bits on the wire that each link on the way has to carry."""
        there, *own = self.ends
        bits = {end: load.bits for end, load in zip(own, self.loads, strict=True)}
        return {there: sum(bits.values()), **bits}

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Each message's source and sink."""
        up = self.direction == "up"
        return [(w.link, self.server) if up else (self.server, w.link) for w in self.loads]

    def done(self, bits: Bits, delay: Delay = _no_delay) -> float:
        """When the asked rates and delays would have had the last byte there."""
        there, *own = self.ends
        if self.direction == "up":
            loads = [
                replace(load, start_s=load.start_s + delay(end))
                for load, end in zip(self.loads, own, strict=True)
            ]
            return uploads_done(bits, loads, self.server) + delay(there)
        last = delay(there) + max(map(delay, own))
        return downloads_done(bits, list(self.loads), self.server) + last

    def charged(self, overhead_bytes: int) -> Group:
        """The same messages on links that charge so much for every packet besides."""
        per_packet = 8.0 * overhead_bytes
        full = 8.0 * FRAME_BYTES
        loads = (
            replace(load, bits=load.bits + per_packet * -(-load.bits // full))
            for load in self.loads
        )
        return replace(self, loads=tuple(loads))


Excuse = Callable[[Group], bool]
"""Whether a group of messages cannot be judged for some reason."""


def groups(
    rounds: Records, steps: Records, links: Mapping[int, str], every: int = 1
) -> Iterator[Group]:
    """The groups of all finished rounds. ``links``: each peer number's link (its node's name).

    ``every``: of so many workers, one has its steps recorded.
    """
    replies: dict[int, list[Mapping[str, Any]]] = {}
    for step in steps:
        replies.setdefault(int(step["step"]), []).append(step)
    for round_ in rounds:
        number, server, messages = int(round_["step"]), str(round_["node"]), round_["messages"]
        if not messages:
            continue
        loads = [
            Load(links[int(m["sender"])], 8.0 * wire_bytes(int(m["bytes"])), float(m["sent_s"]))
            for m in messages
        ]
        yield Group(
            number, "up", server, tuple(loads), max(float(m["arrived_s"]) for m in messages)
        )
        came = replies.get(number, [])
        if len(came) == -(-len(messages) // every):
            begin = float(round_["send_start_s"])
            bits = 8.0 * wire_bytes(int(round_["bytes_down"]) // len(messages))
            loads = [Load(load.link, bits, begin) for load in loads]
            yield Group(
                number, "down", server, tuple(loads), max(float(s["arrived_s"]) for s in came)
            )


def measure(
    rounds: Records,
    steps: Records,
    links: Mapping[int, str],
    bits: Bits,
    excuses: Mapping[str, Excuse] | None = None,
    delay: Delay = _no_delay,
    overhead: Callable[[list[End]], int | None] = lambda _: 0,
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Any]:
    """Errors of all groups against their service curves.

    Counted but not judged: groups that the links could carry in less than ``completion_floor_s`` (``short``);
    groups on links for which ``bits`` raises KeyError (``unsampled``); groups for which one of ``excuses``
    holds, by the first name that does.

    Result: ``groups``, ``judged``, these counts, and p50, p99 and max of ``used`` (error over tolerance),
    ``error`` (over the predicted time), ``error_ms``, and ``all_error_ms`` (of groups not judged, too).
    """
    excuses = excuses or {}
    used, error, error_ms, all_ms = [], [], [], []
    not_judged = dict.fromkeys(("short", "unsampled", *excuses), 0)
    for group in groups(rounds, steps, links):
        charged = group.charged(overhead(group.ends) or 0)
        try:
            predicted = charged.done(bits, delay) - group.start_s
        except KeyError:
            not_judged["unsampled"] += 1
            continue
        off = abs(group.last_s - group.start_s - predicted)
        all_ms.append(1e3 * off)
        why = next((name for name, excuse in excuses.items() if excuse(group)), None)
        if predicted < thresholds.completion_floor_s or why is not None:
            not_judged[why or "short"] += 1
            continue
        used.append(off / _tolerance_s(group, predicted, bits, thresholds))
        error.append(off / predicted)
        error_ms.append(1e3 * off)
    return {
        "groups": len(all_ms) + not_judged["unsampled"], "judged": len(used), "not_judged": not_judged,
        "used": spread(used), "error": spread(error), "error_ms": spread(error_ms),
        "all_error_ms": spread(all_ms),
    }  # fmt: skip


def _tolerance_s(group: Group, predicted_s: float, bits: Bits, limits: Thresholds) -> float:
    rate = slowest_rate(bits, group.ends, group.start_s, group.start_s + predicted_s)
    packets_s = limits.completion_packets * 8 * FRAME_BYTES / rate if rate > 0 else 0.0
    return limits.completion_share * predicted_s + packets_s
