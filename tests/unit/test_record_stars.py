"""Messages of any pattern as groups: those with one end in common, and nothing for the others."""

from __future__ import annotations

import pytest

from testbed.fidelity.completion import measure_groups
from testbed.fidelity.service_curve import MessageInFlight, flights, group_by_common_end
from testbed.scenario.link_state import LinkDirection, wire_bytes

MBIT = 1e6


def flight(
    source: str, sink: str, sent_s: float, arrived_s: float, size: int = 100_000
) -> MessageInFlight:
    return MessageInFlight(source, sink, size, sent_s, arrived_s)


def test_uploads_and_answers_are_the_groups_of_a_round() -> None:
    found, entangled = group_by_common_end(
        [
            flight("w0", "s", 0.0, 0.2), flight("w1", "s", 0.1, 0.3),
            flight("s", "w0", 0.4, 0.5), flight("s", "w1", 0.4001, 0.6),
        ]
    )  # fmt: skip
    assert entangled == 0
    up, down = found
    assert (up.direction, up.server, up.start_s, up.last_s) == ("up", "s", 0.0, 0.3)
    assert [(load.link, load.start_s) for load in up.loads] == [("w0", 0.0), ("w1", 0.1)]
    assert (down.direction, down.server) == ("down", "s")
    assert [(load.link, load.start_s) for load in down.loads] == [("w0", 0.4), ("w1", 0.4)]


def test_hops_of_a_ring_share_links_with_each_others_acknowledgements() -> None:
    ring = (("x", "y"), ("y", "z"), ("z", "x"))
    found, entangled = group_by_common_end([flight(a, b, 0.1, 0.2) for a, b in ring])
    assert (len(found), entangled) == (0, 3)
    # one after the other nothing is shared
    found, entangled = group_by_common_end(
        [flight(a, b, n / 10, (n + 1) / 10) for n, (a, b) in enumerate(ring)]
    )
    assert (len(found), entangled) == (3, 0)


def test_what_shares_links_in_another_way_is_no_group() -> None:
    crossed = [flight("a", "x", 0.0, 1.0), flight("a", "y", 0.0, 1.0), flight("b", "y", 0.5, 1.0)]
    assert group_by_common_end(crossed) == ([], 1)
    apart = [*crossed[:2], flight("b", "y", 1.5, 2.0)]
    found, entangled = group_by_common_end(apart)
    assert ([group.direction for group in found], entangled) == (["down", "up"], 0)


def test_a_long_flight_holds_together_what_begins_meanwhile() -> None:
    """The second one ends before the third begins; the first is still under way."""
    found, _ = group_by_common_end([flight("a", "s", 0.0, 1.0), flight("b", "s", 0.1, 0.2), flight("c", "s", 0.5, 0.9)])  # fmt: skip
    assert [len(group.loads) for group in found] == [3]


def test_flights_are_read_from_records_in_the_order_of_their_beginning() -> None:
    records = [
        {"sender": "a", "node": "b", "bytes": 5, "sent_s": sent_s, "arrived_s": 2.0, "step": 1}
        for sent_s in (1.0, 0.5)
    ]
    assert [one.sent_s for one in flights(records)] == [0.5, 1.0]


@pytest.mark.parametrize(("late_s", "within"), [(0.0, True), (0.1, False)])
def test_they_are_held_against_the_links(late_s: float, within: bool) -> None:
    """Two uploads of 1 MB over links of 40 Mbit/s to one of 40."""
    bits = 8.0 * wire_bytes(1_000_000)
    done_s = 2 * bits / (40 * MBIT)
    found, _ = group_by_common_end(
        [flight(name, "s", 0.0, done_s + late_s, 1_000_000) for name in ("w0", "w1")]
    )

    def rate(end: LinkDirection, from_s: float, to_s: float) -> float:
        return 40 * MBIT * (to_s - from_s)

    judged = measure_groups(found, rate)
    assert judged["judged"] == 1
    assert (judged["used"]["max"] < 1.0) is within
