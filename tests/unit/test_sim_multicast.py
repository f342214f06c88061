"""Multicast in virtual time: one copy on every link that leads to members, at the rate of the tightest of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from virtual_links import LinkModel
from virtual_multicast import BITS, BODY, PACKET_S, RATE, Rig

from testbed.errors import NodeLost
from testbed.fabric.sim.endpoint import _Delivery, packet_bytes
from testbed.fabric.sim.link_state import PACKET_BITS
from testbed.fabric.sim.network import Costs
from testbed.node import Kind, Message
from testbed.scenario.link_state import LinkDirection, LinkState


def test_one_sender_alone_takes_as_long_as_one_copy() -> None:
    rig = Rig(5)
    takes = {f"take{n}": partial(rig.take, n) for n in range(1, 5)}
    found = rig.run(send=lambda: (rig.cast(0), rig.clock.now), **takes)
    assert found["send"] == (len(BODY) + 40, pytest.approx(BITS / RATE))
    last = (BITS - 8) % PACKET_BITS + 8
    for name in takes:
        (message,) = found[name]
        assert message.body == BODY
        assert message.sent_s == 0.0
        assert message.first_s == pytest.approx(2 * PACKET_S)
        assert message.arrived_s == pytest.approx((BITS + last) / RATE)


@pytest.mark.parametrize("count", [2, 4, 10])
def test_all_to_all_is_held_up_where_everything_comes_together(count: int) -> None:
    rig = Rig(count)
    sends = {f"send{n}": partial(rig.cast, n) for n in range(count)}
    takes = {f"take{n}": partial(rig.take, n, count - 1) for n in range(count)}
    found = rig.run(**sends, **takes)
    ideal_s = (count - 1) * BITS / RATE
    for n in range(count):
        messages = found[f"take{n}"]
        assert {message.sender for message in messages} == set(range(count)) - {n}
        assert messages[-1].arrived_s == pytest.approx(ideal_s, abs=1.01 * PACKET_S)
        assert rig.carried(f"n{n}", "up") == pytest.approx(BITS, abs=1)
        assert rig.carried(f"n{n}", "down") == pytest.approx((count - 1) * BITS, abs=count)


def test_the_slowest_member_holds_up_all() -> None:
    rig = Rig(4, links={3: LinkModel(RATE, RATE / 5)})
    found = rig.run(send=lambda: rig.cast(0), fast=partial(rig.take, 1), slow=partial(rig.take, 3))
    for taken in (found["fast"], found["slow"]):
        assert taken[0].arrived_s == pytest.approx(5 * BITS / RATE, abs=2 * PACKET_S)


def test_others_use_what_a_slow_member_leaves() -> None:
    """0 sends to 1 and the slow 3; from 2 there is four fifths of the link of 1 left."""
    rig = Rig(4, [{0, 1, 3}, {1, 2}], links={3: LinkModel(RATE, RATE / 5)})
    first = Message(Kind.GRADIENT, 1, 0, 2, BODY)
    found = rig.run(
        slow=lambda: rig.cast(0),
        fast=lambda: rig.ends[2].multicast(1, first),
        take=partial(rig.take, 1, 2),
    )
    assert [message.sender for message in found["take"]] == [2, 0]
    assert found["take"][0].arrived_s == pytest.approx(1.25 * BITS / RATE, abs=2 * PACKET_S)


def test_links_of_non_members_carry_nothing() -> None:
    rig = Rig(6, [{0, 1, 2}, {3, 4}])
    found = rig.run(
        a=partial(rig.cast, 0),
        b=partial(rig.cast, 3, 1),
        one=partial(rig.take, 1),
        two=partial(rig.take, 2),
        four=partial(rig.take, 4),
    )
    for name, sender in (("one", 0), ("two", 0), ("four", 3)):
        assert found[name][0].sender == sender
        assert found[name][0].arrived_s == pytest.approx(BITS / RATE, abs=1.01 * PACKET_S)
    used = {("n0", "up"), ("n1", "down"), ("n2", "down"), ("n3", "up"), ("n4", "down")}
    for link, direction in rig.net.links.ends:
        expected = BITS if (link, direction) in used else 0.0
        assert rig.carried(link, direction) == pytest.approx(expected, abs=1)


def test_who_multicasts_need_not_be_a_member() -> None:
    rig = Rig(3, [{1, 2}])
    found = rig.run(send=partial(rig.cast, 0), take=partial(rig.take, 2))
    assert found["take"][0].sender == 0
    assert rig.carried("n0", "down") == 0


def test_nobody_else_is_a_member() -> None:
    rig = Rig(2, [{0}])
    assert rig.run(send=partial(rig.cast, 0))["send"] == 0
    assert rig.carried("n0", "up") == 0


RACKS = {"east": ["n0", "n1"], "west": ["n2", "n3"], "south": ["n4", "n5"]}


def racked(groups: Sequence[set[int]] | None = None) -> Rig:
    """Six nodes in three racks whose links are no faster than a node's."""
    plain = LinkState(round(RATE), 10**9)
    shared = {LinkDirection(rack, d): plain for rack in RACKS for d in ("up", "down")}  # type: ignore[arg-type]
    return Rig(6, groups, others=shared, racks=RACKS)


def test_one_copy_leaves_a_rack_and_one_enters_each_rack_with_members() -> None:
    rig = racked([{0, 1, 2, 3}])
    takes = {f"take{n}": partial(rig.take, n) for n in (1, 2, 3)}
    found = rig.run(send=partial(rig.cast, 0), **takes)
    assert found["take1"][0].arrived_s == pytest.approx(BITS / RATE, abs=1.01 * PACKET_S)
    assert found["take2"][0].arrived_s == found["take3"][0].arrived_s
    assert found["take3"][0].arrived_s == pytest.approx(BITS / RATE, abs=3.01 * PACKET_S)
    used = {("n0", "up"), ("n1", "down"), ("n2", "down"), ("n3", "down")}
    used |= {("east", "up"), ("west", "down")}
    for link, direction in rig.net.links.ends:
        expected = BITS if (link, direction) in used else 0.0
        assert rig.carried(link, direction) == pytest.approx(expected, abs=1)


def test_racks_hold_up_what_comes_from_several_of_them() -> None:
    """Into each rack come the messages of the four nodes elsewhere; of the fifth's, its neighbour's, only to it."""
    rig = racked()
    takes = {f"take{n}": partial(rig.take, n, 5) for n in range(6)}
    found = rig.run(**{f"send{n}": partial(rig.cast, n) for n in range(6)}, **takes)
    for name in takes:
        last_s = found[name][-1].arrived_s
        assert last_s == pytest.approx(5 * BITS / RATE, abs=3.01 * PACKET_S)
    for rack in RACKS:
        assert rig.carried(rack, "down") == pytest.approx(4 * BITS, abs=5)
        assert rig.carried(rack, "up") == pytest.approx(2 * BITS, abs=3)


def test_every_member_has_a_way_of_its_own() -> None:
    far = LinkModel(RATE, RATE, latency_s=0.05)
    rig = Rig(3, links={2: far})
    found = rig.run(send=partial(rig.cast, 0), near=partial(rig.take, 1), far=partial(rig.take, 2))
    near_s, far_s = (found[name][0].arrived_s for name in ("near", "far"))
    assert near_s == pytest.approx(BITS / RATE, abs=1.01 * PACKET_S)
    assert far_s == pytest.approx(near_s + 0.05)


def test_a_sender_multicasts_one_message_after_the_other() -> None:
    rig = Rig(4, [{0, 1, 2}, {0, 1, 3}])
    found = rig.run(
        first=partial(rig.cast, 0, 0, 1), second=partial(rig.cast, 0, 1, 2),
        one=partial(rig.take, 1, 2), three=partial(rig.take, 3),
    )  # fmt: skip
    assert [message.step for message in found["one"]] == [1, 2]
    assert found["one"][0].arrived_s == pytest.approx(BITS / RATE, abs=1.01 * PACKET_S)
    assert found["three"][0].arrived_s == pytest.approx(2 * BITS / RATE, abs=1.01 * PACKET_S)


@pytest.mark.parametrize("first_is_multicast", [True, False])
def test_messages_to_one_receiver_stay_in_order(first_is_multicast: bool) -> None:
    """A small message is sent a millisecond after a large one, the other way, and would overtake it."""
    rig = Rig(3)
    small = Message(Kind.BYE, 2, 0, 0, b"bye")

    def send() -> None:
        if first_is_multicast:
            rig.clock.spawn("large", partial(rig.cast, 0))
        else:
            rig.ends[0].send([1], Message(Kind.GRADIENT, 1, 0, 0, BODY))
        rig.clock.sleep_until(0.001)
        if first_is_multicast:
            rig.ends[0].send([1, 2], small)
        else:
            rig.ends[0].multicast(0, small)

    count = {1: 2, 2: 1 + first_is_multicast}
    found = rig.run(
        send=send, **{f"take{n}": partial(rig.take, n, many) for n, many in count.items()}
    )
    one, two = found["take1"], found["take2"]
    assert [message.step for message in one] == [1, 2]
    assert 0 <= one[1].arrived_s - one[0].arrived_s < 0.002
    if not first_is_multicast:  # nothing was sent to it before
        assert two[0].arrived_s < 0.02


def test_silence_is_not_what_a_multicast_under_way_is() -> None:
    rig = Rig(2, links={1: LinkModel(RATE, 1e5)})
    found = rig.run(send=partial(rig.cast, 0), take=lambda: rig.ends[1].receive(1.0))
    assert found["take"].arrived_s > 8.0
    with pytest.raises(NodeLost, match="nothing was received for 1 s"):
        rig = Rig(3, [{0, 1}], links={1: LinkModel(RATE, 1e5)})
        rig.run(send=partial(rig.cast, 0), take=lambda: rig.ends[2].receive(1.0))


def test_a_host_sends_one_message_however_many_members() -> None:
    rig = Rig(9, costs=Costs(send_s=0.5, receive_s=0.25))
    takes = {f"take{n}": partial(rig.take, n) for n in range(1, 9)}
    found = rig.run(send=lambda: (rig.cast(0), rig.clock.now)[1], **takes)
    assert found["send"] == pytest.approx(0.5 + BITS / RATE)
    for name in takes:
        (message,) = found[name]
        assert message.sent_s == 0.5
        assert message.last_s - message.arrived_s == pytest.approx(0.25)


def test_frames_are_counted_once_where_they_are_sent_and_once_where_they_come() -> None:
    rig = Rig(4)
    rig.run(send=partial(rig.cast, 0), **{f"take{n}": partial(rig.take, n) for n in (1, 2, 3)})
    size = len(BODY) + 40
    assert (rig.ends[0].multicast_sent, rig.ends[0].sent, rig.ends[0].received) == (size, {}, {})
    for end in rig.ends[1:]:
        assert (end.multicast_sent, end.sent, end.received) == (0, {}, {0: size})


def test_a_buffer_can_be_used_again() -> None:
    rig = Rig(2)
    buffer = bytearray(b"first")

    def send() -> None:
        rig.ends[0].multicast(0, Message(Kind.GRADIENT, 1, 0, 0, buffer))
        buffer[:] = b"other"

    assert rig.run(send=send, take=partial(rig.take, 1))["take"][0].body == b"first"


def test_members_that_cannot_be_reached_are_named() -> None:
    rig = Rig(3, [{0, 1, 2}])
    rig.ends[2].form_groups([])
    with pytest.raises(NodeLost, match=r"n2.*has not joined group 0"):
        rig.run(send=partial(rig.cast, 0))
    rig = Rig(2, [{0, 1, 7}])
    with pytest.raises(NodeLost, match="peer 7"):
        rig.run(send=partial(rig.cast, 0))


def test_many_senders_that_come_and_go_get_what_there_is() -> None:
    """Groups of many sizes, begun at many times: every link carries exactly what was sent over it."""
    count = 12
    groups = [
        set(range(start, min(count, start + size))) for start in range(count) for size in (2, 5, 9)
    ]
    rig, sent = Rig(count, groups), np.zeros((2, count))
    expected = [0] * count

    def sender(number: int) -> None:
        for group, members in enumerate(groups):
            if number in members and len(members) > 1 and group % 3 == number % 3:
                rig.clock.sleep_until(0.013 * group)
                body = bytes(1000 * (group + 1))
                rig.cast(number, group, body=body)
                sent[0, number] += 8 * packet_bytes(len(body) + 40)
                for member in members - {number}:
                    sent[1, member] += 8 * packet_bytes(len(body) + 40)

    for number in range(count):
        for group, members in enumerate(groups):
            if number in members and len(members) > 1 and group % 3 == number % 3:
                for member in members - {number}:
                    expected[member] += 1
    rig.run(
        **{f"send{n}": partial(sender, n) for n in range(count)},
        **{f"take{n}": partial(rig.take, n, many) for n, many in enumerate(expected)},
    )
    for place, direction in enumerate(("up", "down")):
        carried = [rig.carried(f"n{n}", direction) for n in range(count)]
        assert carried == pytest.approx(sent[place].tolist(), abs=100)
    assert sent.min() > 0


def test_a_message_has_come_when_the_last_of_its_parts_has() -> None:
    """What was sent again over a link that is faster now can be there before the rest."""
    flows, arrived = [], []
    passages = iter([(0.1, 5.0), (0.2, 3.0)])
    network: Any = SimpleNamespace(
        clock=SimpleNamespace(now=0.0),
        links=SimpleNamespace(tree=lambda routes: next(iter(routes)), impaired={}),
        flows=SimpleNamespace(begin=flows.append, losses=None),
        passage=lambda _: next(passages),
    )

    class Member:
        route = SimpleNamespace(forward=())

        def enter(self) -> int:
            return 7

        def arrive(self, position: int, *about: object) -> None:
            arrived.append((position, *about[-2:]))

    member: Any = Member()
    delivery = _Delivery(network, Message(Kind.GRADIENT, 1, 0, 0, b""), 40, None, [member])
    delivery.begin(lambda: None)
    delivery._expect([member])
    delivery._send([member], 320.0)
    for flow in flows:
        flow.done(flow)
    assert arrived == [(7, 0.1, 5.0)]
