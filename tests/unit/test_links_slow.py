"""Charges across changes of a low rate against an exact fluid, and against a model of how the kernel charges."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.links.replay.interval_errors import served_at
from testbed.links.replay.link_player import (
    EARLIEST_NS,
    FOREVER_NS,
    LONGEST_NS,
    RENEW_NS,
    TELLING_NS,
    LinkPlayer,
    LowRateDebt,
    Step,
    charge_for,
    charge_of,
    ends_ns,
    frame_ns,
    is_slow,
    pace_at,
)
from testbed.links.shaper import CLOSED_RATE_BITS, ShapedQueue
from testbed.links.tc import htb
from testbed.links.tc.parameters import MAX_SEGMENTS, TICK_NS, LinkPace, pace
from testbed.scenario.link_state import FRAME_BYTES, LinkChange, LinkDirection, LinkState
from testbed.traces.generate import markov

MS, S, MBIT = 1_000_000, 1_000_000_000, 1_000_000
QUEUE = 1 << 30


def costs_ns(pace: LinkPace, size: int = FRAME_BYTES) -> float:
    return max(size + pace.overhead_bytes, pace.mpu_bytes) * 1e9 / pace.rate_bytes


def fluid_ends(begin: int, bits: int, rate: int, coming: list[Step]) -> Fraction | None:
    """By small exact steps: every boundary in turn."""
    left, at = Fraction(bits), Fraction(begin)
    edges = [(Fraction(t), r) for t, r in coming if t > begin]
    rate = next((r for t, r in reversed(coming) if t <= begin), rate)
    for edge, following in [*edges, (None, 0)]:
        if rate and (edge is None or left <= rate * (edge - at) / 10**9):
            return at + left * 10**9 / rate
        if edge is None:
            return None
        left, at, rate = left - rate * (edge - at) / 10**9, edge, following
    return None


STEPS = st.lists(
    st.tuples(
        st.integers(-20 * MS, 3 * S),
        st.sampled_from([0, 0, 100, 1_000, 33_333, MBIT, 50 * MBIT]) | st.integers(0, 10**9),
    ),
    max_size=12,
).map(sorted)


@given(STEPS, st.integers(1, 2_400_000), st.integers(1, 10**6))
def test_bits_end_when_an_exact_fluid_says(coming: list[Step], rate: int, bits: int) -> None:
    exact, found = fluid_ends(0, bits, rate, coming), ends_ns(0, bits, rate, coming)
    if exact is None or found is None:
        assert exact is found
    else:
        assert found == pytest.approx(float(exact), rel=1e-9, abs=2)


@given(STEPS, st.integers(300, 2_400_000), st.sampled_from([0, 24, 542, 60_000]))
def test_a_full_frame_costs_what_the_service_curve_says(
    coming: list[Step], rate: int, overhead: int
) -> None:
    shape = LinkState(rate, QUEUE, overhead_bytes=overhead)
    found = pace_at(shape, 0, FOREVER_NS, lambda: coming)
    exact = fluid_ends(0, 8 * (FRAME_BYTES + overhead), rate, coming)
    wanted = LONGEST_NS if exact is None else min(float(exact), LONGEST_NS)
    held = next((following for at, following in reversed(coming) if at <= 0), rate)
    if wanted < 20_000 or (held and found == pace(held, overhead)):
        return
    # The rate is a whole number of byte/s, and so is what is charged: 0.5 B at the least rate.
    tolerance = max(2 * MS, 0.51e9 / found.rate_bytes)
    assert costs_ns(found) == pytest.approx(wanted, rel=1e-3, abs=tolerance)
    if (
        found.mpu_bytes
    ):  # in an outage that is long against a frame's own time all are charged alike
        assert not held and costs_ns(found, 66) == costs_ns(found)
        return
    assert overhead <= found.overhead_bytes <= 65_535
    assert 1 <= found.burst_ticks <= 0xFFFFFFFF
    small = fluid_ends(0, 8 * (66 + overhead), rate, coming)
    least = LONGEST_NS if small is None else min(float(small), LONGEST_NS)
    share = (66 + overhead) / (FRAME_BYTES + overhead) * wanted
    rounding = 3 * tolerance + wanted / found.rate_bytes
    assert costs_ns(found, 66) <= max(1.05 * least, share) + rounding


def test_small_packets_are_charged_their_own_time() -> None:
    """66 B at 1 kbit/s are 0.53 s; by a full frame's share of the second that is left, 0.04 s."""
    found = pace_at(LinkState(1000, QUEUE), 0, FOREVER_NS, lambda: [(S, 50 * MBIT)])
    assert costs_ns(found) == pytest.approx(1.0002 * S, abs=MS)
    assert costs_ns(found, 66) == pytest.approx(0.528 * S, rel=0.01)


def test_the_plain_setting_where_nothing_changes_soon() -> None:
    shape = LinkState(20_000, QUEUE, overhead_bytes=38)
    plain = pace(20_000, 38)
    assert pace_at(shape, 0, FOREVER_NS, list) == plain
    assert pace_at(shape, 0, FOREVER_NS, lambda: [(S, MBIT)]) == plain
    assert pace_at(shape, 0, FOREVER_NS, lambda: [(MS, 20_000)]) == plain
    assert pace_at(shape, S - MS, FOREVER_NS, lambda: [(S, MBIT)]) != plain


def test_nothing_is_charged_beyond_what_is_known() -> None:
    for last in ([], [(MS, 0)]):
        found = pace_at(LinkState(400, QUEUE), S, 11 * S, lambda last=last: last)
        assert costs_ns(found) == pytest.approx(10 * S, rel=0.01)


def test_low_is_below_five_milliseconds_a_frame() -> None:
    assert is_slow(LinkState(2_400_000, QUEUE))
    assert not is_slow(LinkState(2_500_000, QUEUE))
    assert is_slow(LinkState(2_500_000, QUEUE, overhead_bytes=100))
    assert is_slow(LinkState(0, QUEUE)) and not is_slow(LinkState(0, QUEUE, drop=True))
    assert frame_ns(1000) == 12_112 * MS
    assert charge_for(0, 0).rate_bytes > 10**6


def test_a_debt_counts_from_the_packet_that_made_it() -> None:
    slow = LowRateDebt()
    slow.saw(10 * MS, 5, 3 * S)
    assert not slow.blocked(10 * MS)  # whose debt that is, nobody knows
    slow.saw(15 * MS, 6, 200 * MS)
    assert slow.awake_ns == 210 * MS
    assert slow.blocked(199 * MS)
    assert not slow.blocked(201 * MS)  # the next look may come a little later than 5 ms from now
    slow.saw(212 * MS, 7, 100 * MS)
    assert slow.awake_ns == 310 * MS


@dataclass
class Kernel:
    """The kernel's class with packets always waiting; stands for a shaped end as well."""

    end: LinkDirection = field(default_factory=lambda: LinkDirection("worker-0", "up"))
    where: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(index=0))
    zero: htb.ClassCounters = field(default_factory=lambda: htb.ClassCounters(0, 0, 0, 0, 0, 0))
    pace: LinkPace = field(default_factory=lambda: LinkPace(1, 1))
    tokens_ns: float = 0.0
    charged_ns: float = 0.0
    packets: int = 0
    told: int = 0
    empty: bool = False
    idle: bool = False
    filled_ns: int = 0
    bundle_bytes: int = FRAME_BYTES
    sent: list[float] = field(default_factory=list)

    def class_message(self, pace: LinkPace) -> bytes:
        return repr(tuple(pace)).encode()

    def limit_message(self, _: int) -> bytes:
        return b""

    def send(self, message: bytes) -> None:
        if message:
            self.pace = LinkPace(*eval(message))
            self.told += 1
        else:
            self.empty = False

    def flush(self) -> None:
        self.empty = True

    def read(self) -> htb.ClassCounters:
        return self.zero._replace(packets=self.packets, debt_ns=max(0, -int(self.tokens_ns)))

    def run_until(self, now_ns: int) -> None:
        if self.empty or self.idle:
            self.filled_ns = now_ns
            return
        while (at := max(self.filled_ns, self.charged_ns - min(0.0, self.tokens_ns))) <= now_ns:
            saved = self.tokens_ns + at - self.charged_ns
            saved = min(saved, self.pace.burst_ticks * TICK_NS)
            self.tokens_ns = max(saved - costs_ns(self.pace, self.bundle_bytes), 1 - 60 * S)
            self.charged_ns = at
            self.packets += 1
            self.sent.append(at)


@pytest.mark.parametrize(
    ("before", "after", "halves", "more_ns"),
    [
        (LinkState(100 * MBIT, QUEUE), LinkState(50 * MBIT, QUEUE), 1, 0),
        (LinkState(100 * MBIT, QUEUE), LinkState(200 * MBIT, QUEUE), 1, 0),
        (LinkState(100 * MBIT, QUEUE), LinkState(0, QUEUE), 2, TELLING_NS),
        (LinkState(100 * MBIT, QUEUE), LinkState(0, QUEUE, drop=True), 0, 0),
        (LinkState(100 * MBIT, QUEUE), LinkState(100 * MBIT, 1000), 0, 0),
        (LinkState(0, QUEUE), LinkState(100 * MBIT, QUEUE), 0, 0),
    ],
)
def test_the_kernel_is_told_so_much_ahead(
    before: LinkState, after: LinkState, halves: int, more_ns: int
) -> None:
    """Half a bundle before a rate, a whole one before an outage; never out of order."""
    kernel = Kernel(bundle_bytes=10 * FRAME_BYTES)
    track = LinkPlayer(cast(ShapedQueue, kernel), before, bundle_bytes=10 * FRAME_BYTES)
    early_ns = round(halves * 4e9 * 10 * FRAME_BYTES / (100 * MBIT)) + more_ns
    assert early_ns < EARLIEST_NS
    first = track.due(LinkChange(1.0, kernel.end, after), S)
    assert (first.at_ns, first.due_ns) == (S - early_ns, S)
    assert track.due(LinkChange(1.0, kernel.end, before), S).at_ns >= first.at_ns


def replayed(
    changes: list[tuple[int, LinkState]],
    until_ns: int,
    idle: tuple[int, int] = (-1, -1),
    bundle_bytes: int = FRAME_BYTES,
) -> Kernel:
    """A track is driven as the replay does it: changes on time, held every few milliseconds. ``idle``: nothing waits."""
    kernel, (_, first), *_ = Kernel(bundle_bytes=bundle_bytes), *changes
    kernel.pace = pace(first.rate_bits or CLOSED_RATE_BITS)
    kernel.empty = not first.rate_bits
    track = LinkPlayer(cast(ShapedQueue, kernel), first, bundle_bytes=bundle_bytes)
    dues = [track.due(LinkChange(at / 1e9, kernel.end, s), at) for at, s in changes[1:]]
    track.upcoming = deque(dues)
    if not first.rate_bits:
        track.begin_outage(0, FOREVER_NS)
    hold = 0
    times = sorted({*range(0, until_ns, RENEW_NS), *(due.at_ns for due in dues), *idle} - {-1})
    for now in times:
        kernel.run_until(now)
        if now in idle:
            kernel.idle = now == idle[0]
        track.prepare_outage(now, FOREVER_NS)
        while track.upcoming and track.upcoming[0].at_ns <= now:
            track.apply(track.upcoming.popleft(), now, FOREVER_NS)
            if track.needs_care:
                track.maintain(now, FOREVER_NS)
            kernel.run_until(now)
        if now >= hold and track.needs_care:
            track.maintain(now, FOREVER_NS)
            hold = now + RENEW_NS
    kernel.run_until(until_ns)
    return kernel


def asked_bits(changes: list[tuple[int, LinkState]], until_ns: int) -> float:
    ends = [at for at, _ in changes[1:]] + [until_ns]
    return sum(s.rate_bits * (end - at) / 1e9 for (at, s), end in zip(changes, ends, strict=True))


FAST = LinkState(50 * MBIT, QUEUE)


@pytest.mark.parametrize("low", [1, 100, 1_000, 10_000, 100_000, MBIT, 2 * MBIT])
def test_a_busy_link_is_back_after_a_low_rate(low: int) -> None:
    changes = [(0, FAST), (S, LinkState(low, QUEUE)), (2 * S, FAST)]
    kernel = replayed(changes, 3 * S)
    back = min(at for at in kernel.sent if at >= 2 * S)
    assert back - 2 * S <= 6 * MS
    delivered = 8 * FRAME_BYTES * len(kernel.sent)
    assert delivered == pytest.approx(asked_bits(changes, 3 * S), rel=0.01)


@pytest.mark.parametrize("length", [20 * MS, 300 * MS, 3 * S])
@pytest.mark.parametrize("phase", range(5))
def test_a_link_is_back_when_the_bundle_before_an_outage_has_been_served(
    length: int, phase: int
) -> None:
    begin = S + phase * 47_000  # a frame takes 242 us
    changes = [(0, FAST), (begin, LinkState(0, QUEUE)), (begin + length, FAST)]
    kernel = replayed(changes, 5 * S)
    last = max(at for at in kernel.sent if at < begin)
    back = min(at for at in kernel.sent if at > begin)
    assert not [at for at in kernel.sent if begin + MS <= at < begin + length - TELLING_NS]
    assert back - last == pytest.approx(length + 8e9 * FRAME_BYTES / FAST.rate_bits, abs=20_000)


@pytest.mark.parametrize(
    ("mbit", "frames"),
    [(20, 1), (79, 1), (200, 1), (1000, 1), (100, 2), (400, 5), (1000, 20), (5000, 43)],
)
def test_nothing_leaves_in_an_outage_at_any_rate(mbit: int, frames: int) -> None:
    size = frames * FRAME_BYTES
    fast, begin, length = LinkState(mbit * MBIT, QUEUE), S // 2, 100 * MS
    changes = [(0, fast), (begin, LinkState(0, QUEUE)), (begin + length, fast)]
    until = begin + length + 20 * MS
    kernel = replayed(changes, until, bundle_bytes=size)
    assert not [at for at in kernel.sent if begin <= at < begin + length - TELLING_NS]
    delivered = 8 * size * len(kernel.sent)
    lost_at_most = fast.rate_bits * (EARLIEST_NS + TELLING_NS) / 1e9
    assert -lost_at_most <= delivered - asked_bits(changes, until) <= 2 * 8 * size


@pytest.mark.parametrize("drops_first", [False, True])
def test_the_debt_of_a_packet_that_left_long_ago_counts_no_more(drops_first: bool) -> None:
    """A link that was idle after a low rate has an outage, and then another low rate."""
    slow, begin = LinkState(10_000, QUEUE), 5 * S
    outages = [(begin, LinkState(0, QUEUE))]
    if drops_first:
        outages.insert(0, (begin - S // 2, LinkState(0, QUEUE, drop=True)))
    low = LinkState(100_000, QUEUE)
    back, again = begin + 100 * MS, begin + 1000 * MS
    changes = [(0, FAST), (S, slow), (3 * S, FAST), *outages, (back, low), (again, FAST)]
    kernel = replayed(changes, again + S, idle=(2 * S, back + MS))
    frames = len([at for at in kernel.sent if back <= at < again])
    assert frames == pytest.approx(low.rate_bits * 0.9 / (8 * FRAME_BYTES), abs=3)


ORDINARY = st.sampled_from([FAST, LinkState(20 * MBIT, QUEUE)])
LOW = st.integers(1, 2_400_000).map(lambda rate: LinkState(rate, QUEUE))
OUT = st.sampled_from([LinkState(0, QUEUE), LinkState(0, QUEUE, drop=True)])


@given(st.lists(st.tuples(st.integers(10, 400), ORDINARY | LOW | OUT), min_size=1, max_size=10))
def test_any_history_ends_with_service_on_time(parts: list[tuple[int, LinkState]]) -> None:
    """Whatever came before, ordinary service afterwards is there at once, and the sum is right."""
    changes, at = [(0, FAST)], 500 * MS
    for length_ms, shape in parts:
        changes.append((at, shape))
        at += length_ms * MS
    end = at + S
    changes.append((at, FAST))
    kernel = replayed(changes, end)
    assert min(t for t in kernel.sent if t >= at) - at <= 7 * MS
    after = 8 * FRAME_BYTES * len([t for t in kernel.sent if t >= at])
    assert after == pytest.approx(50 * MBIT, rel=0.01)


@given(st.lists(LOW, min_size=20, max_size=60))
def test_many_low_steps_serve_their_sum(steps: list[LinkState]) -> None:
    begin = 100 * MS
    low = [(begin + n * 20 * MS, shape) for n, shape in enumerate(steps)]
    until = begin + len(steps) * 20 * MS
    kernel = replayed([(0, FAST), *low], until)
    delivered = 8 * FRAME_BYTES * len([at for at in kernel.sent if at >= begin])
    assert delivered == pytest.approx(asked_bits(low, until), rel=0.03, abs=2 * 8 * FRAME_BYTES)


@pytest.mark.parametrize("time_ns", [MS, 17 * MS, 2 * S, LONGEST_NS])
def test_a_charge_lasts_what_is_asked(time_ns: int) -> None:
    found = charge_of(time_ns)
    assert MAX_SEGMENTS * FRAME_BYTES <= found.mpu_bytes <= 65_535
    assert costs_ns(found) == pytest.approx(time_ns, abs=0.5 * MS)
    assert found.burst_ticks * TICK_NS < 1000
    assert charge_of(0) == charge_of(MS // 10)


@pytest.mark.parametrize("fast", [3 * MBIT, 10 * MBIT, 50 * MBIT])
@pytest.mark.parametrize("low", [120_000, MBIT, 2_300_000])
@pytest.mark.parametrize("until_ns", [6 * S, 8 * S])
def test_a_low_rate_holds_on_after_the_last_change(fast: int, low: int, until_ns: int) -> None:
    """The one packet that is on its way at the change is charged for both rates, and none after it."""
    changes = [(0, LinkState(fast, QUEUE)), (S, LinkState(low, QUEUE))]
    sent = [at for at in replayed(changes, until_ns).sent if at > 1_200 * MS]
    assert 8e9 * FRAME_BYTES * len(sent) / (until_ns - 1_200 * MS) == pytest.approx(low, rel=0.02)


@pytest.mark.parametrize("size", [66, 142, 1042, 1514])
@pytest.mark.parametrize("left_ns", [20 * MS, 300 * MS, 3 * S])
@pytest.mark.parametrize("rate", [121_120, MBIT, 20 * MBIT])
def test_what_leaves_in_an_outage_is_not_followed_before_its_end(
    size: int, left_ns: int, rate: int
) -> None:
    found = pace_at(LinkState(0, QUEUE), 0, FOREVER_NS, lambda: [(left_ns, rate)])
    cost_ns = costs_ns(found, size) - found.burst_ticks * TICK_NS
    full_ns = 8e9 * FRAME_BYTES / rate
    assert left_ns - 0.2 * MS <= cost_ns <= left_ns + full_ns + 0.5 * MS


@pytest.mark.parametrize("bundle_bytes", [FRAME_BYTES, 20 * FRAME_BYTES])
@pytest.mark.parametrize("length_ns", [20 * MS, 500 * MS, 2 * S, 49 * S, 130 * S])
def test_a_busy_class_sleeps_through_an_outage_and_wakes_on_time(
    length_ns: int, bundle_bytes: int
) -> None:
    begin, end = 3 * S, 3 * S + length_ns
    changes = [(0, FAST), (begin, LinkState(0, QUEUE)), (end, FAST)]
    kernel = replayed(changes, end + S, bundle_bytes=bundle_bytes)
    inside = [at for at in kernel.sent if begin <= at < end - RENEW_NS]
    assert len(inside) <= 2 + length_ns // LONGEST_NS
    back = min(at for at in kernel.sent if at >= end - RENEW_NS)
    own_ns = 8e9 * (bundle_bytes - FRAME_BYTES) / FAST.rate_bits
    assert abs(back - end) <= 6 * MS + own_ns


@pytest.mark.parametrize("rate", [CLOSED_RATE_BITS, 4 * MBIT])
def test_a_class_wakes_at_its_next_rate_though_nobody_tells_it_then(rate: int) -> None:
    """It is told as soon as it sleeps: whoever should tell it may be late at the end."""
    kernel, following = Kernel(), LinkState(rate, QUEUE)
    kernel.pace = pace(FAST.rate_bits)
    track = LinkPlayer(cast(ShapedQueue, kernel), FAST)
    changes = [(S, LinkState(0, QUEUE)), (2 * S, following)]
    track.upcoming = deque(track.due(LinkChange(at / 1e9, kernel.end, s), at) for at, s in changes)
    kernel.run_until(S - MS)
    for now in (S, S + RENEW_NS, S + 2 * RENEW_NS):
        kernel.run_until(now)
        if now == S:
            track.apply(track.upcoming.popleft(), now, FOREVER_NS)
        track.maintain(now, FOREVER_NS)
    assert kernel.pace == pace(rate)
    track.restore_plain_rate()  # a replay that ends here leaves the link dead
    kernel.run_until(2 * S - RENEW_NS)
    assert not [at for at in kernel.sent if at > S + 2 * RENEW_NS]


def test_what_waits_for_an_outages_end_is_charged_what_is_left_and_its_own_time() -> None:
    slow = LinkState(121_120, QUEUE)  # a packet in 100 ms
    changes = [(0, slow), (S, LinkState(0, QUEUE)), (2 * S, slow)]
    kernel = replayed(changes, 4 * S, idle=(500 * MS, 1_402 * MS))
    leaked, following, *_ = [at for at in kernel.sent if at > 600 * MS]
    assert leaked == 1_402 * MS
    assert following == pytest.approx(2_100 * MS, abs=3 * MS)


@pytest.mark.parametrize("seed", range(3))
def test_packets_leave_when_an_exact_queue_lets_them(seed: int) -> None:
    """Rates of a radio link, with outages: most within some milliseconds, and no error adds up."""
    trace = markov(levels=(0, 0.12, 1, 10, 35), stay=0.7, seconds=30, every_s=0.1, seed=seed)
    at_ns = [round(at * 1e9) for at in trace.times_s]
    rates = list(zip(trace.times_s, trace.rates_bits, strict=True))
    changes = [(at, LinkState(rate, QUEUE)) for at, (_, rate) in zip(at_ns, rates, strict=True)]
    sent = replayed(changes, 30 * S).sent
    bits = 8 * FRAME_BYTES
    late = [at / 1e9 - served_at(rates, 0.0, n * bits) for n, at in enumerate(sent)]
    assert median(map(abs, late)) < 0.02
    assert bits * len(sent) == pytest.approx(asked_bits(changes, 30 * S), rel=0.003)


def test_a_busy_class_is_told_a_few_times_only() -> None:
    changes = [(0, FAST), (S, LinkState(1_000, QUEUE)), (3 * S, FAST)]
    assert replayed(changes, 4 * S).told <= 6
    assert replayed([(0, FAST), (S, LinkState(20 * MBIT, QUEUE))], 2 * S).told == 1
