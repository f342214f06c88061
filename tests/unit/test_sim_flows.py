"""Flows on modelled links: who gets how much when, and what TCP, queues and losses make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.flows import Flows
from testbed.fabric.sim.link_state import PACKET_BITS, LinkArrays
from testbed.fabric.sim.network import EVERY_S, SimSampler
from testbed.fabric.sim.node import Bursts
from testbed.fabric.sim.tcp_model import SimFlow, WindowMemory
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState
from testbed.scenario.node_timeline import Flow

FAST, LONG = 10**6, 10**6
"""Packets a second of a link that never matters; packets of a queue that is never full."""


def shape(
    packets_s: float, queue: int = LONG, *, drop: bool = False, **impairments: float
) -> LinkState:
    """A link direction that carries so many full packets a second."""
    asked = Impairments(**impairments)  # type: ignore[arg-type]
    return LinkState(round(packets_s * PACKET_BITS), queue * 1514, drop, impairments=asked)


class Rig:
    """Nodes a, b and server; only the server's down link is slow, unless ``changed`` says otherwise."""

    def __init__(
        self,
        down: LinkState,
        seed: int = 0,
        racks: Mapping[str, Sequence[str]] | None = None,
        **changed: LinkState,
    ) -> None:
        ends = [LinkDirection(name, d) for name in ("a", "b", "server") for d in ("up", "down")]  # type: ignore[arg-type]
        shapes = dict.fromkeys(ends, shape(FAST))
        shapes[LinkDirection("server", "down")] = down
        for name, given in changed.items():
            link, _, direction = name.rpartition("_")
            shapes[LinkDirection(link, direction)] = given  # type: ignore[arg-type]
        self.clock = VirtualClock()
        self.links = LinkArrays(shapes, racks or {})
        self.flows = Flows(self.clock, self.links, seed)
        self.ended: dict[str, float] = {}

    def send(
        self, source: str, packets: float, at_s: float = 0.0, memory: WindowMemory | None = None
    ) -> None:
        """``source`` sends so much to the server, from ``at_s`` on."""

        def done(_: SimFlow) -> None:
            self.ended[source] = self.clock.now

        flow = SimFlow(
            self.links.route(source, "server"),
            packets * PACKET_BITS,
            done,
            memory or WindowMemory(),
        )
        self.clock.at(at_s, lambda: self.flows.begin(flow))

    def change(self, at_s: float, given: LinkState) -> None:
        """The server's down link becomes ``given``."""
        self.clock.at(at_s, lambda: self.flows.change(LinkDirection("server", "down"), given))

    def run(self, until_s: float = 60.0) -> dict[str, float]:
        self.clock.run({"wait": lambda: self.clock.sleep_until(until_s)})
        self.flows.advance()
        return self.ended

    def carried(self, link: str = "server", direction: str = "down") -> float:
        """Packets that a direction has carried."""
        number = self.links.number[LinkDirection(link, direction)]  # type: ignore[arg-type]
        return float(self.links.delivered_bits[number]) / PACKET_BITS


def test_two_share_a_link() -> None:
    rig = Rig(shape(1000))
    rig.send("a", 500)
    rig.send("b", 500)
    assert rig.run() == pytest.approx({"a": 1.0, "b": 1.0})
    assert rig.carried() == pytest.approx(1000)
    assert rig.carried("a", "up") == pytest.approx(500)


def test_a_link_is_never_idle_while_something_waits() -> None:
    rig = Rig(shape(1000))
    rig.send("a", 500)
    rig.send("b", 500, at_s=0.25)
    ended = rig.run()
    assert 0.5 < ended["a"] < ended["b"] == pytest.approx(1.0)


def test_a_slower_link_takes_longer_for_what_is_left() -> None:
    rig = Rig(shape(1000))
    rig.send("a", 1000)
    rig.change(0.5, shape(500))
    assert rig.run() == pytest.approx({"a": 1.5})


def test_packets_wait_for_the_end_of_an_outage() -> None:
    rig = Rig(shape(1000))
    rig.send("a", 500)
    rig.change(0.2, shape(0))
    rig.change(0.7, shape(1000))
    assert rig.run() == pytest.approx({"a": 1.0})


def test_a_sender_tries_again_after_an_outage_that_drops() -> None:
    """Time-outs of 200 and 400 ms after 0.2 s: at 0.4 s in vain, at 0.8 s the link is back."""
    rig = Rig(shape(1000))
    rig.send("a", 500)
    rig.change(0.2, shape(0, drop=True))
    rig.change(0.7, shape(1000))
    assert rig.run() == pytest.approx({"a": 1.1})


def test_slow_start_takes_round_trips() -> None:
    """10 + 20 packets in two round trips of 200 ms; the last 40 leave at once on a link that fast."""
    delayed = shape(FAST, delay_ns=50_000_000)
    rig = Rig(delayed, a_up=delayed, a_down=delayed, server_up=delayed)
    rig.send("a", 70)
    assert rig.run()["a"] == pytest.approx(2 * 0.2001, rel=1e-3)


def test_a_connection_remembers_its_window() -> None:
    delayed = shape(FAST, delay_ns=50_000_000)
    rig, memory = Rig(delayed, a_up=delayed, a_down=delayed, server_up=delayed), WindowMemory()
    rig.send("a", 70, memory=memory)
    rig.send("a", 35, at_s=0.55, memory=memory)
    assert rig.run()["a"] == pytest.approx(0.55, rel=1e-3)


def test_an_idle_connection_halves_its_window_every_time_out() -> None:
    memory = WindowMemory(window=80, threshold=40, sent_s=1.0, round_trip_s=0.05)
    memory.restart(1.6)
    assert (memory.window, memory.threshold) == (20, 60)
    fresh = WindowMemory(window=80, sent_s=1.0)
    fresh.restart(1.1)
    assert fresh.window == 80
    fresh.restart(60.0)
    assert fresh.window == 10


def test_bulk_traffic_fills_the_queue_and_never_more() -> None:
    rig = Rig(shape(1000, queue=50))
    rig.send("a", 1e9)
    rig.run(30.0)
    number = rig.links.number[LinkDirection("server", "down")]
    assert rig.carried() == pytest.approx(30_000, rel=0.001)
    assert rig.links.drops[number] > 0
    assert rig.links.largest_bits[number] == pytest.approx(50 * PACKET_BITS, rel=0.1)


def test_a_message_beside_bulk_traffic_waits_in_its_queue() -> None:
    alone, beside = Rig(shape(1000, queue=50)), Rig(shape(1000, queue=50))
    beside.send("b", 1e9)
    for rig in (alone, beside):
        rig.send("a", 100, at_s=10.0)
        rig.run(30.0)
    assert alone.ended["a"] == pytest.approx(10.1)
    assert beside.ended["a"] > 10.25


def test_datagrams_take_their_rate_from_others() -> None:
    rig = Rig(shape(1000))
    rig.send("a", 1e9)
    flow = SimFlow(rig.links.route("b", "server"), 1e15, lambda _: None, None, 300 * PACKET_BITS)
    rig.clock.at(0.0, lambda: rig.flows.begin(flow))
    rig.run(10.0)
    assert rig.carried("b", "up") == pytest.approx(3000)
    assert rig.carried("a", "up") == pytest.approx(7000)


def test_a_rack_is_shared_by_what_leaves_it() -> None:
    narrow = shape(500)
    rig = Rig(shape(FAST), racks={"rack": ["a", "b"]}, rack_up=narrow, rack_down=shape(FAST))
    rig.send("a", 500)
    rig.send("b", 500)
    assert rig.run() == pytest.approx({"a": 2.0, "b": 2.0})
    assert rig.links.route("a", "b").forward[2] == rig.links.null_link


def test_loss_costs_time_and_repeats_with_its_seed() -> None:
    def took(loss: float, seed: int = 1) -> tuple[float, int]:
        rig = Rig(shape(1000, delay_ns=5_000_000, loss=loss), seed)
        rig.send("a", 4000)
        return rig.run()["a"], int(
            rig.links.lost[rig.links.number[LinkDirection("server", "down")]]
        )

    (clean, none), (lossy, lost) = took(0.0), took(0.01)
    assert none == 0 and 15 < lost < 80
    assert lossy > clean
    assert took(0.01) == (lossy, lost)
    assert took(0.01, seed=2) != (lossy, lost)


def test_a_link_that_lost_packets_for_a_while_loses_none_afterwards() -> None:
    rig = Rig(shape(1000, loss=0.05))
    rig.send("a", 1000)
    rig.change(20.0, shape(1000))
    rig.send("b", 4000, at_s=20.0)
    ended = rig.run()
    assert 1.01 < ended["a"] < 20.0
    assert ended["b"] == pytest.approx(24.0)


def test_a_flow_can_be_ended() -> None:
    rig = Rig(shape(1000))
    flow = SimFlow(rig.links.route("a", "server"), 1e15, lambda _: None)
    sent: list[float] = []
    rig.clock.at(0.0, lambda: rig.flows.begin(flow))
    rig.clock.at(2.0, lambda: sent.append(rig.flows.end(flow)))
    rig.send("b", 10, at_s=3.0)
    rig.run(10.0)
    assert sent == pytest.approx([2000 * PACKET_BITS])
    assert rig.flows.count == 0 and rig.ended["b"] == pytest.approx(3.01)
    assert inf > rig.carried("a", "up") == pytest.approx(2000)


def test_overhead_takes_its_part_of_a_links_rate() -> None:
    """A link that charges 151.4 B for a packet of 1514 B carries 10/11 of its rate."""
    plain = LinkState(round(1100 * PACKET_BITS), LONG * 1514)
    charged = LinkState(plain.rate_bits, plain.queue_bytes, overhead_bytes=757)
    ended = []
    for given in (plain, charged):
        rig = Rig(given)
        rig.send("a", 5500)
        ended.append(rig.run()["a"])
    assert ended == pytest.approx([5.0, 7.5], rel=1e-3)


def sampled(rig: Rig, end: LinkDirection, packets_s: float) -> list[dict[str, Any]]:
    """The samples of ``end``, of which so many full packets a second are requested, as the rig runs."""
    records: list[dict[str, Any]] = []
    network: Any = SimpleNamespace(links=rig.links, clock=rig.clock, flows=rig.flows, t0_s=0.0)
    timeline: Any = SimpleNamespace(
        bits=lambda _, from_s, to_s: packets_s * PACKET_BITS * (to_s - from_s)
    )
    sampler = SimSampler(network, timeline, [end], records.extend)
    rig.clock.at(0.0, sampler.start)
    return records


def test_samples_count_the_overhead_of_packets_as_delivered() -> None:
    """As real links' counters do: 757 B for each frame of 1514 B, and none from the first second on."""
    rate_bits = round(1500 * PACKET_BITS)
    rig = Rig(LinkState(rate_bits, LONG * 1514, overhead_bytes=757))
    records = sampled(rig, LinkDirection("server", "down"), 1500)
    rig.send("a", 4000)
    rig.change(1.0, LinkState(rate_bits, LONG * 1514))
    rig.run(2.05)
    assert len(records) == 20
    for record in records:
        assert record["delivered_bits"] == pytest.approx(record["asked_bits"], rel=1e-3)
        packets = 100 if record["to_s"] < 1.05 else 150
        assert record["packets"] == pytest.approx(packets, abs=1)


def test_samples_are_of_what_happened_since_the_one_before() -> None:
    rig = Rig(shape(1000, queue=200))
    end = LinkDirection("server", "down")
    records = sampled(rig, end, 1000)
    rig.send("a", 3000)
    rig.send("b", 3000)
    rig.change(3.0, shape(1000, queue=20))
    rig.change(3.5, shape(1000, queue=200))
    ended = max(rig.run(20.0).values())
    drops = [record["drops"] for record in records]
    assert sum(drops) == rig.links.drops[rig.links.number[end]] > 0
    backlogs = [record["backlog_bytes"] for record in records]
    assert max(backlogs) > 50 * 1514
    quiet = [record for record in records if record["from_s"] > ended + EVERY_S]
    assert len(quiet) > 5
    assert {
        (record["drops"], record["backlog_bytes"], record["delivered_bits"]) for record in quiet
    } == {(0, 0, 0)}


def test_samples_count_as_drops_only_what_a_full_queue_dropped() -> None:
    """As on real links, where what the delay line loses is counted apart."""
    rig, end = Rig(shape(1000, loss=0.02)), LinkDirection("server", "down")
    records = sampled(rig, end, 1000)
    rig.send("a", 2000)
    rig.run(10.0)
    assert rig.ended["a"] > 2.0 and rig.links.lost[rig.links.number[end]] > 10
    assert sum(record["delivered_bits"] for record in records) > 2010 * PACKET_BITS
    assert [record["drops"] for record in records] == [0] * len(records)


def test_samples_have_no_more_in_a_queue_than_fits() -> None:
    """Windows are larger than it every now and then, also where one sample ends and the next begins."""
    rig = Rig(shape(1000, queue=10))
    records = sampled(rig, LinkDirection("server", "down"), 1000)
    rig.send("a", 1e9)
    rig.send("b", 1e9)
    rig.run(10.0)
    backlogs = [record["backlog_bytes"] for record in records]
    assert len(backlogs) > 90 and max(backlogs) == 10 * 1514


def datagrams(
    rig: Rig, packets_s: float, start_s: float, stop_s: float
) -> tuple[Bursts, list[dict[str, Any]]]:
    """UDP from a to the server, as fast as so many full packets a second, and what is said of it."""
    said: list[dict[str, Any]] = []
    network: Any = SimpleNamespace(links=rig.links, clock=rig.clock, flows=rig.flows, t0_s=0.0)
    rate = round(packets_s * PACKET_BITS)
    flow = Flow("noise", "a", "server", "udp", rate, None, 1, start_s=start_s, stop_s=stop_s)
    bursts = Bursts(network, flow, said.append)
    rig.clock.at(0.0, bursts.start)
    return bursts, said


def test_datagrams_are_lost_as_their_links_are_at_the_time() -> None:
    """A fifth on the first link; of the others a tenth on the second, until it loses nothing any more."""
    rig = Rig(shape(1000, loss=0.1), a_up=shape(FAST, loss=0.2))
    _, said = datagrams(rig, 500, 0.0, 10.0)
    rig.change(5.0, shape(1000))
    rig.run(11.0)
    sent, received = said
    assert sent["packets"] == round(10 * 500 * 1514 / 1442)
    assert sent["packets"] == received["packets"] + received["lost"]
    expected = (0.2 + 0.8 * 0.1 / 2) * sent["packets"]
    assert received["lost"] == int(rig.links.lost.sum()) == pytest.approx(expected, abs=150)
    assert received["bytes"] == pytest.approx(1400 * received["packets"], abs=1400)
    assert sent["bytes"] == pytest.approx(1400 * sent["packets"], abs=1400)


def test_datagrams_that_found_no_room_are_lost_before_and_after_a_pause() -> None:
    """Half of what is sent for 1 s and, after the sender's pause, for 2 s does not fit."""
    rig = Rig(shape(1000, queue=10))
    bursts, said = datagrams(rig, 2000, 1.0, 5.0)
    rate = round(2000 * PACKET_BITS)
    rig.clock.at(2.0, bursts.leave, "a")
    rig.clock.at(3.0, bursts.join, "a")
    rig.run(8.0)
    sent, received = said
    assert (sent["kind"], received["kind"]) == ("sent", "received")
    assert received["packets"] == pytest.approx(received["lost"], rel=0.02)
    assert sent["packets"] == received["packets"] + received["lost"]
    assert sent["packets"] == pytest.approx(
        3 * rate / (8 * sent["bytes"] / sent["packets"]), rel=0.1
    )
