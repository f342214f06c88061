"""The multicast protocol's windows: how they follow delay and losses."""

from __future__ import annotations

from testbed.transport.multicast.packet import Flag
from testbed.transport.multicast.receiver import AHEAD
from testbed.transport.multicast.sender import (
    LEAST,
    TARGET_US,
    RoundTripEstimate,
    Sending,
    SendWindow,
)
from testbed.transport.multicast.udp import Outgoing


def settle(window: SendWindow, delay_us: float, trips: int = 60) -> None:
    for trip in range(trips):
        window.progressed(int(window.packets), int(delay_us), trip * 0.02, limited=True)


def test_the_window_doubles_until_there_is_delay_and_then_holds_it() -> None:
    window = SendWindow()
    for _ in range(5):
        window.progressed(int(window.packets), 0, 0.0, limited=True)
    assert window.packets == 128
    settle(window, TARGET_US)
    assert window.packets == 128
    settle(window, 4 * TARGET_US)
    assert window.packets == LEAST
    settle(window, TARGET_US / 2)
    assert window.packets > 20


def test_the_window_grows_only_where_it_was_in_the_way() -> None:
    window = SendWindow()
    window.progressed(4, 0, 0.0, limited=False)
    assert window.packets == 4


def test_losses_count_with_delay_or_in_numbers_and_once_a_round_trip() -> None:
    window = SendWindow(packets=100, starting=False)
    window.lost(0.01, 0, 1.0, 0.02)
    assert window.packets == 100
    window.lost(0.01, TARGET_US, 1.0, 0.02)
    once = window.packets
    window.lost(0.5, TARGET_US, 1.01, 0.02)
    assert once == window.packets < 100
    window.lost(0.5, 0, 1.1, 0.02)
    assert window.packets < once


def test_delay_that_never_goes_is_not_of_ones_own_making() -> None:
    window = SendWindow(packets=3, starting=False)
    settle(window, 9 * TARGET_US, 200)
    assert window.resting(4.0)
    settle(window, 0)
    assert not window.resting(4.0)


def test_patience_grows_with_questions_in_vain() -> None:
    trip = RoundTripEstimate()
    for _ in range(100):
        trip.measured(0.05)
    assert 0.05 <= trip.patience_s(0) < trip.patience_s(1) <= trip.patience_s(20) == 0.5


def test_only_who_has_confirmed_nothing_for_so_long_is_given_up() -> None:
    """Since the message was begun, or since it was heard of last, about whichever message."""
    lost: list[int] = []
    sending = Sending(None, {}, 2.0, lambda member, _: lost.append(member))  # type: ignore[arg-type]
    message = Outgoing(0, 0, [1, 2, 3], bytes(5000))
    message.begun_s = 10.0
    message.members[3].done = True
    sending._heard_s = {1: 4.0, 2: 11.5}
    sending._give_up(message, 12.0)
    assert lost == []
    sending._give_up(message, 12.5)
    assert lost == [1]
    sending._give_up(message, 14.0)
    assert lost == [1, 1, 2]


def test_what_a_lost_member_alone_had_not_confirmed_is_done() -> None:
    """In whichever group; what others have not confirmed goes on."""
    sending = Sending(None, {}, 2.0, lambda *_: None)  # type: ignore[arg-type]
    messages = [Outgoing(0, 0, [1, 2], bytes(5000)), Outgoing(1, 0, [2, 3], bytes(5000))]
    for message in messages:
        sending.begin(message)
    messages[0].members[1].done = True
    sending.drop(2)
    assert [message.handed_over.is_set() for message in messages] == [True, False]
    assert not sending.idle
    sending.drop(3)
    assert messages[1].handed_over.is_set() and sending.idle


def test_messages_are_begun_half_as_far_ahead_as_receivers_have_room_for() -> None:
    sending = Sending(None, {}, 2.0, lambda *_: None)  # type: ignore[arg-type]
    far = AHEAD // 2
    messages = [
        Outgoing(group, number, [1], b"x") for group, number in ((0, 0), (0, far - 1), (0, far), (1, far))
    ]  # fmt: skip
    for message in messages:
        sending.begin(message)
    assert [sending._may_begin(message) for message in messages] == [True, True, False, True]


def test_the_last_packet_of_a_message_asks_and_each_question_in_vain_waits_longer() -> None:
    sending = Sending(None, {}, 2.0, lambda *_: None)  # type: ignore[arg-type]
    assert [bool(flags & Flag.ASK) for flags in sending._flags(1, False, 0.0)] == [False]
    assert [bool(flags & Flag.ASK) for flags in sending._flags(1, True, 0.0)] == [True]
    sending.groups[0] = None  # type: ignore[assignment]
    message, waits_s = Outgoing(0, 0, [], b"x"), []
    for _ in range(3):
        sending._probe(message, 10.0)
        waits_s.append(message.ask_s - 10.0)
    assert message.asks == 3 and 0 < waits_s[0] < waits_s[1] < waits_s[2]
