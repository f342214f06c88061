"""Cross traffic on modelled links: bulk TCP that takes what it can get, and UDP at its rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from testbed.fabric.sim.flow import Flow
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.windows import Memory
from testbed.scenario import traffic
from testbed.scenario.shape import FRAME_BYTES, SEGMENT_BYTES
from testbed.scenario.traffic import Burst

_MANY_BITS = 1e15
"""A burst is ended by the clock before it has sent so much."""
_TCP_PAYLOAD = SEGMENT_BYTES / FRAME_BYTES
_DATAGRAM_PAYLOAD, _DATAGRAM_BITS = 1400, 8 * 1442
"""Of iperf3 as real fabrics start it."""
_UDP_PAYLOAD = 8 * _DATAGRAM_PAYLOAD / _DATAGRAM_BITS


class Bursts:
    """One flow of the scenario. ``say`` gets a record of every burst that is over."""

    def __init__(
        self, network: VirtualNetwork, flow: traffic.Flow, say: Callable[[dict[str, Any]], None]
    ) -> None:
        self.flow, self._network, self._say = flow, network, say
        self._way = network.board.way(flow.source, flow.sink)
        self._sending: list[Flow] = []
        self._burst: Burst | None = None
        self._began_s = 0.0
        self._away: set[str] = set()

    def start(self) -> None:
        """This instant is t0."""
        self._next(self.flow.bursts())

    def leave(self, node: str) -> None:
        """A node is paused or killed: what it sends or is sent ends."""
        if node in (self.flow.source, self.flow.sink):
            self._away.add(node)
            self._stop()

    def join(self, node: str) -> None:
        """It is back, in the middle of whatever the flow is at."""
        if node in self._away:
            self._away.remove(node)
            if self._burst is not None:
                self._send()

    def finish(self) -> None:
        """The run is over."""
        self._stop()
        self._tell()

    def _next(self, bursts: Iterator[Burst]) -> None:
        burst = next(bursts, None)
        if burst is None:
            return
        clock, t0_s = self._network.clock, self._network.t0_s

        def begin() -> None:
            self._burst, self._sent_bits, self._asked_bits = burst, 0.0, 0.0
            self._send()

        def end() -> None:
            self._stop()
            self._tell()
            self._next(bursts)

        clock.at(t0_s + burst.start_s, begin)
        if burst.stop_s < inf:
            clock.at(t0_s + burst.stop_s, end)

    def _send(self) -> None:
        if self._away or self._burst is None:
            return
        self._began_s, flow = self._network.clock.now, self.flow
        for _ in range(flow.streams):
            udp = flow.kind == "udp"
            self._sending.append(
                Flow(
                    self._way,
                    _MANY_BITS,
                    lambda _: None,
                    None if udp else Memory(),
                    (flow.rate_bits or 0) / flow.streams if udp else inf,
                )
            )
            self._network.flows.begin(self._sending[-1])

    def _stop(self) -> None:
        self._sent_bits += sum(self._network.flows.end(flow) for flow in self._sending)
        if self._sending:
            passed_s = self._network.clock.now - self._began_s
            self._asked_bits += (self.flow.rate_bits or 0) * passed_s
        self._sending.clear()

    def _tell(self) -> None:
        burst, self._burst = self._burst, None
        if burst is None:
            return
        stop_s = min(burst.stop_s, self._network.clock.now - self._network.t0_s)
        udp, about = self.flow.kind == "udp", {"flow": self.flow.name, "due_s": burst.start_s}
        moved = round(self._sent_bits * (_UDP_PAYLOAD if udp else _TCP_PAYLOAD) / 8)
        packets = round(self._sent_bits / _DATAGRAM_BITS) if udp else 0
        missing_bits = max(0.0, self._asked_bits - self._sent_bits) if udp else 0.0
        lost = round(missing_bits / _DATAGRAM_BITS)
        sent = {"bytes": moved + lost * _DATAGRAM_PAYLOAD, "packets": packets + lost}
        self._say({"kind": "sent", **about, "start_s": burst.start_s, "stop_s": stop_s, **sent})
        received = {"bytes": moved, "packets": packets, "lost": lost}
        self._say({"kind": "received", **about, **received, "complete": True})

    _sent_bits = _asked_bits = 0.0


def bursts(
    network: VirtualNetwork, flows: Sequence[traffic.Flow], say: Callable[[dict[str, Any]], None]
) -> list[Bursts]:
    """The cross traffic of a scenario; each begins at t0."""
    found = [Bursts(network, flow, say) for flow in flows]
    network.at_start += [each.start for each in found]
    return found
