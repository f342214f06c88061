"""What a timeline is made of, piece by piece: points, sources, schedules, shapes, settings and expanded nodes."""

from __future__ import annotations

from itertools import pairwise, takewhile
from types import SimpleNamespace
from typing import Any

import pytest
from histories import scenario

from testbed.errors import InputError
from testbed.scenario.expand import expand, groups_of_nodes, named_nodes, node_names, racks
from testbed.scenario.link_model import (
    FourStateLoss,
    GilbertElliottLoss,
    LinkEnd,
    LinkShare,
    RandomLoss,
    Reordering,
    SlotTimes,
    TraceEvent,
    held_bytes,
    impairments,
    loss_model,
)
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkDirection,
    LinkState,
    wire_bytes,
)
from testbed.scenario.schedule import (
    NS,
    Constant,
    LinkAttributes,
    Ramp,
    RateSource,
    Schedule,
    Segment,
    Trace,
    nanoseconds,
)
from testbed.scenario.timeline import TracePoints
from testbed.traces.rate_trace import RateTrace
from testbed.units import Duration, Packets, Rate, Size

END = LinkDirection("a", "up")
LINE = LinkAttributes(8000)


def points(trace: RateTrace, scale: float = 1.0, stretch: float = 1.0) -> Any:
    event: Any = SimpleNamespace(key="t", scale=scale, stretch=stretch)
    return TracePoints({"t": trace}).of(event)


def test_points_of_a_trace_are_whole_nanoseconds_and_bits() -> None:
    saw = RateTrace((0.0, 1.0, 2.5), (30, 60, 91), 4.0)
    assert points(saw) == ((0, NS, 5 * NS // 2), (30, 60, 91), 4 * NS)
    assert points(saw, scale=0.5, stretch=2.0) == ((0, 2 * NS, 5 * NS), (15, 30, 46), 8 * NS)


def test_points_that_fall_together_are_one_with_the_last_rate() -> None:
    """Squeezed to under half a nanosecond apart; the period is never before the last point."""
    near = RateTrace((0.0, 1.0, 2.0, 6.0), (1, 2, 3, 4), 8.0)
    assert points(near, stretch=0.2e-9) == ((0, 1), (3, 4), 2)
    assert points(RateTrace((0.0, 1.0), (1, 2), 1.2), stretch=1e-9) == ((0, 1), (1, 2), 2)
    assert points(near, stretch=1e-9) == ((0, 1, 2, 6), (1, 2, 3, 4), 8)


def test_points_are_made_once_for_every_scale_and_stretch() -> None:
    made = TracePoints({"t": RateTrace((0.0,), (8,), 1.0)})
    first: Any = SimpleNamespace(key="t", scale=1.0, stretch=1.0)
    assert made.of(first) is made.of(first)
    other: Any = SimpleNamespace(key="t", scale=2.0, stretch=1.0)
    assert made.of(other) == ((0,), (16,), NS)
    assert TraceEvent.model_fields.keys() >= {"scale", "stretch"}


SOURCES: list[tuple[RateSource, list[tuple[int, int]], int | None, int]] = [
    (Constant(7, 5), [(0, 5)], None, 7),
    # From 10 to 20 in 4 steps over 10 ns: the steps are due at 2.5, 5, 7.5 and 10, rounded down.
    (Ramp(100, 10, 20, 10, 4), [(100, 10), (102, 12), (105, 15), (107, 18), (110, 20)], None, 110),
    (Trace(-3, (0, 2), (7, 9), 5), [(0, 9), (2, 7), (4, 9), (7, 7), (9, 9), (12, 7)], 5, -3),
]


@pytest.mark.parametrize(("source", "pieces", "period", "settled"), SOURCES)
def test_a_source_says_when_it_changes_and_to_what(
    source: RateSource, pieces: list[tuple[int, int]], period: int | None, settled: int
) -> None:
    start, last = pieces[0][0], pieces[-1][0]
    assert list(source.intervals(start, last + 1)) == pieces
    assert list(source.intervals(start, last)) == pieces[: max(1, len(pieces) - 1)]
    endless = takewhile(lambda piece: piece[0] <= last, source.intervals(start, None))
    assert list(endless) == pieces
    assert (source.period, source.settled) == (period, settled)
    for (time, rate), (until, _) in pairwise(pieces):
        assert source.state_at(time) == source.state_at(until - 1) == (rate, until)
    assert source.state_at(last)[0] == pieces[-1][1]
    assert source.count(start, last) == len(pieces)
    later = source.later(1000)
    assert list(later.intervals(start + 1000, last + 1001)) == [(at + 1000, r) for at, r in pieces]
    assert (later.period, later.settled) == (period, settled + 1000)


def test_a_ramp_holds_its_end_and_rounds_between() -> None:
    ramp = Ramp(0, 0, 10, 3, 3)
    assert [ramp.state_at(time) for time in range(5)] == [
        (0, 1), (3, 2), (7, 3), (10, None), (10, None),
    ]  # fmt: skip
    assert Ramp(0, 10, 0, 3, 3).state_at(1) == (7, 2)
    assert nanoseconds(1.0000000006) == NS + 1


def schedule(*segments: tuple[int, RateSource, bool | None]) -> Schedule:
    return Schedule(tuple(Segment(begin, source, LINE, drop) for begin, source, drop in segments))


def test_a_schedule_takes_what_its_segments_say_and_no_service_in_outages() -> None:
    built = schedule(
        (0, Constant(0, 8), None), (10, Constant(0, 8), True), (15, Constant(0, 4), None)
    )
    assert built.state_at(0) == (LinkState(8, 8000), 10)
    assert built.state_at(9) == (LinkState(8, 8000), 10)
    assert built.state_at(10) == (LinkState(0, 8000, drop=True), 15)
    assert built.state_at(20) == (LinkState(4, 8000), None)
    assert [(at, shape.rate_bits) for at, shape in built.changes(0)] == [(0, 8), (10, 0), (15, 4)]
    assert [at for at, _ in built.changes(10, 15)] == [10]
    assert [at for at, _ in built.changes(12, 16)] == [12, 15]
    assert built.bits(0, 20) == 8 * 10 + 4 * 5
    assert built.bits(5, 12) == 8 * 5
    assert built.bits(12, 14) == built.bits(7, 7) == built.bits(9, 3) == 0
    held = built.summary
    assert (held.lowest, held.highest, held.shortest, held.outage) == (4, 8, 5, 5)


def test_a_limit_of_a_piece_is_the_nearer_of_the_source_and_the_next_segment() -> None:
    saw = Trace(0, (0, 4), (1, 2), 8)
    built = schedule((0, saw, None), (6, Constant(0, 9), None))
    assert [built.state_at(time) for time in (0, 4, 6)] == [
        (LinkState(1, 8000), 4), (LinkState(2, 8000), 6), (LinkState(9, 8000), None),
    ]  # fmt: skip


def test_an_outage_that_never_ends_is_none_and_one_of_a_trace_is_as_long_as_it_is() -> None:
    assert schedule((0, Constant(0, 5), None), (3, Constant(0, 0), None)).summary.outage is None
    dead = Trace(0, (0, 5), (7, 0), 9)
    looped = schedule((0, dead, None)).summary
    assert (looped.lowest, looped.highest, looped.shortest, looped.outage) == (7, 7, 4, 4)
    still = schedule((0, Constant(0, 5), None)).summary
    assert (still.lowest, still.highest, still.shortest, still.outage) == (5, 5, None, 0)


def test_lines_are_told_once_and_only_those_of_the_time_asked_for() -> None:
    other = LinkAttributes(9000, 24)
    built = Schedule(
        tuple(Segment(at, Constant(0, 1), line) for at, line in ((0, LINE), (5, other), (9, LINE)))
    )
    assert built.lines(0, None) == [LINE, other]
    assert built.lines(0, 5) == [LINE]
    assert built.lines(5, 9) == [other]
    assert built.lines(6, None) == [other, LINE]
    assert [at for at, _ in built.changes(0, 20)] == [0, 5, 9]


@pytest.mark.parametrize(
    ("frame", "wire"), [(1, 67), (1448, 1514), (1449, 1449 + 132), (2896, 3028), (0, 0)]
)
def test_each_full_segment_of_1448_bytes_has_66_of_headers(frame: int, wire: int) -> None:
    assert wire_bytes(frame) == wire


def test_shapes_are_written_short_where_nothing_is_unusual() -> None:
    plain, lossy = (
        LinkState(5, 8000, drop=True),
        LinkState(5, 8000, False, 0, Impairments(delay_ns=7)),
    )
    assert plain.to_json() == [5, 8000, True]
    assert len(lossy.to_json()) == len(LinkState(5, 8000, False, 24).to_json()) == 5
    for shape in (plain, lossy, LinkState(5, 8000, False, 24)):
        assert LinkState.from_json(shape.to_json()) == shape


def test_a_queue_is_a_time_at_a_rate_or_bytes_or_packets_within_what_kernels_hold() -> None:
    rate = Rate(8e6)
    assert held_bytes(END, rate, Duration(0.01)) == 10_000
    assert held_bytes(END, rate, Size(5000)) == 5000
    assert held_bytes(END, rate, Packets(3)) == 3 * 1514
    assert held_bytes(END, rate, Size(2**32 - 1)) == 2**32 - 1
    with pytest.raises(InputError, match="holds more than 4294967295 B"):
        held_bytes(END, rate, Size(2**32))
    assert held_bytes(END, rate, Packets(2)) == 3028
    with pytest.raises(InputError, match="holds 1514 B: fewer than two packets"):
        held_bytes(END, rate, Packets(1))
    with pytest.raises(InputError, match="a up has no rate"):
        scenario_of_no(rate=None)
    with pytest.raises(InputError, match="a up has no queue"):
        scenario_of_no(queue=None)


def scenario_of_no(**left_out: None) -> None:
    from testbed.scenario.link_model import queue_bytes

    queue_bytes(END, LinkEnd.model_validate({"rate": "1 Mbit/s", "queue": "8 kB", **left_out}))


def asked(**settings: Any) -> Impairments:
    return impairments(LinkEnd(**settings))


def test_what_has_no_effect_is_as_if_it_was_not_asked_for() -> None:
    assert asked() == asked(distribution="normal", delay_correlation=0.5) == Impairments()
    assert asked(loss=RandomLoss(model="random", probability=0.0)) == Impairments()
    assert asked(ecn=True) == asked(duplicate=0.0) == Impairments()
    assert asked(slot=SlotTimes(shortest=Duration(0.0))) == Impairments()
    assert asked(reorder=Reordering(probability=0.0, correlation=0.5, gap=3)) == Impairments()


def test_impairments_are_fractions_and_whole_nanoseconds() -> None:
    full = asked(
        delay=Duration(0.02), jitter=Duration(0.003), distribution="normal", delay_correlation=0.25,
        loss=RandomLoss(model="random", probability=0.1), duplicate=LinkShare(probability=0.2, correlation=0.4),
        corrupt=0.3, reorder=Reordering(probability=0.05, correlation=0.6, gap=5), ecn=True, ordered=False,
        slot=SlotTimes(shortest=Duration(0.001), longest=Duration(0.004), packets=7, bytes=Size(900)), seed=11,
    )  # fmt: skip
    assert (full.delay_ns, full.jitter_ns) == (20_000_000, 3_000_000)
    assert (full.distribution, full.delay_correlation) == ("normal", 0.25)
    assert full.loss == 0.1
    assert (full.duplicate, full.duplicate_correlation) == (0.2, 0.4)
    assert (full.corrupt, full.corrupt_correlation) == (0.3, 0.0)
    assert (full.reorder, full.reorder_correlation, full.reorder_gap) == (0.05, 0.6, 5)
    assert (full.ecn, full.ordered, full.seed) == (True, False, 11)
    assert full.slot is not None
    assert (full.slot.shortest_ns, full.slot.longest_ns) == (1_000_000, 4_000_000)
    assert (full.slot.packets, full.slot.bytes) == (7, 900)
    plain = asked(jitter=Duration(0.001), loss=0.1, slot=SlotTimes(shortest=Duration(0.002)))
    assert (plain.distribution, plain.delay_correlation, plain.ecn) == ("uniform", 0.0, False)
    assert plain.slot is not None
    assert (plain.slot.shortest_ns, plain.slot.longest_ns) == (2_000_000, 2_000_000)
    assert (plain.slot.packets, plain.slot.bytes) == (0, 0)


def test_losses_by_their_models() -> None:
    burst = GilbertElliottLoss(model="gilbert-elliott", p=0.1, r=0.2, loss_bad=0.9, loss_good=0.01)
    assert loss_model(LinkEnd(loss=burst)) == GilbertElliott(0.1, 0.2, 0.9, 0.01)
    four = FourStateLoss(model="four-state", p13=0.1, p31=0.2, p32=0.3, p23=0.4, p14=0.05)
    assert loss_model(LinkEnd(loss=four)) == FourState(0.1, 0.2, 0.3, 0.4, 0.05)
    assert loss_model(LinkEnd(loss=0.2)) == 0.2
    assert loss_model(LinkEnd()) == 0.0


def test_servers_come_first_and_peers_are_counted_through_all_roles() -> None:
    nodes = {
        "far": {"role": "worker", "count": 2}, "extra": {"role": "host"}, "ps": {"role": "server"},
        "near": {"role": "worker"},
    }  # fmt: skip
    end = {"rate": "1 Mbit/s", "queue": "8 kB"}
    members = {"members": ["near", "far", "far-1", "nobody"], "up": end, "down": end}
    made = scenario(nodes=nodes, racks={"rack": members})
    assert [(spec.name, spec.group, spec.role, spec.rank, spec.peer) for spec in expand(made)] == [
        ("ps", "ps", "server", 0, 0), ("far-0", "far", "worker", 0, 1), ("far-1", "far", "worker", 1, 2),
        ("near", "near", "worker", 2, 3), ("extra", "extra", "host", 0, 4),
    ]  # fmt: skip
    assert node_names(made, "far") == ["far-0", "far-1"]
    groups = groups_of_nodes(made)
    assert list(groups.items()) == [
        ("far-0", "far"), ("far-1", "far"), ("extra", "extra"), ("ps", "ps"), ("near", "near"),
    ]  # fmt: skip
    assert named_nodes(made, ("far-1", "far", "nobody"), groups) == ["far-1", "far-0"]
    (rack,) = racks(made)
    assert (rack.name, rack.members) == ("rack", ("near", "far-0", "far-1"))
