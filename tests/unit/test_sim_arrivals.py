"""When messages arrive where links change under them, or do not serve at first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from virtual_links import LinkModel, network

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.node import Kind, Message
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState, wire_bytes

QUEUE = 10**9
BODY = bytes(1_000_000)
FAST = 100e6


def arrival_s(changes: Sequence[tuple[float, float]], first_bits: float = FAST) -> float:
    """When 1 MB over a link of 100 Mbit/s is there that is changed to (bit/s) at (s after t0), one of two of its kind."""
    clock = VirtualClock()
    names = ("a", "b")
    links = {name: LinkModel(1e9, first_bits if name == "b" else 1e9) for name in names}
    plan = [
        LinkChange(at_s, LinkDirection("b", "down"), LinkState(round(bits), QUEUE))
        for at_s, bits in changes
    ]
    net = network(clock, links, changes=plan)
    ends = [VirtualEndpoint(net, number, name) for number, name in enumerate(names)]

    def send() -> None:
        net.start()
        ends[0].send([1], Message(Kind.GRADIENT, 1, 0, 0, BODY))

    found = clock.run({"send": send, "receive": lambda: ends[1].receive(1000.0).arrived_s})
    return float(found["receive"])


def bits() -> float:
    return 8.0 * wire_bytes(len(BODY) + 32)


def test_nothing_changes() -> None:
    assert arrival_s([]) == pytest.approx(bits() / FAST, rel=0.01)


@pytest.mark.parametrize(("at_s", "slow_bits"), [(0.06, 1e6), (0.07, 5e6), (0.01, 50e6)])
def test_a_rate_that_falls_in_the_middle_of_a_message(at_s: float, slow_bits: float) -> None:
    left = bits() - at_s * FAST
    assert arrival_s([(at_s, slow_bits)]) == pytest.approx(at_s + left / slow_bits, rel=0.02)


def test_a_rate_that_rises_in_the_middle_of_a_message() -> None:
    left = bits() - 0.5 * 10e6
    found = arrival_s([(0.5, FAST)], first_bits=10e6)
    assert found == pytest.approx(0.5 + left / FAST, rel=0.02)


def test_an_outage_that_begins_with_the_run() -> None:
    found = arrival_s([(2.0, FAST)], first_bits=0.0)
    assert found == pytest.approx(2.0 + bits() / FAST, rel=0.02)


def test_an_outage_in_the_middle_takes_its_time() -> None:
    assert arrival_s([(0.04, 0.0), (1.04, FAST)]) == pytest.approx(1.0 + bits() / FAST, rel=0.02)
