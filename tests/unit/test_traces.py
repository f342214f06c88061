"""Traces: every format in its true form, and what is wrong with a file told by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.traces.rate_trace import TraceSource
from testbed.traces.readers import detect, parse, read

SABRE = """[
    {"duration_ms": 725, "bandwidth_kbps": 36014, "latency_ms": 20},
    {"duration_ms": 1000, "bandwidth_kbps": 0, "latency_ms": 20},
    {"duration_ms": 1001, "bandwidth_kbps": 31506.5, "latency_ms": 20}
]
"""
RECORDED = sorted(Path(__file__).parents[3].glob("*/traces/*/*.json"))
"""Recorded traces in a folder beside the repository, if there is one; none are shipped."""

IPERF3 = """{"start": {"version": "iperf 3.12"}, "intervals": [
  {"sum": {"start": 0, "end": 1, "seconds": 1.0, "bytes": 9999, "omitted": true}},
  {"sum": {"start": 0, "end": 1, "seconds": 1.0, "bytes": 250000, "omitted": false}},
  {"sum": {"start": 1, "end": 1.5, "seconds": 0.5, "bytes": 0, "omitted": false}},
  {"sum": {"start": 1.5, "end": 1.501, "seconds": 0.001, "bytes": 500, "omitted": false}}
], "end": {}}
"""
BOTH_WAYS = IPERF3.replace(
    '{"sum": {', '{"sum_bidir_reverse": {"seconds": 2, "bytes": 1000}, "sum": {'
)
IRISH = """\
Timestamp,Longitude,Latitude,NetworkMode,RSRP,DL_bitrate,UL_bitrate,State
2019.11.28_07.27.52,-8.39,51.88,5G,-90,1000,10,D
2019.11.28_07.27.53,-8.39,51.88,5G,-91,3000,12,D
2019.11.28_07.27.53,-8.39,51.88,5G,-91,5000,14,D
2019.11.28_07.27.55,-8.39,51.88,LTE,-,0,20,I
"""
LOGS_3G = """\
1289406399 549893 59.851754 10.781778 248456 1190
1289406400 550893 59.851858 10.781613 0 1000
1289406401 551403 59.851858 10.781613 -0 0
1289406402 552403 -59.852 10.7816 125000 1000
"""

READ = [
    ("csv", "# a comment\ntime_s,rate_mbit_s\n0,1.5\n\n0.5,0\n", (0, 0.5), (1_500_000, 0), 1.0),
    ("csv", "time_ms, rate_bit_s\n100, 7\n600, 8\n", (0, 0.5), (7, 8), 1.0),
    ("csv", "# duration_s: 9\ntime_s,rate_gbit_s\n0,1\n", (0,), (10**9,), 9.0),
    ("csv", "time_s,rate_kbit_s\n5,3\n", (0,), (3000,), 1.0),
    ("csv", "time_s,rate_kbit_s\r\n5,3\r\n7,4\r\n", (0, 2), (3000, 4000), 4.0),
    ("csv", "rate_kbit_s;Time (ms)\n5;10\n6;20\n", (0, 0.01), (5000, 6000), 0.02),
    ("csv", "a\tThroughput (Mbps)\n-\t5\n\t6\n", (0, 1), (5_000_000, 6_000_000), 2.0),
    ("csv", "kbit\n5\n6\n7\n", (0, 1, 2), (5000, 6000, 7000), 3.0),
    ("csv", "0.57,Mbits/sec\n36,Kbits/sec\n1,Mbits/sec\n", (0, 1, 2), (570_000, 36_000, 10**6), 3.0),
    ("csv", "second,bytes\n1,1000\n2,3000\n4,500\n", (0, 1, 3), (8000, 12_000, 2000), 5.0),
    ("csv", "# duration_s: 5\nsecond,bytes\n10,1000\n11,3000\n13,500\n", (0, 1, 3), (8000, 12_000, 2000), 5.0),
    ("csv", "duration_ms,kB\n500,1\n250,2\n", (0, 0.5), (16_000, 64_000), 0.75),
    ("csv", '"time, s","rate_mbit_s",\n"0","1"\n1,2,\n', (0, 1), (10**6, 2 * 10**6), 2.0),
    ("csv", "timestamp,bps\n1453121787687,5\n1453121788687,6\n", (0, 1), (5, 6), 2.0),
    ("csv", "date,MB/s\n2024-05-31T17:59:00Z,1\n2024-05-31 18:59:30+01:00,2\n",
     (0, 30), (8_000_000, 16_000_000), 60.0),
    ("pairs", "0.0 4.5\n1.5\t3\n2.0   0\n", (0, 1.5, 2.0), (4_500_000, 3_000_000, 0), 2.5),
    ("mahimahi", "1\n", (0,), (12_000_000,), 0.001),
    ("mahimahi", "0\n50\n100\n150\n200\n", (0, 0.1), (360_000, 240_000), 0.2),
    ("riiser", LOGS_3G, (0, 1.19, 2.19), (1_670_292, 0, 1_000_000), 3.19),
    ("sabre", SABRE, (0, 0.725, 1.725), (36_014_000, 0, 31_506_500), 2.726),
    ("iperf3", IPERF3, (0, 1), (2_000_000, 7984), 1.501),
]  # fmt: skip


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
    assert detect(text, "t") == form
    assert trace == read(path, format=form)


CHOSEN = [
    (IRISH, "DL_bitrate", (1_000_000, 4_000_000, 0)),
    (IRISH, "ul_bitrate", (10_000, 13_000, 20_000)),
    (IRISH, "UL_bitrate:Mbit/s", (10_000_000, 13_000_000, 20_000_000)),
    (IRISH, "6", (1_000_000, 4_000_000, 0)),
    ("time_s,Throughput\n0,1\n1,2\n", "Throughput: kbit/s", (1000, 2000)),
    ("time_s,a_mbps,b_mbps\n0,1,3\n1,2,4\n", "b_mbps", (3_000_000, 4_000_000)),
    ("1,1516808\n2,3667470\n", "2:bytes", (12_134_464, 29_339_760)),
    ("7,8\n9,10\n", "1:Mbit/s", (7_000_000, 9_000_000)),
    (BOTH_WAYS, "sum", (2_000_000, 7984)),
    (BOTH_WAYS.replace("true", "false"), "sum_bidir_reverse", (4000,) * 4),
]


@pytest.mark.parametrize(("text", "column", "rates"), CHOSEN, ids=range(len(CHOSEN)))
def test_a_column_is_chosen(text: str, column: str, rates: tuple[int, ...]) -> None:
    assert parse(text, "t", column=column).rates_bits == rates


def test_rows_of_the_same_second_are_one() -> None:
    trace = parse(IRISH, "t", column="DL_bitrate")
    assert (trace.times_s, trace.duration_s) == ((0.0, 1.0, 3.0), 5.0)


def test_bytes_of_the_same_second_are_added_up_and_rates_are_averaged() -> None:
    rows = "".join(
        f"2024-05-31T17:59:0{second}Z,{value}\n" for second, value in ((0, 1), (0, 3), (1, 6))
    )
    assert parse(f"date,kB\n{rows}", "t").rates_bits == (32_000, 48_000)
    assert parse(f"date,kB/s\n{rows}", "t").rates_bits == (16_000, 48_000)


def test_a_mahimahi_trace_keeps_every_packet() -> None:
    stamps = [7 * i // 3 for i in range(1, 500)]
    trace = parse("\n".join(map(str, stamps)), "t")
    assert trace.duration_s == stamps[-1] / 1e3
    assert trace.mean_bits() * trace.duration_s == pytest.approx(len(stamps) * 12_000, abs=20)


WRONG = [
    ("", "t: the trace is empty"),
    ("# only a comment\n", "t: the trace is empty"),
    ("time_s,rate_mbit_s\n", "t: the trace has no points"),
    ("time_s,rate_mbit_s\n0,1\n1,1\n2,1\n3,1\n4,1\ngarbage\n", "t:7: 'garbage' has 1, not 2 columns"),
    ("time_s,rate_mbit_s\n0,1\n1,1,1\n", "t:3: '1,1,1' has 3, not 2 columns"),
    ("time_s,rate_mbit_s\n0,1\n1,one\n", "t:3: 'one' is not a number. Here should be a rate"),
    ("time_s,rate_mbit_s\n0,1\n#\n\n1,\n", "t:5: '' is not a number. Here should be a rate"),
    ("rate_mbit_s,time_s\n0,1\n1,x\n?,2\n", "t:3: 'x' is not a number. Here should be a time"),
    ("time_s,rate_mbit_s\n0,1\nx,?\n", "t:3: 'x' is not a number. Here should be a time"),
    ("time_s,rate_mbit_s\n0,1\n1,nan\n", "t:3: 'nan' is not a finite number"),
    ("time_s,rate_mbit_s\n0,1\n1,inf\n", "t:3: 'inf' is not a finite number"),
    ("time_s,rate_mbit_s\n0,-1\n", "t:2: a rate is negative: -1"),
    ("time_s,rate_mbit_s\n0,1e300\n", "t:2: a rate is too large: 1e+300"),
    ("time_s,rate_mbit_s\n0,1e30\n", "t:2: rate 1e+36 bit/s is too large"),
    ("time_s,rate_mbit_s\n0,1\n2,1\n1,1\n", "t:4: time 1 s does not come after 2 s of line 3"),
    ("time_s,rate_mbit_s\n0,1\n0,1\n", "t:3: time 0 s does not come after 0 s of line 2"),
    ("time_s,rate_mbit_s\n0,1\n1e-9,1\n", "t:3: time 1e-09 s comes only 1e-09 s after"),
    ("time_s,rate_mbit_s\n0,1\n2e9,1\n", "t:3: time 2e+09 s is too large"),
    ("# duration_s: 1\ntime_s,rate_mbit_s\n0,1\n2,1\n", "t:4: the trace lasts 1 s but this point"),
    ("# duration_s: x\ntime_s,rate_mbit_s\n0,1\n2,1\n", "t:1: 'x' is not a number"),
    ("time,rate\n0,1\n", "t:1: header 'time,rate' does not state the units of a rate. A rate's column"),
    ("0,1\n1,2\n", "t:1: '0,1' is no header that names columns"),
    (IRISH, "t:1: several columns hold rates: DL_bitrate, UL_bitrate. Choose a column"),
    ("time,kbps\nnoon,1\n", "t:2: 'noon' is not a time. A time is a number, or"),
    ("time,kbps\n0,1\n2024-01-01,1\n", "t:3: '2024-01-01' is not a number. Here should be a time"),
    ("1,Mbits/sec\n2,parsecs\n", "t:2: '2,parsecs' is not a rate and its unit"),
    ("0 1\n1 2 3\n", "t:2: '1 2 3' has 3, not 2 columns"),
    (LOGS_3G.replace("125000 1000", "125000 0"), "t:4: 125000 bytes came in 0 ms"),
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
    ('[{"duration_ms": 1, "bandwidth_kbps": 1} {}]', "t:1: not JSON: Expecting ',' delimiter"),
    ('[{"duration_ms": 1, "bandwidth_kbps": 1}]\n x', "t:2: not JSON: Extra data"),
    ("[" * 100_000, "t: nested too deeply"),
    ('{"a": 1}', "t: this JSON is no report of iperf3"),
    ('{"intervals": [], "error": "unable to connect"}', "t: iperf3 failed: unable to connect"),
    ('{"intervals": []}', "t: the trace has no points"),
    ('{"intervals": [{"sum": 3}]}', "t: intervals[0] has no 'sum': {'sum': 3}"),
    ('{"intervals": [{"sum": {"seconds": 1}}]}', "t: None is not a number. Here should be intervals[0].sum.bytes"),
    ('{"intervals": [{"sum": {"seconds": 0, "bytes": 1}}]}', "t: interval 0 lasts 0 s"),
    (IPERF3.replace('"start": 1,', '"start": 3,'), "t: intervals[2].sum begins at 3 s, and the one before it ended at 1 s. No int"),
    (IPERF3.replace('"start": 1,', '"start": 0,'), "t: intervals[2].sum begins at 0 s, and the one before"),
    ("time_s,rate_mbit_s\n-1,5\n", "t:2: a time is negative: -1. Zero is the least$"),
    ("time_s,rate_mbit_s\n1,-5\n", "t:2: a rate is negative: -5. Zero is the least (an outage)$"),
    ("time_s,rate_mbit_s\n1e200,5\n", "t:2: a time is too large: 1e+200. 1e+100 is the most$"),
    (BOTH_WAYS, "t: traffic went both ways: sum, sum_bidir_reverse. Choose a column"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_with_a_trace_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "t")
    assert f"{caught.value}$".startswith(said)


NO_COLUMN = [
    (IRISH, "Speed", "t:1: there is no column 'Speed'. There are Timestamp, Longitude"),
    (IRISH, "RSRP", "t:1: column 'RSRP' does not state the unit of a rate"),
    (IRISH, "9", "t:1: there is no column '9'"),
    ("1,2\n2,3\n", "3:bytes", "t:1: there is no column '3:bytes'. There are 1 to 2"),
    ("1,2\n2,3\n", "2", "t:1: column '2' does not state the unit"),
    (IPERF3, "sum_bidir_reverse", "t: there is no column 'sum_bidir_reverse'. There are sum"),
    ("1 2\n", "2", "t: a pairs trace has no columns to choose from: '2'"),
]


@pytest.mark.parametrize(("text", "column", "said"), NO_COLUMN, ids=range(len(NO_COLUMN)))
def test_a_column_that_cannot_be_chosen(text: str, column: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "t", column=column)
    assert str(caught.value).startswith(said)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"0 1\0\n")
    with pytest.raises(InputError, match=r"t:1: this is a binary file"):
        read(tmp_path / "t")
    (tmp_path / "t").write_bytes(b"0 1\n1 \xb5\n")
    with pytest.raises(InputError, match=r"t:2: this is not UTF-8 text: byte 0xb5"):
        read(tmp_path / "t")
    with pytest.raises(InputError, match="this is no name of a file"):
        read(tmp_path / "t\0")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="this is a directory"):
        read(tmp_path)
    (tmp_path / "t").write_text("0 1")
    with pytest.raises(InputError, match="unknown trace format 'x'"):
        read(tmp_path / "t", format="x")


def test_large_files_are_read_in_blocks_with_the_right_lines() -> None:
    rows = [f"{i},{i % 97}" for i in range(300_000)]
    text = "# a comment\ntime_s,rate_mbit_s\n\n" + "\n".join(rows)
    assert len(list(TraceSource("t", text).blocks())) > 2
    trace = parse(text, "t")
    assert len(trace.times_s) == 300_000
    assert trace.rates_bits[250_000] == 250_000 % 97 * 10**6
    for i, wrong, said in [
        (250_000, "x,1", "'x' is not"),
        (299_999, "5", "'5' has 1"),
        (3, "2,1", "time 2 s"),
    ]:
        changed = [*rows[:i], wrong, *rows[i + 1 :]]
        with pytest.raises(InputError, match=f"^t:{i + 4}: {said}"):
            parse("# a comment\ntime_s,rate_mbit_s\n\n" + "\n".join(changed), "t")


@pytest.mark.parametrize("row", ["{i} 1", "{i},1", "[1"])
def test_more_points_than_can_be_used_are_refused(row: str) -> None:
    head = "time_s,rate_mbit_s\n" if "," in row else ""
    text = head + "\n".join(row.format(i=i) for i in range(1_000_002))
    if row == "[1":
        entry = '{"duration_ms": 1, "bandwidth_kbps": 1}'
        text = "[" + ",\n".join([entry] * 1_000_001) + "]"
    with pytest.raises(InputError, match=r"^t:100000[12]: more than 1000000 points"):
        parse(text, "t")


@pytest.mark.optional
@pytest.mark.skipif(not RECORDED, reason="no recorded traces in a folder beside the repository")
def test_recorded_traces_are_read() -> None:
    for file in RECORDED:
        trace = read(file)
        assert trace.duration_s > 100
        assert 1e6 < trace.mean_bits() < 1e8
