"""Buckets that travel together, by hand: what one link carries one after the other, and what idles between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.fidelity.completion import measure_groups
from testbed.fidelity.service_curve import (
    MessageGroup,
    OfferedLoad,
    downloads_done,
    followed,
    groups,
    uploads_done,
)
from testbed.scenario.link_state import LinkDirection, wire_bytes

ABOUT = {"abs": 5e-6}
LINKS = {1: "w0", 2: "w1"}
SIZE = 144_800
ALONE_S = 8 * wire_bytes(SIZE) / 10e6
"""A message on a link of 10 Mbit/s."""


def measure(rounds, steps, links, *others, **options):
    return measure_groups(groups(rounds, steps, links), *others, **options)


def rates(**ends: float):
    """``bits`` of links that keep their rate: ``w0_up=10e6``; those left out have 10 Mbit/s."""

    def bits(end: LinkDirection, start_s: float, stop_s: float) -> float:
        return ends.get(f"{end.link}_{end.direction}", 10e6) * (stop_s - start_s)

    return bits


EVEN = rates()


def test_a_link_carries_its_buckets_one_after_the_other() -> None:
    at_once = [
        OfferedLoad("w0", 1e6, 0.0),
        OfferedLoad("w0", 2e6, 0.05),
        OfferedLoad("w0", 1e6, 0.1),
    ]
    assert uploads_done(EVEN, at_once, "s") == pytest.approx(0.4, **ABOUT)
    wide = rates(s_down=100e6)
    assert uploads_done(wide, at_once, "s") == pytest.approx(0.4, **ABOUT)
    # Nothing is left when the third is sent: it is not served before that.
    later = [*at_once[:2], OfferedLoad("w0", 1e6, 0.7)]
    assert uploads_done(wide, later, "s") == pytest.approx(0.8, **ABOUT)


def test_buckets_of_several_workers_meet_at_the_server() -> None:
    loads = [OfferedLoad(link, 1e6, at_s) for link in ("w0", "w1") for at_s in (0.0, 0.15)]
    # 2 Mbit come in 0.1 s, take 0.2 s, and the others come meanwhile: the server's link never idles.
    assert uploads_done(EVEN, loads, "s") == pytest.approx(0.4, **ABOUT)
    # Its own link is done with the first of w0 at 0.5 s, with the second at 1 s.
    slow = rates(w0_up=2e6)
    assert uploads_done(slow, loads, "s") == pytest.approx(1.0, **ABOUT)


def test_volleys_leave_one_after_the_other() -> None:
    volleys = [OfferedLoad(link, 1e6, at_s) for at_s in (0.0, 0.1) for link in ("w0", "w1")]
    assert downloads_done(EVEN, volleys, "s") == pytest.approx(0.4, **ABOUT)
    # 2 Mbit for w1 in 0.4 s, at 2 Mbit/s from the beginning on.
    assert downloads_done(rates(w1_down=2e6), volleys, "s") == pytest.approx(1.0, **ABOUT)


def test_links_idle_between_volleys() -> None:
    volleys = [OfferedLoad(link, 1e6, at_s) for at_s in (0.0, 1.0) for link in ("w0", "w1")]
    assert downloads_done(EVEN, volleys, "s") == pytest.approx(1.2, **ABOUT)
    # w1's first has come by 0.5 s, its second takes as long again.
    assert downloads_done(rates(w1_down=2e6), volleys, "s") == pytest.approx(1.5, **ABOUT)
    # Its first takes until 1.25 s: the second, which comes meanwhile, waits for it.
    assert downloads_done(rates(w1_down=8e5), volleys, "s") == pytest.approx(2.5, **ABOUT)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e5, 5e6), st.floats(0.0, 0.3)), min_size=1, max_size=3),
    st.integers(2, 4),
    st.floats(1e6, 5e7),
)
def test_a_message_in_pieces_takes_as_long_as_in_one(
    loads: list[tuple[float, float]], pieces: int, server: float
) -> None:
    bits = rates(w0_up=7e6, s_down=server, s_up=server, w1_down=3e6)
    whole = [OfferedLoad(f"w{n}", amount, at_s) for n, (amount, at_s) in enumerate(loads)]
    parted = [replace(load, bits=load.bits / pieces) for load in whole for _ in range(pieces)]
    up = uploads_done(bits, whole, "s")
    assert uploads_done(bits, parted, "s") == pytest.approx(up, rel=1e-3)
    together = [replace(load, start_s=0.0) for load in whole]
    parted = [replace(load, start_s=0.0) for load in parted]
    down = downloads_done(bits, together, "s")
    assert downloads_done(bits, parted, "s") == pytest.approx(down, rel=1e-3)


def bucketed(
    starts: list[float], late_s: float = 0.0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two workers send a message of each bucket at each of ``starts``; replies leave 2 s later. 10 Mbit/s each way."""
    served, buckets, up_s = list[dict[str, Any]](), list[dict[str, Any]](), 0.0
    for number, at_s in enumerate(starts):
        up_s = max(up_s, at_s) + 2 * ALONE_S
        sent = {"bytes": SIZE, "sent_s": at_s, "arrived_s": up_s + late_s}
        served.append(
            {
                "step": 1, "node": "s", "bucket": number, "send_start_s": at_s + 2,
                "messages": [{"sender": sender, **sent} for sender in LINKS], "bytes_down": 2 * SIZE,
            }
        )  # fmt: skip
        back = {"step": 1, "bucket": number, "arrived_s": up_s + 2 + late_s}
        buckets += [{"node": link, **back} for link in LINKS.values()]
    return served, buckets


@pytest.mark.parametrize("starts", [[1.0], [1.0, 1.0], [1.0, 1.2, 1.25], [1.0, 2.5]])
def test_a_steps_buckets_are_one_group_each_way(starts: list[float]) -> None:
    up, down = groups(*bucketed(starts), LINKS)
    assert (up.direction, down.direction) == ("up", "down")
    assert len(up.loads) == len(down.loads) == 2 * len(starts)
    assert up.done(EVEN) == pytest.approx(up.last_s, **ABOUT)
    assert down.done(EVEN) == pytest.approx(down.last_s, **ABOUT)
    assert up.ends == [
        LinkDirection("s", "down"),
        LinkDirection("w0", "up"),
        LinkDirection("w1", "up"),
    ]
    assert up.routes == [("w0", "s"), ("w1", "s")]
    each = len(starts) * 8.0 * wire_bytes(SIZE)
    assert up.link_bits() == dict(zip(up.ends, (2 * each, each, each), strict=True))
    assert list(down.link_bits().values()) == [2 * each, each, each]


def test_late_buckets_are_found() -> None:
    assert measure(*bucketed([1.0, 1.2]), LINKS, EVEN)["used"]["max"] < 1e-2
    off = measure(*bucketed([1.0, 1.2], late_s=0.1), LINKS, EVEN)
    assert off["error_ms"]["max"] == pytest.approx(100, rel=1e-3)
    assert off["judged"] == 2


def test_waits_between_buckets_do_not_loosen_the_tolerance() -> None:
    late = measure(*bucketed([1.0, 11.0], late_s=0.05), LINKS, EVEN)
    tolerance = 0.01 * 4 * ALONE_S + 2 * 8 * 1514 / 10e6
    assert late["used"]["max"] == pytest.approx(0.05 / tolerance, rel=1e-3)
    assert late["error"]["max"] == pytest.approx(0.05 / (4 * ALONE_S), rel=1e-3)


def test_one_bucket_is_judged_as_one_message() -> None:
    served, buckets = bucketed([1.0], late_s=0.01)
    rounds = [{key: value for key, value in one.items() if key != "bucket"} for one in served]
    steps = [{key: value for key, value in one.items() if key != "bucket"} for one in buckets]
    assert list(groups(served, buckets, LINKS)) == list(groups(rounds, steps, LINKS))
    assert measure(served, buckets, LINKS, EVEN) == measure(rounds, steps, LINKS, EVEN)


def test_apart_every_bucket_is_a_group() -> None:
    served, buckets = bucketed([1.0, 1.2])
    found = list(groups(served, buckets, LINKS, apart=True))
    assert [(group.direction, group.start_s) for group in found] == [
        ("up", 1.0), ("down", 3.0), ("up", 1.2), ("down", 3.2),
    ]  # fmt: skip


def test_replies_are_judged_when_all_of_them_came() -> None:
    served, buckets = bucketed([1.0, 1.2])
    missing = [one for one in buckets if (one["bucket"], one["node"]) != (1, "w1")]
    assert [group.direction for group in groups(served, missing, LINKS)] == ["up"]
    apart = groups(served, missing, LINKS, apart=True)
    assert [group.direction for group in apart] == ["up", "down", "up"]


@pytest.mark.parametrize("turn", range(4))
def test_a_group_ends_with_the_latest_of_its_messages(turn: int) -> None:
    """In whichever order records of nodes are read, and buckets came."""
    served, buckets = bucketed([1.0, 1.2])
    times_s = [5.0, 5.3, 5.1, 5.2]
    for bucket, at_s in zip(buckets, times_s[turn:] + times_s[:turn], strict=True):
        bucket["arrived_s"] = at_s
    for at_s, message in zip(
        times_s[turn:] + times_s[:turn],
        (message for record in served for message in record["messages"]),
        strict=True,
    ):
        message["arrived_s"] = at_s - 2.0
    up, down = groups(served, buckets, LINKS)
    assert (up.last_s, down.last_s) == (3.3, 5.3)
    assert (up.start_s, down.start_s) == (1.0, 3.0)


def test_buckets_are_followed_where_there_are_some() -> None:
    served, buckets = bucketed([1.0])
    plain = {"round": [{"step": 1}], "step": [{"step": 1}]}
    assert tuple(map(list, followed(plain))) == ([{"step": 1}], [{"step": 1}])
    assert followed({**plain, "served": served, "bucket": buckets}) == (served, buckets)
    # Layers that travel as one message have records of their own, and none at the server.
    beside = followed({**plain, "bucket": buckets})
    assert tuple(map(list, beside)) == ([{"step": 1}], [{"step": 1}])
    assert tuple(map(list, followed({}))) == ([], [])


def test_what_packets_cost_and_delays_are_counted_for_every_bucket() -> None:
    loads = tuple(OfferedLoad("w0", 1514 * 8.0 * 100, at_s) for at_s in (0.0, 1.0))
    up = MessageGroup(1, "up", "s", loads, 0.0)
    bits = 1514 * 8 * 100 + 8 * 24 * 100
    assert [load.bits for load in up.charged(24).loads] == [bits, bits]
    assert up.charged(0) == up
    smaller = 8 * (144_800 + 104 * (66 + 24))  # an overlay's segments: ⌈144,800 / 1398⌉ of them
    assert [load.bits for load in up.charged(24, 1398).loads] == [smaller, smaller]
    delayed = up.done(EVEN, lambda end: {"w0": 0.02, "s": 0.03}[end.link])
    assert delayed == pytest.approx(up.done(EVEN) + 0.05, **ABOUT)
