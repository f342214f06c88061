"""Hostile trace files: a trace that can be used, or a sentence that names the place; nothing else, ever.

``NARROWS_FUZZ=10000`` asks for so many examples of each kind.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.traces.generate import write_csv
from testbed.traces.rate_trace import RateTrace, summary
from testbed.traces.readers import READERS, parse, read
from testbed.units import LARGEST

EXAMPLES = int(os.environ.get("NARROWS_FUZZ", "200"))
pytestmark = pytest.mark.timeout(max(300, EXAMPLES))
fuzzed: Callable[[Any], Any] = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
)

VALID = [
    "# made up\n# duration_s: 9\ntime_s,rate_mbit_s\n0,1.5\n2.5,0\n7,100\n",
    "Timestamp,Latitude,RSRP,DL_bitrate,UL_bitrate,State\n"
    "2019.11.28_07.27.52,51.88,-90,1000,10,D\n2019.11.28_07.27.53,51.88,-,3000,12,I\n",
    "date;kB/s\n2024-05-31T17:59:00Z;1\n2024-05-31T17:59:30+01:00;2\n",
    "second\tbytes\n1\t1000\n2\t3000\n4\t500\n",
    'duration_ms,"DL, Mbps"\n500,1\n250,"2"\n',
    "0.57,Mbits/sec\n36,Kbits/sec\n1,Mbits/sec\n",
    "1,1516808\n2,3667470\n",
    "0.0 4.5\n1.5\t3\n2.0   0\n",
    "1\n1\n40\n41\n250\n",
    "1289406399 549893 59.85 10.78 248456 1190\n1289406400 550893 59.85 10.78 0 1000\n",
    '[\n {"duration_ms": 725, "bandwidth_kbps": 36014, "latency_ms": 20},\n'
    ' {"duration_ms": 1000, "bandwidth_kbps": 0.5, "latency_ms": 20}\n]\n',
    '{"start": {"version": "iperf 3.12"}, "intervals": [\n'
    '{"sum": {"start": 0, "seconds": 1.0, "bytes": 9999, "omitted": true}},\n'
    '{"sum": {"start": 0, "seconds": 1.0, "bytes": 250000, "omitted": false}},\n'
    '{"sum": {"start": 1, "seconds": 0.001, "bytes": 500, "omitted": false}}], "end": {}}\n',
]
NUMBERS = [
    "0", "-0", "-1", "nan", "inf", "-inf", "NaN", "Infinity", "1e999", "-1e999", "1e-400", "5e-324", "1e300",
    "1e100", "1e16", "9007199254740993", "9" * 400, "9" * 5000, "0." + "0" * 400 + "1", "1_000", "0x10", "1e",
    "١٢", "½", "1,5", "1.2.3", "--1", "+1", "true", "null", "2024-02-31T00:00", "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59", "2019.11.28_07.27.53", "10000000000000",
]  # fmt: skip
PIECES = [
    "", " ", "\n", "\r", "\r\n", "\t", ",", ";", ",,", '"', '""', "'", "#", "# duration_s: -5\n", "# duration_s: 0\n",
    "# duration_s: 1e400\n", "\ufeff", "\u2028", "\x0c", "\x1c", "\0", "[", "]", "{", "}", ":", "[[[[", "{}", "[]",
    '{"sum": ', '"omitted": true', '"bytes": ', "time_s", "rate_mbit_s", "Mbits/sec", "_", "é", "😀", "x" * 300,
]  # fmt: skip

text = st.sampled_from(VALID)
hostile = st.sampled_from(NUMBERS + PIECES)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32-be", "latin-1", "cp1252")


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid trace of some format to which a few bad things happened."""
    made: str = draw(text)
    for _ in range(draw(st.integers(1, 6))):
        made = draw(st.sampled_from(CHANGES))(draw, made)
    return made


def _replace_number(draw: st.DrawFn, made: str) -> str:
    found = list(re.finditer(r"\d+(\.\d+)?", made))
    if not found:
        return made
    match = draw(st.sampled_from(found))
    return made[: match.start()] + draw(st.sampled_from(NUMBERS)) + made[match.end() :]


def _insert(draw: st.DrawFn, made: str) -> str:
    at = draw(st.integers(0, len(made)))
    return made[:at] + draw(hostile) + made[at:]


def _delete(draw: st.DrawFn, made: str) -> str:
    at = draw(st.integers(0, len(made)))
    return made[:at] + made[at + draw(st.integers(1, 20)) :]


def _repeat(draw: st.DrawFn, made: str) -> str:
    start, stop = sorted(draw(st.tuples(st.integers(0, len(made)), st.integers(0, len(made)))))
    return made[:stop] + made[start:stop] * draw(st.integers(1, 50)) + made[stop:]


def _swap_lines(draw: st.DrawFn, made: str) -> str:
    return "\n".join(draw(st.permutations(made.split("\n")[:8])))


def _change_separator(draw: st.DrawFn, made: str) -> str:
    old, new = draw(st.sampled_from(",;\t \n:")), draw(st.sampled_from(",;\t \n\r|"))
    return made.replace(old, new, draw(st.sampled_from([-1, 1, 2])))


def _join(draw: st.DrawFn, made: str) -> str:
    return made[:2000] + draw(text)


CHANGES = [_replace_number, _insert, _delete, _repeat, _swap_lines, _change_separator, _join]

columns = st.none() | st.sampled_from(["1", "2", "0", "99", "DL_bitrate", "bytes", "2:bytes", "1:Mbit/s", ":",
                                       "sum", "sum_bidir_reverse", "x:y:z", "٣", "", "2:" + "k" * 999])  # fmt: skip
formats = st.none() | st.sampled_from(list(READERS))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "trace"


def check(path: Path, form: str | None = None, column: str | None = None) -> None:
    """Read ``path``: whatever it is, the outcome is one of two."""
    try:
        trace = read(path, format=form, column=column)
    except InputError as error:
        lines = re.split(b"\r\n|\r|\n", path.read_bytes())
        place = re.fullmatch(re.escape(str(path)) + r"(?::(\d+))?", error.where or "")
        assert place, error
        assert 1 <= int(place[1] or 1) <= len(lines), error
        assert len(str(error)) < 2000
    else:
        usable(trace)


def usable(trace: RateTrace) -> None:
    ends = [*trace.times_s, trace.duration_s]
    assert all(later - earlier >= 0.9e-6 for earlier, later in pairwise(ends))
    assert ends[0] == 0
    assert ends[-1] <= 1e9
    assert all(type(rate) is int and 0 <= rate <= LARGEST for rate in trace.rates_bits)
    assert math.isfinite(summary(trace).mean_bits)
    assert parse(write_csv(trace), trace.name) == trace


@fuzzed
@given(mutated(), formats, columns, st.sampled_from(ENCODINGS))
def test_mutated_traces(
    path: Path, made: str, form: str | None, column: str | None, encoding: str
) -> None:
    path.write_bytes(made.encode(encoding, errors="replace"))
    check(path, form, column)


@fuzzed
@given(mutated())
def test_mutated_traces_whose_format_is_told(path: Path, made: str) -> None:
    path.write_text(made, encoding="utf-8", newline="")
    check(path)


@fuzzed
@given(text, st.sampled_from(NUMBERS), st.randoms(use_true_random=False))
def test_one_hostile_number(path: Path, made: str, number: str, random: Random) -> None:
    match = random.choice(list(re.finditer(r"\d+(\.\d+)?", made)))
    made = made[: match.start()] + number + made[match.end() :]
    path.write_text(made, encoding="utf-8", newline="")
    check(path)


@fuzzed
@given(st.binary(max_size=300), formats)
def test_random_bytes(path: Path, made: bytes, form: str | None) -> None:
    path.write_bytes(made)
    check(path, form)


@fuzzed
@given(st.text(st.sampled_from('0123456789.,;-+eE[]{}": \n\r\tx#_nainf'), max_size=80), formats)
def test_random_text_of_numbers(path: Path, made: str, form: str | None) -> None:
    path.write_text(made, encoding="utf-8", newline="")
    check(path, form)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
numbers = st.floats(0, 1e12) | st.floats(0, 1e30) | st.integers(0, 10**9) | values


@fuzzed
@given(
    st.lists(st.fixed_dictionaries({"duration_ms": numbers, "bandwidth_kbps": numbers}) | values)
)
def test_any_json_list(path: Path, made: list[Any]) -> None:
    path.write_text(json.dumps(made, indent=1), encoding="utf-8")
    check(path)


sums = st.fixed_dictionaries(
    {"seconds": numbers, "bytes": numbers, "omitted": st.booleans() | values}
)


@fuzzed
@given(
    st.fixed_dictionaries(
        {"intervals": st.lists(st.fixed_dictionaries({"sum": sums | values}) | values) | values},
        optional={"error": values},
    )
)
def test_any_iperf3_json(path: Path, made: dict[str, Any]) -> None:
    path.write_text(json.dumps(made), encoding="utf-8")
    check(path)


rows = st.lists(
    st.lists(st.floats().map(repr) | st.integers().map(str) | hostile, max_size=4), max_size=6
)


@fuzzed
@given(st.lists(st.sampled_from(["time_s", "rate_mbit_s", "bytes", "date", "dt", "kbps", "t", ""]), max_size=4),
       rows, st.sampled_from(",;\t"))  # fmt: skip
def test_any_table(path: Path, header: list[str], lines: list[list[str]], separator: str) -> None:
    made = "\n".join(separator.join(cells) for cells in [header, *lines])
    path.write_text(made, encoding="utf-8", newline="")
    check(path)


DEEP = [
    "[" * 200_000,
    '{"a":' * 200_000,
    '{"intervals": ' + "[" * 90_000 + "]" * 90_000 + "}",
    '[{"duration_ms": 1, "bandwidth_kbps": ' + "[" * 900 + "]" * 900 + "}]",
    "[" + "9" * 100_000 + "]",
    "9" * 300_000,
    "0 " + "9" * 300_000,
    "1e" + "9" * 300_000 + " 5",
    "time_s,rate_mbit_s\n0," + "0" * 300_000,
    "time_s,rate_mbit_s\n" + "1," * 200_000,
    "time_s,rate_mbit_s" + ",x" * 200_000 + "\n0,1\n",
    'time_s,rate_mbit_s\n"' + "1" * 200_000 + '",1\n',
    '"' * 200_001 + ",rate_mbit_s\n0,1\n",
    "x" * 300_000,
    "x_" * 200_000 + "mbit_s\n1\n",
    " " * 300_000 + "1 2",
    "\n" * 300_000 + "1 x",
    "#" * 300_000,
    "# duration_s:" + " " * 200_000 + "x\ntime_s,kbps\n0,1\n",
    "time_s " * 100_000,
    "1 2 3 4 5 6\n" * 10_000,
    "time_s,rate_mbit_s\n" + "0,1\n" * 200_000,
    "\n".join(["5"] * 300_000 + ["4"]),
    '[{"duration_ms": 1, "bandwidth_kbps": 1}' + ',{"duration_ms": 1, "bandwidth_kbps": 1}' * 99_999 + ',{"x": 1}]',
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("made", DEEP, ids=range(len(DEEP)))
def test_long_and_deep_files_are_answered_soon(path: Path, made: str) -> None:
    path.write_text(made, encoding="utf-8")
    for form in (None, *READERS):
        check(path, form)


def test_json_with_more_values_than_memory_should_hold_is_not_parsed() -> None:
    with pytest.raises(InputError, match=r"^t: more than 8000000 values in it"):
        parse("[" + "[]," * 8_000_001 + "[]]", "t")
