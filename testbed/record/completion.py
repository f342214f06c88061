"""Message completion: did messages take the time that the asked rates give them?

In training, traffic is on and off, so mean rates say little. Here every group of messages that travel
together (one step's gradients to the server; its replies) is held against the service curve of the links
on its way. Times are taken where messages arrive, in the receiver's network stack: not at the shaped queue,
and not where a process gets round to reading them (that is the processor's doing, and judged apart).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from testbed.record.fluid import Bits, Load, downloads_done, slowest_rate, uploads_done
from testbed.record.thresholds import THRESHOLDS, Thresholds
from testbed.scenario.shape import FRAME_BYTES, End, wire_bytes

Records = Sequence[Mapping[str, Any]]
During = Callable[[float, float], bool]
"""Whether something happened between two times."""


def _never(_start_s: float, _stop_s: float) -> bool:
    return False


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

    def done(self, bits: Bits) -> float:
        """When the asked rates would have had the last byte there."""
        predict = uploads_done if self.direction == "up" else downloads_done
        return predict(bits, list(self.loads), self.server)


def groups(rounds: Records, steps: Records, links: Mapping[int, str]) -> Iterator[Group]:
    """The groups of all finished rounds. ``links``: each peer number's link (its node's name)."""
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
        if len(came) == len(messages):
            begin = float(round_["send_start_s"])
            loads = [Load(s["node"], 8.0 * wire_bytes(int(s["bytes_down"])), begin) for s in came]
            yield Group(
                number, "down", server, tuple(loads), max(float(s["arrived_s"]) for s in came)
            )


def measure(
    rounds: Records,
    steps: Records,
    links: Mapping[int, str],
    bits: Bits,
    dropped: During = _never,
    stolen: During = _never,
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Any]:
    """Errors of all groups against their service curves.

    Counted but not judged: groups that the links could carry in less than ``completion_floor_s``; groups
    during which ``dropped(start_s, stop_s)`` says that an emulated queue dropped packets (TCP sends those
    again in its own time: what the emulated network does to it, not an error of the emulation); groups
    during which ``stolen`` says that this host had lost a processor to others, which is a measure of its
    own; groups on links for which ``bits`` raises KeyError.

    Result: these counts, and p50, p99 and max of ``used`` (error over tolerance), ``error`` (over the
    predicted time), ``error_ms``, and ``all_error_ms`` (of groups not judged, too).
    """
    used, error, error_ms, all_ms = [], [], [], []
    short = lossy = theft = unsampled = 0
    for group in groups(rounds, steps, links):
        try:
            predicted = group.done(bits) - group.start_s
        except KeyError:
            unsampled += 1
            continue
        off = abs(group.last_s - group.start_s - predicted)
        all_ms.append(1e3 * off)
        if predicted < thresholds.completion_floor_s:
            short += 1
        elif dropped(group.start_s, group.last_s):
            lossy += 1
        elif stolen(group.start_s, group.last_s):
            theft += 1
        else:
            used.append(off / _tolerance_s(group, predicted, bits, thresholds))
            error.append(off / predicted)
            error_ms.append(1e3 * off)
    return {
        "groups": len(all_ms) + unsampled, "judged": len(used), "short": short,
        "with_drops": lossy, "with_theft": theft, "unsampled": unsampled,
        "used": spread(used), "error": spread(error), "error_ms": spread(error_ms),
        "all_error_ms": spread(all_ms),
    }  # fmt: skip


def _tolerance_s(group: Group, predicted_s: float, bits: Bits, limits: Thresholds) -> float:
    rate = slowest_rate(bits, group.ends, group.start_s, group.start_s + predicted_s)
    packets_s = limits.completion_packets * 8 * FRAME_BYTES / rate if rate > 0 else 0.0
    return limits.completion_share * predicted_s + packets_s


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """``{"p50", "p99", "p99_at_least", "max"}``, each one of the values (nearest rank); None of nothing.

    ``p99_at_least``: what the p99 is not below, with 95 % confidence.
    """
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("p50", "p99", "p99_at_least", "max"))
    rank = {share: max(0, -(-share * len(ordered) // 100) - 1) for share in (50, 99)}
    return {
        "p50": ordered[rank[50]],
        "p99": ordered[rank[99]],
        "p99_at_least": ordered[-_significant(len(ordered))],
        "max": ordered[-1],
    }


def _significant(count: int, share: float = 0.01, confidence: float = 0.95) -> int:
    """The fewest of ``count`` values above a limit that show that more than ``share`` of all are above it.

    Fewer are likely enough (over 1 - ``confidence``) where exactly ``share`` is: the second largest of
    160 values says little about their p99.
    """
    fewer, above = 0.0, 0
    while fewer < confidence and above < count:
        fewer += comb(count, above) * share**above * (1 - share) ** (count - above)
        above += 1
    return above
