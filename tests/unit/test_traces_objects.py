"""Traces as objects: written and read back, transformed, summed up."""

from __future__ import annotations

import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.traces.generate import write_csv, write_mahimahi, write_pairs
from testbed.traces.rate_trace import RateTrace, summary
from testbed.traces.readers import parse

lengths = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)
rates = st.lists(st.integers(0, 10**12), min_size=20, max_size=20)


def made_up(steps: list[float], values: list[int]) -> RateTrace:
    times = [0.0]
    for step in steps:
        times.append(times[-1] + step)
    return RateTrace(tuple(times[:-1]), tuple(values[: len(steps)]), times[-1], "made up")


@given(lengths, rates)
def test_what_is_written_is_read_back(steps: list[float], values: list[int]) -> None:
    trace = made_up(steps, values)
    assert parse(write_csv(trace), "made up") == trace


def test_a_trace_is_well_formed_or_refused() -> None:
    for times, values, duration in [
        ((), (), 1.0),
        ((0.0,), (1, 2), 1.0),
        ((0.5,), (1,), 1.0),
        ((0.0, 2.0, 1.0), (1, 2, 3), 4.0),
        ((0.0, 1.0), (1, 2), 1.0),
        ((0.0,), (-1,), 1.0),
        ((0.0,), (1,), float("nan")),
    ]:
        with pytest.raises(ValueError, match="trace"):
            RateTrace(times, values, duration)


TRACE = RateTrace((0.0, 1.0, 1.5), (30, 0, 90), 4.0, "t")


def test_looking_up() -> None:
    assert [TRACE.rate_at(t) for t in (0.0, 0.99, 1.0, 3.9)] == [30, 30, 0, 90]
    assert TRACE.mean_bits() == 63.75
    assert TRACE.lengths_s() == [1.0, 0.5, 2.5]


def test_transformations() -> None:
    slow = TRACE.dilated(10)
    assert (slow.times_s, slow.rates_bits, slow.duration_s) == ((0.0, 10.0, 15.0), (3, 0, 9), 40.0)
    long = TRACE.stretched(2)
    assert (long.times_s, long.rates_bits, long.duration_s) == ((0, 2, 3), (30, 0, 90), 8)
    assert TRACE.scaled(1.5).rates_bits == (45, 0, 135)
    assert TRACE.scaled(0.01).rates_bits == (1, 0, 1)  # slow is not dead
    assert TRACE.scaled(0).rates_bits == (0, 0, 0)
    twice = TRACE.repeated(2)
    assert (twice.times_s, twice.duration_s) == ((0, 1, 1.5, 4, 5, 5.5), 8)
    assert twice.rates_bits == TRACE.rates_bits * 2
    part = TRACE.cut(0.5, 2)
    assert (part.times_s, part.rates_bits, part.duration_s) == ((0, 0.5, 1), (30, 0, 90), 1.5)
    assert TRACE.cut(0, 4) == TRACE
    assert TRACE.cut(1, 1.5) == RateTrace((0.0,), (0,), 0.5, "t")
    late = TRACE.shifted(1.25)
    assert (late.times_s, late.rates_bits, late.duration_s) == (
        (0, 0.25, 2.75, 3.75),
        (0, 90, 30, 0),
        4,
    )
    assert TRACE.shifted(4) == TRACE
    assert RateTrace((0.0, 1.0), (5, 6), 2.0).shifted(1.5).times_s == (0, 0.5, 1.5)
    for wrong in [lambda: TRACE.cut(2, 2), lambda: TRACE.cut(-1, 2), lambda: TRACE.cut(0, 5),
                  lambda: TRACE.repeated(0), lambda: TRACE.repeated(10**6),
                  lambda: TRACE.stretched(0), lambda: TRACE.scaled(-1),
                  lambda: TRACE.stretched(float("inf"))]:  # fmt: skip
        with pytest.raises(ValueError):
            wrong()


@given(lengths, rates, st.floats(0, 100), st.floats(0, 1))
def test_a_shifted_trace_is_the_same_loop(
    steps: list[float], values: list[int], offset: float, share: float
) -> None:
    trace = made_up(steps, values)
    shifted = trace.shifted(offset)
    assert shifted.mean_bits() == pytest.approx(trace.mean_bits(), rel=1e-6)
    at = share * trace.duration_s * 0.999
    near = [trace.rate_at((at + offset + d) % trace.duration_s) for d in (-1e-6, 0, 1e-6)]
    assert shifted.rate_at(at) in near


def test_a_summary_goes_by_time() -> None:
    found = summary(RateTrace((0.0, 1.0, 2.0, 2.5, 10.0), (50, 0, 0, 10, 0), 20.0))
    assert (found.mean_bits, found.min_bits, found.max_bits, found.points) == (6.25, 0, 50, 5)
    assert found.percentiles_bits == {5: 0, 25: 0, 50: 0, 75: 10, 95: 10}
    assert (found.shortest_step_s, found.longest_outage_s) == (0.5, 10.0)
    assert found.outage_share == 11.5 / 20
    assert found.to_json()["percentiles_bits"]["p95"] == 10


def test_mahimahi_and_pairs_are_written() -> None:
    trace = RateTrace((0.0, 0.1, 0.3), (12_000_000, 0, 6_000_000), 0.4)
    stamps = list(map(int, write_mahimahi(trace).split()))
    assert stamps[:100] == list(range(1, 101))
    assert stamps[100:] == list(range(302, 401, 2))
    again = parse(write_mahimahi(trace), "t")
    assert (again.rates_bits, again.duration_s) == ((12_000_000, 0, 0, 6_000_000), 0.4)
    assert write_mahimahi(RateTrace((0.0,), (0,), 2.0)) == "2000\n"
    assert write_pairs(trace) == "0 12\n0.1 0\n0.3 6\n0.35 6\n"
    assert write_pairs(RateTrace((0.0, 5.0), (1, 10**9), 10.0)) == "0 0.000001\n5 1000\n"
    with pytest.raises(ValueError, match="more than a Mahimahi trace can be"):
        write_mahimahi(RateTrace((0.0,), (10**12,), 60.0))


@given(lengths, rates)
@example([1.0, 1.0, 94.0, 1000.0, 1000.0, 1000.0, 1000.0, 0.001653809168821641], [0] * 20)
def test_pairs_are_read_back(steps: list[float], values: list[int]) -> None:
    trace = made_up(steps, values)
    again = parse(write_pairs(trace), "t")
    assert again.duration_s == pytest.approx(trace.duration_s)
    assert again.rates_bits[: len(trace.rates_bits)] == trace.rates_bits
    assert again.mean_bits() == pytest.approx(trace.mean_bits())


@given(lengths, st.lists(st.integers(0, 10**7), min_size=20, max_size=20))
@settings(max_examples=examples(20), deadline=None)
def test_mahimahi_keeps_bits_and_duration(steps: list[float], values: list[int]) -> None:
    trace = made_up([step % 10 + 0.001 for step in steps], values)
    stamps = list(map(int, write_mahimahi(trace).split()))
    assert stamps == sorted(stamps)
    assert stamps[-1] == max(1, round(trace.duration_s * 1e3))
    bits = trace.mean_bits() * trace.duration_s
    assert len(stamps) == max(1, round(bits / 12_000))


@given(lengths, st.lists(st.integers(0, 10**7), min_size=20, max_size=20))
@settings(max_examples=examples(20), deadline=None)
def test_mahimahi_lets_a_packet_leave_in_the_ms_in_which_its_last_bit_is_due(
    steps: list[float], values: list[int]
) -> None:
    trace = made_up([step % 10 + 0.001 for step in steps], values)
    *stamps, _ = map(int, write_mahimahi(trace).split())
    size = trace.mean_bits() * trace.duration_s / (len(stamps) + 1)
    for number, stamp in enumerate(stamps, start=1):
        assert bits_until(trace, stamp / 1e3) >= number * size * (1 - 1e-9)
        assert bits_until(trace, (stamp - 1) / 1e3) <= number * size * (1 + 1e-9)


def bits_until(trace: RateTrace, time_s: float) -> float:
    pieces = zip(trace.times_s, trace.rates_bits, trace.lengths_s(), strict=True)
    return sum(rate * min(max(0.0, time_s - begin), length) for begin, rate, length in pieces)
