"""When messages arrive where links change under them, or do not serve at first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from virtual_links import LinkModel, network

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import Costs
from testbed.node import Kind, Message
from testbed.scenario.link_state import (
    Impairments,
    LinkChange,
    LinkDirection,
    LinkState,
    wire_bytes,
)

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


def test_a_changed_delay_is_that_of_messages_that_leave_afterwards() -> None:
    """They are as long as those before, over the same links."""
    clock = VirtualClock()
    later = LinkState(round(FAST), QUEUE, impairments=Impairments(delay_ns=300_000_000))
    changes = [LinkChange(1.0, LinkDirection("b", "down"), later)]
    net = network(clock, {name: LinkModel(FAST, FAST) for name in ("a", "b")}, changes=changes)
    ends = [VirtualEndpoint(net, number, name) for number, name in enumerate("ab")]

    def send() -> None:
        net.start()
        for at_s in (0.0, 0.5, 2.0):
            clock.sleep_until(at_s)
            ends[0].send([1], Message(Kind.GRADIENT, 1, 0, 0, bytes(1000)))

    def receive() -> list[float]:
        messages = [ends[1].receive(1000.0) for _ in range(3)]
        return [message.arrived_s - message.sent_s for message in messages]

    took_s = clock.run({"send": send, "receive": receive})["receive"]
    assert took_s[0] == pytest.approx(took_s[1])
    assert took_s[2] == pytest.approx(took_s[0] + 0.3)


def test_a_processor_reads_one_message_after_the_other() -> None:
    clock = VirtualClock()
    net = network(clock, ["a", "b", "c"], costs=Costs(receive_s=0.25))
    end = VirtualEndpoint(net, 0, "a")

    def come() -> None:
        for at_s in (0.0, 0.0, 0.1, 3.0):
            clock.sleep_until(at_s)
            end.take(Message(Kind.GRADIENT, 1, 0, 1, b"12"), 42, at_s, at_s)

    def read() -> list[tuple[float, float, float]]:
        found = []
        for _ in range(4):
            message = end.receive(1000.0)
            found.append((message.arrived_s, message.last_s, clock.now))
        return found

    found = clock.run({"come": come, "read": read})["read"]
    assert found == [(0.0, 0.25, 0.25), (0.0, 0.5, 0.5), (0.1, 0.75, 0.75), (3.0, 3.25, 3.25)]
    assert end.received == {1: 4 * 42}
