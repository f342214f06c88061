"""Traces: every format in its true form, and what is wrong with a file told by its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.traces import RateTrace, read, write_csv
from testbed.traces.read import parse

SABRE = """[
    {"duration_ms": 725, "bandwidth_kbps": 36014, "latency_ms": 20},
    {"duration_ms": 1000, "bandwidth_kbps": 0, "latency_ms": 20},
    {"duration_ms": 1001, "bandwidth_kbps": 31506.5, "latency_ms": 20}
]
"""
RECORDED = sorted(Path(__file__).parents[3].glob("*/traces/*/*.json"))
"""Recorded traces in a folder beside the repository, if there is one; none are shipped."""

READ = [
    ("csv", "# a comment\ntime_s,rate_mbit_s\n0,1.5\n\n0.5,0\n", (0, 0.5), (1_500_000, 0), 1.0),
    ("csv", "time_ms, rate_bit_s\n100, 7\n600, 8\n", (0, 0.5), (7, 8), 1.0),
    ("csv", "# duration_s: 9\ntime_s,rate_gbit_s\n0,1\n", (0,), (10**9,), 9.0),
    ("csv", "time_s,rate_kbit_s\n5,3\n", (0,), (3000,), 1.0),
    ("pairs", "0.0 4.5\n1.5\t3\n2.0   0\n", (0, 1.5, 2.0), (4_500_000, 3_000_000, 0), 2.5),
    ("mahimahi", "1\n", (0,), (12_000_000,), 0.001),
    ("mahimahi", "0\n50\n100\n150\n200\n", (0, 0.1), (360_000, 240_000), 0.2),
    ("sabre", SABRE, (0, 0.725, 1.725), (36_014_000, 0, 31_506_500), 2.726),
]


@pytest.mark.parametrize(("form", "text", "times", "rates", "duration"), READ)
def test_formats_are_told_apart_and_read(
    tmp_path: Path,
    form: str,
    text: str,
    times: tuple[float, ...],
    rates: tuple[int, ...],
    duration: float,
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    trace = read(path)
    assert trace.times_s == pytest.approx(times)
    assert (trace.rates_bits, trace.duration_s) == (rates, pytest.approx(duration))
    assert trace == read(path, format=form)


def test_a_mahimahi_trace_keeps_every_packet() -> None:
    stamps = [7 * i // 3 for i in range(1, 500)]
    trace = parse("\n".join(map(str, stamps)), "t")
    assert trace.duration_s == stamps[-1] / 1e3
    assert trace.mean_bits() * trace.duration_s == pytest.approx(len(stamps) * 12_000, abs=20)


WRONG = [
    ("", "t: the trace is empty"),
    ("# only a comment\n", "t: the trace is empty"),
    ("time_s,rate_mbit_s\n", "t: the trace has no points"),
    ("time_s,rate_mbit_s\n0,1\n1,1\n2,1\n3,1\n4,1\ngarbage\n", "t:7: 'garbage' is not a time and a"),
    ("time_s,rate_mbit_s\n0,1\n1,one\n", "t:3: 'one' is not a number. Here should be a rate"),
    ("time_s,rate_mbit_s\n0,1\n1,nan\n", "t:3: 'nan' is not a finite number"),
    ("time_s,rate_mbit_s\n0,1\n1,inf\n", "t:3: 'inf' is not a finite number"),
    ("time_s,rate_mbit_s\n0,-1\n", "t:2: a rate is negative: -1"),
    ("time_s,rate_mbit_s\n0,1e300\n", "t:2: rate 1e+306 bit/s is too large"),
    ("time_s,rate_mbit_s\n0,1\n2,1\n1,1\n", "t:4: time 1 s does not come after 2 s of line 3"),
    ("time_s,rate_mbit_s\n0,1\n0,1\n", "t:3: time 0 s does not come after 0 s of line 2"),
    ("# duration_s: 1\ntime_s,rate_mbit_s\n0,1\n2,1\n", "t:4: the trace lasts 1 s but this point"),
    ("# duration_s: x\ntime_s,rate_mbit_s\n0,1\n2,1\n", "t:1: 'x' is not a number"),
    ("time,rate\n0,1\n", "t:1: header 'time,rate' does not state the units. Columns: time_s or time_ms"),
    ("0,1\n1,2\n", "t:1: header '0,1' does not state the units"),
    ("0 1\n1 2 3\n", "t:2: '1 2 3' is not a time and a rate"),
    ("5\n4\n", "t:2: time goes backwards: 4 ms after 5 ms"),
    ("5\n\nx\n", "t:3: 'x' is not a time in ms"),
    ("0\n0\n", "t:2: the last line is the period: 0 ms cannot be one"),
    ("9999999999999\n", "t:1: the last line is the period"),
    ("one two three\n", "t:1: 'one two three' begins no known trace format. Known: CSV"),
    ("[", "t:1: not JSON"),
    ("[]", "t: the trace has no points"),
    ("[3]", "t:1: 3 is not an entry of a trace"),
    ('[\n{"duration_ms": 1}\n]', "t:2: "),
    ('[\n{"duration_ms": 1, "bandwidth_kbps": 1},\n{"duration_ms": 0, "bandwidth_kbps": 1}]', "t:3: dur"),
    ('[\n{"duration_ms": 1, "bandwidth_kbps": NaN}]', "t:2: nan is not a finite number"),
    ('[\n{"duration_ms": 1, "bandwidth_kbps": -1}]', "t:2: a bandwidth in kbit/s is negative"),
    ('[\n{"duration_ms": 1, "bandwidth_kbps": true}]', "t:2: True is not a finite number"),
    ('[\n{"duration_ms": 1,\n "bandwidth_kbps" 1}]', "t:3: not JSON"),
    ('[{"duration_ms": 1, "bandwidth_kbps": 1} {}]', "t:1: not JSON: the list does not go on"),
    ('[{"duration_ms": 1, "bandwidth_kbps": 1}]\n x', "t:2: something follows the list"),
    ("[" * 100_000, "t:1: nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_with_a_trace_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "t")
    assert str(caught.value).startswith(said)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    for content in (b"\x89PNG\r\n\xff", b"0 1\0\n"):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(InputError, match="this is a binary file, not a trace"):
            read(tmp_path / "t")
    with pytest.raises(InputError, match="cannot read the trace: No such file"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="cannot read the trace: Is a directory"):
        read(tmp_path)
    with pytest.raises(InputError, match="unknown trace format 'x'"):
        read(tmp_path / "t", format="x")


@given(st.text(st.sampled_from('0123456789.,-eE[]{}": \n\tx#_'), max_size=60))
def test_no_text_leads_to_anything_but_a_sentence(text: str) -> None:
    try:
        assert parse(text, "t").duration_s > 0
    except InputError as error:
        assert str(error)


lengths = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)
rates = st.lists(st.integers(0, 10**12), min_size=20, max_size=20)


@given(lengths, rates)
def test_what_is_written_is_read_back(steps: list[float], values: list[int]) -> None:
    times = [0.0]
    for step in steps:
        times.append(times[-1] + step)
    trace = RateTrace(tuple(times[:-1]), tuple(values[: len(steps)]), times[-1], "made up")
    again = parse(write_csv(trace), "made up")
    assert again == trace


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


def test_looking_up_and_dilating() -> None:
    trace = RateTrace((0.0, 1.0), (30, 90), 4.0)
    assert [trace.rate_at(t) for t in (0.0, 0.99, 1.0, 3.9)] == [30, 30, 90, 90]
    assert trace.mean_bits() == 75
    slow = trace.dilated(10)
    assert (slow.times_s, slow.rates_bits, slow.duration_s) == ((0.0, 10.0), (3, 9), 40.0)


@pytest.mark.optional
@pytest.mark.skipif(not RECORDED, reason="no recorded traces in a folder beside the repository")
def test_recorded_traces_are_read() -> None:
    for file in RECORDED:
        trace = read(file)
        assert trace.duration_s > 100
        assert 1e6 < trace.mean_bits() < 1e8
