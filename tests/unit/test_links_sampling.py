"""Looking at a link direction: what the kernel holds, what it carried, and what left in outages."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.links.replay.delivery_report import measures
from testbed.links.replay.interval_errors import Mismatch, ReadBack
from testbed.links.replay.link_player import LinkPlayer, PreparedChange
from testbed.links.replay.replay import Replay
from testbed.links.replay.sampler import LIMIT_LOOKS, LinkSampler
from testbed.links.shaper import ShapedQueue
from testbed.links.tc.htb import ClassCounters
from testbed.links.tc.parameters import LinkPace, pace
from testbed.records.events import LinkChanged, LinkMismatch, LinkSample
from testbed.scenario.link_state import LinkDirection, LinkState

MBIT = 1_000_000
LOOK_S = 0.02


@dataclass
class Kernel:
    """Stands for a shaped end: a test sets what the kernel would answer."""

    end: LinkDirection = field(default_factory=lambda: LinkDirection("worker-0", "up"))
    zero: ClassCounters = field(default_factory=lambda: ClassCounters(0, 0, 0, 0, 0, 0))
    now: ClassCounters = field(default_factory=lambda: ClassCounters(0, 0, 0, 0, 0, 0))
    limit: int = 50_000
    limits_read: int = 0

    def read(self) -> ClassCounters:
        return self.now

    def held_limit(self) -> int:
        self.limits_read += 1
        return self.limit

    def drops(self, counters: ClassCounters) -> int:
        return counters.drops

    def carry(self, size: int, packets: int = 1, **changed: Any) -> None:
        self.now = self.now._replace(
            bytes=self.now.bytes + size, packets=self.now.packets + packets, **changed
        )


SHAPE = LinkState(20 * MBIT, 50_000)
NONE = LinkState(0, 50_000)


def begun(shape: LinkState = SHAPE, rate_bits: int = 20 * MBIT) -> tuple[Kernel, LinkSampler]:
    kernel = Kernel()
    kernel.now = kernel.now._replace(rate_bytes=rate_bits // 8, backlog_bytes=1)
    sampler = LinkSampler(cast(ShapedQueue, kernel), shape)
    sampler.begin(0.0)
    return kernel, sampler


def test_a_value_is_wrong_from_the_last_look_at_which_it_was_right() -> None:
    held = ReadBack("rate")
    looks = [(0.0, 5, 5), (0.1, 5, 5), (0.2, 5, 6), (0.3, 5, 6), (0.4, 5, 5)]
    assert [held.compare(*look) for look in looks] == [None] * 4 + [
        Mismatch(0.1, 0.4, "rate", 5, 6)
    ]
    assert held.end(0.5) is None
    assert held.compare(0.6, 7, 6) is None
    assert held.compare(0.7, 8, 6) == Mismatch(0.4, 0.7, "rate", 7, 6)
    assert held.end(0.9) == Mismatch(0.7, 0.9, "rate", 8, 6)


def test_a_rate_that_somebody_changes_is_noticed_at_the_next_look() -> None:
    kernel, sampler = begun()
    sampler.look(LOOK_S, SHAPE)
    kernel.now = kernel.now._replace(rate_bytes=round(20 * MBIT * 1.03) // 8)
    sampler.look(2 * LOOK_S, SHAPE)
    (sample,) = sampler.close()
    assert isinstance(sample, LinkSample)
    told, _ = [*sampler.end(), None]
    assert isinstance(told, LinkMismatch)
    assert (told.from_s, told.to_s, told.what) == (LOOK_S, 2 * LOOK_S, "rate")
    assert (told.asked, told.held) == (20 * MBIT, round(20 * MBIT * 1.03))
    assert measures(sampler.record)["mismatches"][0]["held"] == told.held


def test_a_rate_is_held_in_whole_bytes() -> None:
    odd = LinkState(20 * MBIT + 1, 50_000)
    kernel, sampler = begun(odd)
    kernel.now = kernel.now._replace(rate_bytes=pace(odd.rate_bits).rate_bytes)
    sampler.look(LOOK_S, odd)
    sampler.end()
    assert [wrong.to_s for wrong in sampler.record.mismatches] == [LOOK_S]  # that of ``begun``


def test_a_change_that_was_made_but_not_yet_recorded_is_right() -> None:
    """Several are due at once: the kernel has the last of them when the first is looked at."""
    kernel, sampler = begun()
    last = LinkState(10 * MBIT, 50_000)
    kernel.now = kernel.now._replace(rate_bytes=10 * MBIT // 8)
    for due_s, shape in ((0.1, LinkState(30 * MBIT, 50_000)), (0.1001, last)):
        sampler.look(0.101, last)
        sampler.ask(due_s, shape)
    sampler.end()
    assert sampler.record.mismatches == []


def test_the_queue_is_read_back_about_once_a_second() -> None:
    kernel, sampler = begun()
    for look in range(1, 3 * LIMIT_LOOKS):
        if look == LIMIT_LOOKS:
            kernel.limit = 25_000
        sampler.look(look * LOOK_S, SHAPE)
    sampler.end()
    assert kernel.limits_read == 3
    (wrong,) = sampler.record.mismatches
    assert (wrong.what, wrong.asked, wrong.held) == ("queue", 50_000, 25_000)


def test_in_an_outage_the_rate_means_nothing_and_a_dropping_queue_takes_nothing() -> None:
    kernel, sampler = begun()
    dropping = LinkState(0, 50_000, drop=True)
    kernel.now, kernel.limit = kernel.now._replace(rate_bytes=77), 0
    sampler.look(0.1, dropping)
    sampler.ask(0.1, dropping)
    for look in range(2 * LIMIT_LOOKS):
        sampler.look(0.1 + look * LOOK_S, dropping)
    sampler.end()
    assert sampler.record.mismatches == []
    assert kernel.limits_read == 2


def test_an_eased_class_is_held_against_what_it_was_eased_to() -> None:
    kernel, sampler = begun()
    adjusted = LinkPace(12_345, 1, overhead_bytes=700)
    for look, held in enumerate((12_345, 12_346, 12_345), start=1):
        kernel.now = kernel.now._replace(rate_bytes=held)
        sampler.look(look * LOOK_S, SHAPE, adjusted)
    sampler.end()
    (wrong,) = sampler.record.mismatches
    assert (wrong.asked, wrong.held) == (8 * 12_345, 8 * 12_346)


def test_what_is_charged_for_every_packet_is_delivered_too() -> None:
    heavy = LinkState(20 * MBIT, 50_000, overhead_bytes=24)
    kernel, sampler = begun(heavy)
    kernel.carry(15_140, packets=10)
    sampler.look(0.1, heavy)
    (sample,) = sampler.close()
    assert isinstance(sample, LinkSample)
    assert sample.delivered_bits == 8 * (15_140 + 240)
    kernel.carry(15_140, packets=10)
    sampler.look(0.2, SHAPE)
    sampler.ask(0.2, SHAPE)
    kernel.carry(1514)
    sampler.look(0.3, SHAPE)
    (sample,) = sampler.close()
    assert isinstance(sample, LinkSample)
    assert sample.delivered_bits == 8 * (15_140 + 240 + 1514)
    assert measures(sampler.record)["delivered_bits"] == 8 * (2 * 15_380 + 1514)


def test_a_sample_is_of_its_own_time_alone() -> None:
    """Packets, bits, drops, the largest queue and the longest gap since the sample before."""
    kernel, sampler = begun()
    kernel.now = kernel.now._replace(drops=5)
    sampler.look(LOOK_S, SHAPE)
    sampler.close()
    samples = []
    for number, (drops, backlog) in enumerate([(7, 30_000), (7, 1000), (10, 2000)]):
        at_s = (number + 1) * 0.1
        kernel.carry(1000 * (number + 1), number + 1, drops=drops, backlog_bytes=backlog)
        sampler.look(at_s + LOOK_S / 2, SHAPE)
        kernel.now = kernel.now._replace(backlog_bytes=1)
        sampler.look(at_s + LOOK_S, SHAPE)
        samples += [each for each in sampler.close() if isinstance(each, LinkSample)]
    assert [each.drops for each in samples] == [2, 0, 3]
    assert [each.backlog_bytes for each in samples] == [30_000, 1000, 2000]
    assert [each.packets for each in samples] == [1, 2, 3]
    assert [each.delivered_bits for each in samples] == [8000, 16_000, 24_000]
    assert [each.asked_bits for each in samples] == pytest.approx([0.1 * 20 * MBIT] * 3)
    assert sampler.record.largest_backlog_bytes == 30_000


def test_what_was_asked_before_the_first_look_does_not_count() -> None:
    """Where that look is late, a change may have been due before it."""
    kernel = Kernel()
    sampler = LinkSampler(cast(ShapedQueue, kernel), SHAPE)
    sampler.begin(0.03)
    fast = LinkState(50 * MBIT, 50_000)
    sampler.look(0.04, fast)
    sampler.ask(0.01, fast)
    sampler.look(0.1, fast)
    (sample,) = (event for event in sampler.close() if isinstance(event, LinkSample))
    assert (sample.from_s, sample.to_s) == (0.03, 0.1)
    assert sample.asked_bits == pytest.approx(0.07 * 50 * MBIT)


def test_a_gap_between_looks_is_counted() -> None:
    _, sampler = begun()
    for at in (0.02, 0.04, 0.54, 0.56):
        sampler.look(at, SHAPE)
    (sample,) = sampler.close()
    assert isinstance(sample, LinkSample)
    assert sample.longest_gap_s == pytest.approx(0.5)
    assert measures(sampler.record)["unwatched_s"] == pytest.approx(0.45)
    sampler.look(0.58, SHAPE)
    (sample,) = sampler.close()
    assert isinstance(sample, LinkSample)
    assert sample.longest_gap_s == pytest.approx(0.02)


def outage(
    leaks: int, back_s: float, waiting: int = 80_000, gap_s: float = LOOK_S
) -> dict[str, Any]:
    """From 1 to 2 s; ``leaks`` bytes leave in it, and service is back ``back_s`` after it."""
    kernel, sampler = begun()
    sampler.look(0.98, SHAPE)
    kernel.carry(10_000, backlog_bytes=waiting)
    sampler.look(1.0, NONE)
    sampler.ask(1.0, NONE)
    kernel.carry(leaks)
    for look in range(1, 50):
        sampler.look(1.0 + look * LOOK_S, NONE)
    for look in range(50):
        now_s = 2.0001 + look * gap_s
        since = max(0.0, now_s - 2.0 - back_s)
        target = 10_000 + leaks + round(since * 20 * MBIT / 8)
        kernel.carry(target - kernel.now.bytes)
        sampler.look(now_s, SHAPE)
        if not look:
            sampler.ask(2.0, SHAPE)
        assert sampler.resuming(now_s) == (not target > 10_000 + leaks and waiting > 0)
    sampler.close()
    return measures(sampler.record)


def test_what_leaves_in_an_outage_is_counted() -> None:
    found = outage(10_000, 0.0)
    # A millisecond at 20 Mbit/s was on its way when it began, and a burst may have left at its end.
    assert found["outages"] == 1
    assert found["outage_bytes"] == pytest.approx(10_000 - 2500, abs=1600)
    assert (found["outage_worst_bytes"], found["outage_worst_s"]) == (found["outage_bytes"], 1.0)
    assert outage(1514, 0.0)["outage_bytes"] == 0


@pytest.mark.parametrize("back_s", [0.0, 0.004, 0.03])
def test_how_soon_service_is_back_after_an_outage(back_s: float) -> None:
    assert outage(1514, back_s)["resume_ms"] == pytest.approx(back_s * 1e3, abs=0.1)


@pytest.mark.parametrize("leaks", [0, 1514])
def test_one_packet_of_a_low_rate_may_take_its_time_first(leaks: int) -> None:
    """At 121 kbit/s it takes 100 ms; what is dead for another 100 ms is late by that."""
    low = LinkState(121_120, 50_000)
    kernel, sampler = begun(low)
    sampler.look(1.0, NONE)
    kernel.carry(0, backlog_bytes=9000)
    sampler.look(1.01, NONE)
    sampler.ask(1.0, NONE)
    kernel.carry(leaks)
    sampler.look(1.99, NONE)
    sampler.look(2.0001, low)
    sampler.ask(2.0, low)
    for look in range(1, 101):
        kernel.carry(1514 if look == 100 else 0)
        sampler.look(2.0 + 0.002 * look, low)
    assert sampler.record.outages[-1].resume_s == pytest.approx(0.1, abs=0.003)


def test_how_soon_is_not_said_where_the_link_may_have_been_idle() -> None:
    """One packet waited and left: after 20 ms nobody knows when; looks that follow closely do."""
    assert outage(0, 0.012, waiting=1514)["resume_ms"] is None
    close = outage(0, 0.012, waiting=1514, gap_s=0.002)["resume_ms"]
    assert close == pytest.approx(12.1 - 8 * 1514 / 20e3, abs=0.1)


def test_service_that_nothing_waits_for_is_not_timed() -> None:
    assert outage(0, 0.004, waiting=0)["resume_ms"] is None


def test_an_outage_from_the_start() -> None:
    kernel, sampler = begun(NONE)
    for look in range(1, 10):
        sampler.look(look * LOOK_S, NONE)
    kernel.carry(5000)
    sampler.look(0.2001, SHAPE)
    sampler.ask(0.2, SHAPE)
    sampler.close()
    assert measures(sampler.record)["outage_bytes"] == 5000 - 250 - 1514  # and a frame at once


@pytest.mark.parametrize(("begins_s", "on_its_way"), [(0.0, 0), (0.2, 2500)])
def test_an_outage_that_is_not_over_at_the_end_counts(begins_s: float, on_its_way: int) -> None:
    """A millisecond at the rate before may still leave; where none was before, nothing may."""
    kernel, sampler = begun(SHAPE if begins_s else NONE)
    if begins_s:
        sampler.look(begins_s, NONE)
        sampler.ask(begins_s, NONE)
    kernel.carry(20_000)
    sampler.look(0.9, NONE)
    sampler.end()
    found = measures(sampler.record)
    assert found["outages"] == 1 and found["resume_ms"] is None
    assert found["outage_bytes"] == pytest.approx(20_000 - on_its_way, abs=300)
    assert found["outage_worst_s"] == pytest.approx(0.9 - begins_s, abs=1e-6)


def test_a_link_without_an_outage_has_none_at_the_end() -> None:
    kernel, sampler = begun()
    kernel.carry(20_000)
    sampler.look(0.9, SHAPE)
    sampler.end()
    found = measures(sampler.record)
    assert (found["outages"], found["outage_bytes"]) == (0, 0)


@pytest.mark.parametrize(("stood_bytes", "busy"), [(50_000, True), (49_999, False)])
def test_traffic_with_gaps_was_waited_for_only_where_no_queue_ran_dry(
    stood_bytes: int, busy: bool
) -> None:
    """At 20 Mbit/s the 50,000 B that stand at one look last until the next, 20 ms later."""
    kernel = Kernel()
    kernel.now = kernel.now._replace(rate_bytes=20 * MBIT // 8, backlog_bytes=50_000)
    samplers = [
        LinkSampler(cast(ShapedQueue, kernel), SHAPE, gapped=gapped) for gapped in (False, True)
    ]
    for sampler in samplers:
        sampler.begin(0.0)
        sampler.look(LOOK_S, SHAPE)
    kernel.now = kernel.now._replace(backlog_bytes=stood_bytes)
    for sampler in samplers:
        sampler.look(2 * LOOK_S, SHAPE)
        sampler.look(3 * LOOK_S, SHAPE)
    plain, gapped = (sampler.close()[-1] for sampler in samplers)
    assert isinstance(plain, LinkSample) and isinstance(gapped, LinkSample)
    assert (plain.busy, gapped.busy) == (True, busy)


@pytest.mark.parametrize("phase", range(LIMIT_LOOKS))
def test_a_link_that_begins_dead_has_its_queue_at_the_first_look(phase: int) -> None:
    """Whenever the queue is read back first: before t0 it takes nothing."""
    kernel, none = Kernel(), NONE
    kernel.limit = 0

    def begin_outage(*_: int) -> None:
        kernel.limit = none.queue_bytes

    sampler = LinkSampler(cast(ShapedQueue, kernel), none, phase)
    track = SimpleNamespace(shape=none, sampler=sampler, failure=None, begin_outage=begin_outage)
    replay = Replay({kernel.end: cast(LinkPlayer, track)}, time.monotonic_ns(), lambda _: None)
    replay._begin()
    sampler.look(0.02, none)
    sampler.end()
    assert sampler.record.mismatches == []


def test_a_change_is_as_late_as_the_kernel_has_it() -> None:
    """However long it takes over one, the next are later by that; one that it refuses is none."""
    kernel, sampler = begun()
    taken_ns, emitted = list[int](), list[Any]()
    slow, fast = LinkState(10 * MBIT, 50_000), LinkState(30 * MBIT, 50_000)

    def apply(due: PreparedChange, *_: int) -> None:
        if due.shape == fast:
            raise OSError(5, "refused")
        time.sleep(0.02)
        track.shape = due.shape
        taken_ns.append(time.monotonic_ns())

    track = SimpleNamespace(shape=SHAPE, sampler=sampler, failure=None, apply=apply, line=None,
                            upcoming=deque(), needs_care=False, adjusted=None)  # fmt: skip
    t0_ns = time.monotonic_ns()
    replay = Replay({kernel.end: cast(LinkPlayer, track)}, t0_ns, emitted.extend)
    for number, shape in enumerate((slow, SHAPE, fast)):
        due = PreparedChange(t0_ns + number, t0_ns + number * 10**7, kernel.end, shape, None, None)
        replay._pending.append(due)
        track.upcoming.append(due)
    replay._change_all()
    made = [event for event in emitted if isinstance(event, LinkChanged)]
    assert [change.rate_bits for change in made] == [10 * MBIT, 20 * MBIT]
    assert all(
        round(1e9 * change.applied_s) + 1 >= taken - t0_ns
        for change, taken in zip(made, taken_ns, strict=True)
    )
    late_s = [change.applied_s - number / 1e9 for number, change in enumerate(made)]
    assert list(sampler.record.lateness_s) == pytest.approx(late_s), "of when the kernel was told"
    assert track.failure is not None and not track.upcoming
