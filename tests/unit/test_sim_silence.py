"""Who is taken for lost in virtual time, and when: of nodes that are silent, that wait themselves, and that are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from virtual_links import LinkModel, network

from testbed.errors import NodeLost
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import Bursts
from testbed.node import Kind, Message
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState
from testbed.scenario.node_timeline import Flow

FAST, SLOW = LinkModel(1e9, 1e9), LinkModel(1e6, 1e9)
SLOW_S = 8.37
"""How long a long message takes on the slow link's way up."""


class Rig:
    """Nodes n0, n1… on links of these kinds; time-outs are 1 s."""

    def __init__(self, *links: LinkModel) -> None:
        self.clock = VirtualClock()
        self.names = [f"n{number}" for number in range(len(links))]
        self.net = network(self.clock, dict(zip(self.names, links, strict=True)))
        self.ends = [VirtualEndpoint(self.net, n, name) for n, name in enumerate(self.names)]

    def send(self, source: int, sink: int, size: int = 1_000_000) -> None:
        self.ends[source].send([sink], Message(Kind.GRADIENT, 1, 0, source, bytes(size)))

    def relay(
        self, number: int, awaited: list[int], waiting: list[int], timeout: float = 1.0
    ) -> Callable[[], float]:
        """A node that waits for a message, and then sends a short one to whoever waits for it."""

        def act() -> float:
            self.ends[number].receive(timeout, awaited, waiting)
            for other in waiting:
                self.send(number, other, 1)
            return self.clock.now

        return act

    def run(self, **bodies: Callable[[], Any]) -> dict[str, Any]:
        """By name of the node; it is the owner of what it does."""
        return self.clock.run(bodies, owners={name: name for name in bodies})


def test_one_that_waits_for_a_slow_message_is_not_lost() -> None:
    """As a worker waits for its server, which waits for another worker: for 1.25 times as long."""
    rig = Rig(FAST, FAST, SLOW)
    server, worker = rig.relay(0, [2], [1]), rig.relay(1, [0], [], 1.25)
    done = rig.run(n0=server, n1=worker, n2=lambda: rig.send(2, 0))
    assert done["n0"] == pytest.approx(SLOW_S, rel=0.01)
    assert done["n0"] < done["n1"] < done["n0"] + 0.01


def test_nor_are_several_of_which_each_waits_for_the_next() -> None:
    rig = Rig(FAST, FAST, FAST, SLOW)
    relays = [rig.relay(number, [number + 1], [number - 1][:number]) for number in range(3)]
    done = rig.run(**dict(zip(rig.names, relays, strict=False)), n3=lambda: rig.send(3, 2))
    assert SLOW_S * 0.99 < done["n2"] < done["n1"] < done["n0"] < SLOW_S * 1.01


def test_the_one_next_to_a_silent_node_finds_out() -> None:
    rig = Rig(FAST, FAST, FAST)
    with pytest.raises(NodeLost, match=r"^node 'n2' was lost"):
        rig.run(n0=rig.relay(0, [2], [1]), n1=rig.relay(1, [0], []), n2=lambda: None)
    assert rig.clock.now == 1.0


def test_one_that_does_not_say_that_it_waits_is_lost() -> None:
    rig = Rig(FAST, FAST, SLOW)
    with pytest.raises(NodeLost, match=r"^node 'n0' was lost"):
        rig.run(n0=rig.relay(0, [2], []), n1=rig.relay(1, [0], [], 1.25), n2=lambda: rig.send(2, 0))
    assert rig.clock.now == 1.25


def test_one_that_is_paused_while_it_waits_is_lost() -> None:
    rig = Rig(FAST, FAST, SLOW)
    rig.clock.at(0.5, rig.clock.hold, "n0")
    server, worker = rig.relay(0, [2], [1]), rig.relay(1, [0], [], 1.25)
    with pytest.raises(NodeLost, match=r"^node 'n0' was lost"):
        rig.run(n0=server, n1=worker, n2=lambda: rig.send(2, 0))
    assert rig.clock.now == 1.25


def test_one_whose_link_is_down_cannot_say_that_it_waits() -> None:
    rig = Rig(FAST, FAST, SLOW)
    down = LinkDirection("n0", "up"), LinkState(0, 10**9)
    rig.clock.at(0.5, rig.net.flows.change, *down)
    server, worker = rig.relay(0, [2], [1]), rig.relay(1, [0], [], 1.25)
    with pytest.raises(NodeLost, match=r"^node 'n0' was lost"):
        rig.run(n0=server, n1=worker, n2=lambda: rig.send(2, 0))
    assert rig.clock.now == 1.25


def test_one_that_takes_in_a_message_is_not_lost() -> None:
    rig = Rig(SLOW, FAST)

    def ask() -> float:
        rig.send(0, 1)
        rig.ends[0].receive(1.0, [1])
        return rig.clock.now

    def answer() -> None:
        rig.ends[1].receive(100.0, [0])
        rig.send(1, 0, 1)

    assert rig.run(n0=ask, n1=answer)["n0"] == pytest.approx(SLOW_S, rel=0.01)


def test_all_in_a_circle_know_half_a_timeout_later() -> None:
    """The last sign of life is that the second began to wait."""
    rig = Rig(FAST, FAST)

    def late() -> None:
        rig.clock.sleep_until(0.5)
        rig.ends[1].receive(1.0, [0], [0])

    with pytest.raises(NodeLost, match="nothing was received for 1 s"):
        rig.run(n0=rig.relay(0, [1], [1]), n1=late)
    assert rig.clock.now == pytest.approx(0.5 + 1.5)


def test_cross_traffic_is_no_sign_of_life() -> None:
    rig = Rig(FAST, FAST)
    flow = Flow("noise", "n1", "n0", "tcp", None, None, 1, start_s=0.0, stop_s=5.0)
    rig.clock.at(0.0, Bursts(rig.net, flow, lambda _: None).start)
    with pytest.raises(NodeLost, match=r"^node 'n1' was lost"):
        rig.run(n0=rig.relay(0, [1], []))
    assert rig.clock.now == 1.0


def test_nor_is_a_message_of_which_nothing_comes_through() -> None:
    rig = Rig(FAST, SLOW)
    damaged = LinkState(1_000_000, 10**9, impairments=Impairments(corrupt=1.0))
    rig.clock.at(0.0, rig.net.flows.change, LinkDirection("n1", "up"), damaged)
    with pytest.raises(NodeLost, match=r"^node 'n1' was lost"):
        rig.run(n0=rig.relay(0, [1], []), n1=lambda: rig.send(1, 0))
    assert rig.clock.now == 1.0
