"""Multicast in virtual time beside other traffic, on links that change, and on links that lose packets."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from virtual_multicast import BITS, PACKET_S, RATE, Rig

from testbed.fabric.sim.endpoint import packet_bytes
from testbed.fabric.sim.link_state import PACKET_BITS, evened
from testbed.node import Kind, Message
from testbed.scenario.link_state import (
    Impairments,
    LinkChange,
    LinkDirection,
    LinkState,
    wire_bytes,
)


def test_it_shares_with_connections_evenly() -> None:
    """A multicast to 2 beside a bulk transfer to 2: half of the link each."""
    rig = Rig(3, [{0, 2}])
    bulk = Message(Kind.GRADIENT, 1, 0, 1, bytes(3_000_000))

    def late() -> float:
        rig.clock.sleep_until(1.0)
        rig.cast(0)
        return rig.clock.now

    found = rig.run(
        bulk=lambda: rig.ends[1].send([2], bulk), cast=late, take=partial(rig.take, 2, 2)
    )
    assert found["cast"] == pytest.approx(1.0 + 2 * BITS / RATE, rel=0.01)
    assert found["take"][1].arrived_s == pytest.approx(
        (8 * wire_bytes(3_000_040) + BITS) / RATE, rel=0.01
    )


def test_flows_without_a_window_weigh_as_much_as_others_on_average() -> None:
    weight = np.array([2.0, 7.0, 4.0, 7.0])
    windowed = np.array([True, False, True, False])
    assert evened(weight, windowed).tolist() == [2.0, 3.0, 4.0, 3.0]
    assert evened(weight, np.zeros(4, bool)).tolist() == [1.0] * 4


def test_it_builds_no_queue() -> None:
    """A message to a member in the middle of it waits for nothing, and takes half of the link."""
    rig = Rig(4)

    def beside() -> None:
        rig.clock.sleep_until(0.04)
        assert float(rig.net.links.queued_bits.sum()) == 0.0
        rig.ends[3].send([1], Message(Kind.UPDATE, 1, 0, 3, b""))

    found = rig.run(send=partial(rig.cast, 0), beside=beside, take=partial(rig.take, 1, 2))
    update, gradient = found["take"]
    assert (update.kind, gradient.kind) == (Kind.UPDATE, Kind.GRADIENT)
    assert update.arrived_s < 0.041


def test_links_change_in_the_middle_of_a_message() -> None:
    changes = [
        LinkChange(0.04, LinkDirection("n2", "down"), LinkState(0, 10**9)),
        LinkChange(1.04, LinkDirection("n2", "down"), LinkState(round(RATE / 2), 10**9)),
    ]
    rig = Rig(3, changes=changes)
    found = rig.run(send=partial(rig.cast, 0), take=partial(rig.take, 1))
    left_s = BITS / RATE - 0.04
    assert found["take"][0].arrived_s == pytest.approx(1.04 + 2 * left_s, abs=3 * PACKET_S)


def lossy(loss: float, seed: int = 1, delay_s: float = 0.01) -> Rig:
    """Three nodes; the link to 2 loses packets."""
    impairments = Impairments(delay_ns=round(delay_s * 1e9), loss=loss)
    worse = {LinkDirection("n2", "down"): LinkState(round(RATE), 10**9, impairments=impairments)}
    return Rig(3, others=worse, seed=seed)


def test_what_is_lost_is_sent_again_to_those_who_lost_it() -> None:
    body = bytes(1_000_000)
    bits = 8.0 * packet_bytes(len(body) + 40)
    rig = lossy(0.02)
    found = rig.run(
        send=partial(rig.cast, 0, body=body), one=partial(rig.take, 1), two=partial(rig.take, 2)
    )
    assert found["two"][0].body == body
    lost = int(rig.net.links.lost[rig.net.links.number[LinkDirection("n2", "down")]])
    assert 3 < lost < 40
    assert rig.carried("n1", "down") == pytest.approx(bits, abs=1)
    for link, direction in (("n0", "up"), ("n2", "down")):
        assert rig.carried(link, direction) == pytest.approx(bits + lost * PACKET_BITS, abs=4)
    assert found["one"][0].arrived_s == pytest.approx(bits / RATE, abs=1.01 * PACKET_S)
    late_s = found["two"][0].arrived_s - bits / RATE
    assert 0.01 < late_s < 0.01 + 3 * 0.0101 + (lost + 4) * PACKET_S


def test_a_sender_goes_on_while_repairs_are_under_way() -> None:
    rig = lossy(0.3, delay_s=0.2)

    def send() -> list[float]:
        return [(rig.cast(0, step=step), rig.clock.now)[1] for step in (1, 2)]

    found = rig.run(send=send, two=partial(rig.take, 2, 2), one=partial(rig.take, 1, 2))
    assert found["send"] == pytest.approx([BITS / RATE, 2 * BITS / RATE])
    assert [message.step for message in found["two"]] == [1, 2]
    assert found["two"][0].arrived_s > BITS / RATE + 2 * 0.2
    assert found["one"][1].arrived_s < BITS / RATE * 2 + 0.01


def test_what_the_senders_link_loses_all_have_lost() -> None:
    worse = {
        LinkDirection("n0", "up"): LinkState(round(RATE), 10**9, impairments=Impairments(loss=0.05))
    }
    rig = Rig(3, others=worse)
    rig.run(send=partial(rig.cast, 0), one=partial(rig.take, 1), two=partial(rig.take, 2))
    lost = int(rig.net.links.lost[rig.net.links.number[LinkDirection("n0", "up")]])
    assert lost > 0
    for link, direction in (("n0", "up"), ("n1", "down"), ("n2", "down")):
        carried = rig.carried(link, direction)
        assert carried == pytest.approx(BITS + lost * PACKET_BITS, abs=4)


def test_losses_repeat_with_their_seed() -> None:
    def arrived_s(seed: int) -> float:
        rig = lossy(0.05, seed)
        found = rig.run(send=partial(rig.cast, 0), take=partial(rig.take, 2))
        return float(found["take"][0].arrived_s)

    assert arrived_s(1) == arrived_s(1)
    assert len({arrived_s(seed) for seed in range(1, 5)}) == 4
