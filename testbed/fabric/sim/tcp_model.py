"""TCP as modelled links have it: congestion windows of many flows at once (slow start, HyStart,
CUBIC), TCP Small Queues, and what lost packets cost. Pure.

A window changes once a round trip. What it is after loss and in between follows RFC 9438 and
Linux's tcp_cubic.c: factor 0.7 at a loss, C = 0.4, growth at least Reno's, slow start left as soon
as round trips get longer. Windows are in packets of full size.

A flow has two bundles there, or what its pace is for 1/1024 s, if that is more; a bundle counts for
768 bytes more than its payload (``tcp_small_queue_check`` in the kernel's tcp_output.c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from testbed.fabric.sim.link_state import HOPS, PACKET_BITS, Floats, Indices, LinkArrays, Route
from testbed.scenario.link_state import SEGMENT_BYTES, FourState, GilbertElliott, Impairments

INITIAL = 10.0
"""RFC 6928."""
_LEAST, _MOST = 2.0, 11_000.0
"""The latter is what ``tcp_rmem`` lets a connection have under way: 16 MB."""
_BETA, _C = 0.7, 0.4
_RENO = 3 * (1 - _BETA) / (1 + _BETA)
"""Packets a round trip by which CUBIC grows at least."""
_HYSTART_WINDOW = 16.0
"""Least window for the delay rule: eight answers in a round trip show that it is longer."""
_TRAIN_MORE_S, _TRAIN_APART_S = 1e-3, 2e-3
"""Answers that follow one another so closely, for longer than half of the least round trip and
this, end it too. They come as the queue mixes them: half of the mean apart to one and a half."""
_PER_ANSWER, _SMOOTHING = 2, 7 / 8
"""Packets acknowledged together; what an answer leaves of the smoothed round-trip time."""
_PACE_AT_FIRST, _PACE = 2.0, 1.2
"""Linux's pacing ratios, in slow start below half the threshold and from there on."""
_HYSTART_LEAST_S, _HYSTART_MOST_S = 0.004, 0.016
_USED = 0.9
"""A window of which less than that is under way is not what holds its flow up."""
TIMEOUT_S = 0.2
"""Linux's least retransmission time-out, to which a round trip is added."""


@dataclass(slots=True)
class WindowMemory:
    """State that a connection keeps from one message to the next."""

    window: float = INITIAL
    threshold: float = np.inf
    origin: float = 0.0
    """The window at the last loss: where CUBIC's curve has its plateau; 0: there was none."""
    epoch_s: float = 0.0
    """When it was cut last, or slow start was left."""
    sent_s: float = 0.0
    """When it last had something to send."""
    round_trip_s: float = 0.0

    def restart(self, now_s: float) -> None:
        """A connection that was idle for long begins more carefully (RFC 2861, as in Linux)."""
        timeout_s = TIMEOUT_S + self.round_trip_s
        idle_s = now_s - self.sent_s
        if idle_s <= timeout_s:
            return
        self.threshold = max(self.threshold, 0.75 * self.window)
        while (idle_s := idle_s - timeout_s) > 0 and self.window > INITIAL:
            self.window = max(INITIAL, self.window / 2)


class Windows:
    """The windows of all flows that have something to send; their owner moves rows."""

    def __init__(self, rows: int) -> None:
        self.window: Floats = np.zeros(rows)
        self.threshold: Floats = np.zeros(rows)
        self.origin: Floats = np.zeros(rows)
        self.epoch_s: Floats = np.zeros(rows)
        self.least_s: Floats = np.zeros(rows)
        """The least round-trip time that the way can have."""
        self.round_s: Floats = np.zeros(rows)
        """When the present round trip ends."""
        self.cut_s: Floats = np.zeros(rows)
        """When packets were lost last."""
        self.smooth_s: Floats = np.zeros(rows)
        """The smoothed round-trip time; 0: none was measured yet."""

    @property
    def columns(self) -> tuple[Floats, ...]:
        """All arrays, for whoever moves rows."""
        return (
            self.window,
            self.threshold,
            self.origin,
            self.epoch_s,
            self.least_s,
            self.round_s,
            self.cut_s,
            self.smooth_s,
        )

    def open(self, rows: slice, memories: Sequence[WindowMemory], least_s: Floats) -> None:
        """Connections begin to send; when their first round trip ends is for ``round_s`` to say."""
        self.window[rows] = [memory.window for memory in memories]
        self.threshold[rows] = [memory.threshold for memory in memories]
        self.origin[rows] = [memory.origin for memory in memories]
        self.epoch_s[rows] = [memory.epoch_s for memory in memories]
        self.smooth_s[rows] = [memory.round_trip_s for memory in memories]
        self.least_s[rows], self.round_s[rows], self.cut_s[rows] = least_s, np.inf, -np.inf

    def close(self, rows: Indices, memories: Sequence[WindowMemory | None], now_s: float) -> None:
        """They have nothing to send any more."""
        kept = (self.window, self.threshold, self.origin, self.epoch_s, self.smooth_s)
        columns = (column[rows].tolist() for column in kept)
        for memory, *values in zip(memories, *columns, strict=True):
            if memory is not None:
                (
                    memory.window,
                    memory.threshold,
                    memory.origin,
                    memory.epoch_s,
                    memory.round_trip_s,
                ) = values
                memory.sent_s = now_s

    def grow(
        self,
        rows: Indices,
        now_s: float,
        round_trip_s: Floats,
        out: Floats,
        train_s: Floats,
        luck: Floats,
    ) -> None:
        """A round trip of ``rows`` has ended without loss; it took ``round_trip_s`` (rows,).

        ``out`` (rows,): packets that were under way. A window that is not used up does not grow.
        ``train_s`` (rows,): from the first of their answers to the last; ``luck`` (rows,): random,
        from 0 to 1.
        """
        window, threshold = self.window[rows], self.threshold[rows]
        slow, grown = window < threshold, window
        growing = (out >= _USED * window) & ~slow
        if np.count_nonzero(growing):
            grown = np.where(growing, self._cubic(rows, now_s, round_trip_s), grown)
        if np.count_nonzero(slow):
            least = self.least_s[rows]
            threshold_s = np.minimum(np.maximum(least / 8, _HYSTART_LEAST_S), _HYSTART_MOST_S)
            longer = (round_trip_s - least > threshold_s) & (out >= _HYSTART_WINDOW)
            apart_s = train_s * _PER_ANSWER / np.maximum(out, 1.0)
            close = apart_s * (0.5 + luck) <= _TRAIN_APART_S
            train = (train_s > (least + _TRAIN_MORE_S) / 2) & close
            leaving = slow & (longer | train) & (window >= _HYSTART_WINDOW)
            most = np.minimum((2 - luck) * out, window)
            doubled = np.minimum(2 * most, np.maximum(threshold, window))
            grown = np.where(slow & ~leaving, np.maximum(doubled, window), grown)
            left = rows[leaving]
            self.threshold[left], self.epoch_s[left] = window[leaving], now_s
        self.window[rows] = np.minimum(np.maximum(grown, _LEAST), _MOST)
        smooth_s, news = self.smooth_s[rows], 1 - _SMOOTHING ** (out / _PER_ANSWER)
        old_s = np.where(smooth_s == 0, round_trip_s, smooth_s)
        self.smooth_s[rows] = old_s + news * (round_trip_s - old_s)

    def pace(self, rows: Indices | slice) -> Floats:
        """Packets a second, on average over a moment, that ``rows`` send at most."""
        window = self.window[rows]
        factor = np.where(window < self.threshold[rows] / 2, _PACE_AT_FIRST, _PACE)
        return factor * window / np.maximum(self.smooth_s[rows], self.least_s[rows])

    def hit(
        self, rows: Indices, lost: float, now_s: float, round_trip_s: Floats, luck: Floats
    ) -> Indices:
        """Return who of ``rows`` loses some of ``lost`` packets, at most once a round trip."""
        windows = self.window[rows]
        missed = (1 - min(1.0, lost / max(windows.sum(), 1.0))) ** windows
        again = now_s - self.cut_s[rows] > round_trip_s
        hit: Indices = rows[(luck >= missed) & again]
        return hit

    def cut(self, rows: Indices, now_s: float) -> None:
        """``rows`` have lost packets; fast convergence: one below its last peak gives way."""
        window, origin = self.window[rows], self.origin[rows]
        self.origin[rows] = np.where(window < origin, window * (1 + _BETA) / 2, window)
        self.window[rows] = self.threshold[rows] = np.maximum(_LEAST, _BETA * window)
        self.epoch_s[rows] = self.cut_s[rows] = now_s

    def _cubic(self, rows: Indices, now_s: float, round_trip_s: Floats) -> Floats:
        window, origin = self.window[rows], np.maximum(self.origin[rows], 1.0)
        passed = now_s - self.epoch_s[rows] + round_trip_s
        start = np.where(
            self.origin[rows] > self.threshold[rows], _BETA * origin, self.threshold[rows]
        )
        start = np.where(np.isfinite(start), start, window)
        top = np.maximum(origin, start)
        plateau_s = np.cbrt((top - start) / _C)
        curve = _C * (passed - plateau_s) ** 3 + top
        reno = start + _RENO * passed / np.maximum(round_trip_s, 1e-9)
        return np.minimum(np.maximum(np.maximum(curve, reno), window), 1.5 * window)


_BUNDLES, _FOR_S, _BUFFER_BYTES = 2, 1 / 1024, 768


def allowed_bits(pace: Floats, bundle: int) -> Floats:
    """Return bits that flows of ``pace`` (packets/s) may have in their hosts' queues."""
    counted = bundle * SEGMENT_BYTES + _BUFFER_BYTES
    bundles = np.ceil(_FOR_S * pace * SEGMENT_BYTES / counted)
    allowed: Floats = np.maximum(_BUNDLES, bundles) * bundle * PACKET_BITS
    return allowed


def weights(first: Indices, own: NDArray[np.bool_], window: Floats, allowed: Floats) -> Floats:
    """How flows share links: by their windows; those of one host by what each may have in its
    queue.

    ``first`` (flows,): the link that each passes first, ``own``: whether its host sees how full
    that is.
    """
    small = np.minimum(window, allowed)
    total, queued = np.bincount(first, window), np.bincount(first, small)
    weight: Floats = np.where(own, small * (total[first] / queued[first]), window)
    return weight


FAIR_SHARE = nan
"""``limit_bits`` of a flow that takes its fair share, without slow start or queue."""


@dataclass(eq=False, slots=True)
class SimFlow:
    """``bits`` on the wire along ``route``; ``done`` is called when the last has been sent.

    ``memory``: the connection's; None for a flow that has no window: it ignores congestion and
    sends at ``limit_bits``, or takes its ``FAIR_SHARE``.
    """

    route: Route
    bits: float
    done: Callable[[SimFlow], None]
    memory: WindowMemory | None = field(default_factory=WindowMemory)
    limit_bits: float = inf
    start_s: float = 0.0
    waited_s: float = 0.0
    """How long the queues on the way were when it began."""
    begun_bits: Sequence[float] = ()
    """``LinkArrays.served_bits`` of each link on the route before this flow's first bit."""
    tightest: int = -1
    """The link that held it up last."""
    late_s: float = 0.0
    """Delay that retransmissions at its very end cost."""
    legs: Sequence[SimFlow] = ()
    """Flows to each member, where it is multicast. Its own route is all their links, each once."""
    mark_bits: float = 0.0
    """Bits that are left when ``marked`` is called; 0: it is not."""
    marked: Callable[[], float] | None = None
    """Returns the next ``mark_bits``, which are fewer."""
    traffic: bool = False
    """Cross traffic: it brings nobody a message."""
    packet_bits: float = PACKET_BITS
    """Bits of one of its packets on the wire."""
    drawn_bits: float = 0.0
    """Sent bits of datagrams of which it has been drawn what links lose of them."""
    lost: int = 0
    """Datagrams that links have lost; nobody sends them again."""


def hop_arrays(flows: Sequence[SimFlow], hops: int, free: int) -> tuple[Indices, Indices]:
    """The links of ``flows`` forward (flows, hops) and backward (flows, HOPS)."""
    forward, backward = (
        [flow.route.forward for flow in flows],
        [flow.route.backward for flow in flows],
    )
    if hops > HOPS:
        forward = [(*links, *[free] * (hops - len(links))) for links in forward]
    return np.array(forward), np.array(backward)


def note_queues(links: LinkArrays, flows: Sequence[SimFlow], forward: Indices) -> None:
    """``flows`` along ``forward`` (flows, hops) begin now: each notes what is before it."""
    waited_s = links.wait_s(forward)
    begun = links.served_bits[forward] + waited_s[:, None] * links.finite[forward]
    for flow, wait, bits in zip(flows, waited_s.tolist(), begun.tolist(), strict=True):
        flow.waited_s, flow.begun_bits = wait, bits
        if flow.legs:
            note_queues(links, flow.legs, hop_arrays(flow.legs, HOPS, links.null_link)[0])


_TAIL = 3
"""Packets at a message's end whose loss no later ones reveal: a probe has to find it."""
_PROBED, _REPAIRED = 3, 1
"""Round trips until the one and the other has been repaired (RFC 8985: two until the probe)."""


class LinkLosses:
    """Draws what is lost. ``seed``: of the run; directions with a seed of their own use that."""

    def __init__(self, links: LinkArrays, seed: int) -> None:
        self._links, self._seed = links, seed
        self._random: dict[int, np.random.Generator] = {}
        self._stalled: dict[int, float] = {}
        """Directions that drop everything, and since when."""
        self._retry_s: dict[SimFlow, float] = {}
        """Flows that will try again at that time, and not before."""

    def in_round(
        self, rows: Indices, flows: Sequence[SimFlow], packets: Floats
    ) -> NDArray[np.int64]:
        """How many of ``packets`` (rows,), sent in a round trip of each, are lost."""
        lost = np.zeros(len(rows), np.int64)
        if self._links.impaired:
            for i, row in enumerate(rows):
                lost[i] = self._drawn(flows[row], round(float(packets[i])))
        return lost

    def at_end(self, flow: SimFlow, window: float) -> int:
        """Round trips that ``flow`` needs after its last bit, since some of its end was lost."""
        if not self._links.impaired or flow.memory is None:
            return 0
        last = int(min(window, np.ceil(flow.bits / PACKET_BITS)))
        if self._drawn(flow, min(_TAIL, last)):
            return _PROBED
        return _REPAIRED if self._drawn(flow, last - _TAIL) else 0

    def passes(self, flow: SimFlow) -> bool:
        """Return whether any packet of ``flow`` comes through, as links are now."""
        impaired = self._links.impaired
        return all(mean_loss(impaired[n]) < 1 for n in flow.route.forward if n in impaired)

    def of_datagrams(self, flow: SimFlow, sent_bits: float) -> None:
        """Draw what links, as they are now, lose of what ``flow`` has sent since this was last
        called.

        ``sent_bits``: of all that it has sent. What one link loses the next does not lose again.
        """
        packets = int((sent_bits - flow.drawn_bits) / flow.packet_bits)
        flow.drawn_bits += packets * flow.packet_bits
        for number in flow.route.forward:
            lost = self.on_link(number, packets)
            flow.lost += lost
            packets -= lost

    def on_link(self, number: int, packets: int) -> int:
        """How many of ``packets`` a direction loses; it counts them."""
        impairments = self._links.impaired.get(number)
        if impairments is None or packets <= 0 or not (share := mean_loss(impairments)):
            return 0
        lost = self._lost(number, impairments, share, packets)
        self._links.lost[number] += lost
        return lost

    def last_of(self, number: int, lost: int) -> float:
        """Where in a message, from 0 to 1, the last of ``lost`` packets was."""
        return float(self._random[number].random() ** (1 / lost))

    def stall(self, number: int, now_s: float) -> None:
        """From now on a direction drops everything."""
        self._stalled[number] = now_s

    def resume(self, flows: Iterable[SimFlow], now_s: float) -> None:
        """A direction serves again. Senders notice when they try next; intervals double."""
        for number in [n for n in self._stalled if not self._links.dropping[n]]:
            since_s = self._stalled.pop(number)
            for flow in flows:
                if flow.memory is None:
                    continue
                wait_s = TIMEOUT_S + flow.memory.round_trip_s
                try_s = max(since_s, flow.start_s) + wait_s
                while try_s < now_s:
                    wait_s *= 2
                    try_s += wait_s
                self._retry_s[flow] = try_s

    def hold(self, limit: Floats, flows: Sequence[SimFlow], now_s: float) -> None:
        """Set the limits of those who wait for their next try to nothing."""
        self._retry_s = {flow: try_s for flow, try_s in self._retry_s.items() if try_s > now_s}
        if self._retry_s:
            for row, flow in enumerate(flows):
                if flow in self._retry_s:
                    limit[row] = 0.0

    @property
    def next_s(self) -> float:
        """When the next one tries."""
        return min(self._retry_s.values(), default=np.inf)

    def _drawn(self, flow: SimFlow, packets: int) -> int:
        """Packets out of ``packets`` that are lost on the way; each direction counts its own."""
        return sum(self.on_link(number, packets) for number in flow.route.forward)

    def _lost(self, number: int, impairments: Impairments, share: float, packets: int) -> int:
        """Bursts count as one: as many losses as bursts, each so long."""
        random = self._random.get(number)
        if random is None:
            seed = self._seed if impairments.seed is None else impairments.seed
            random = self._random[number] = np.random.default_rng([seed, number])
        burst = mean_burst(impairments)
        bursts = int(random.binomial(packets, min(1.0, share / burst)))
        if not bursts or burst == 1:
            return bursts
        return min(packets, int(random.geometric(1 / burst, bursts).sum()))


def mean_loss(impairments: Impairments) -> float:
    """Share of packets that do not arrive, or arrive damaged, in the long run."""
    loss = impairments.loss
    share = loss.mean_loss if isinstance(loss, (GilbertElliott, FourState)) else loss
    return 1 - (1 - share) * (1 - impairments.corrupt)


def mean_burst(impairments: Impairments) -> float:
    """Packets that are lost together."""
    return impairments.loss.mean_burst if isinstance(impairments.loss, GilbertElliott) else 1.0
