"""Hostile marks: heard within their bounds, or counted and left out; whatever was heard can be summed up."""

from __future__ import annotations

import json
import socket
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from math import isfinite
from typing import Any

import pytest
from fuzz_rig import TIMEOUT_S, changed, fuzzed, hostile, no_thread_fails
from hypothesis import given
from hypothesis import strategies as st

from testbed.fidelity.summary import known_steps
from testbed.records.job_steps import MarkRecord
from testbed.records.link_log import LinkTraffic
from testbed.records.run_directory import to_json
from testbed.runner.exec.mark_listener import MOST_BYTES, MOST_NONSENSE, HeardMark, MarkListener

pytestmark = pytest.mark.timeout(TIMEOUT_S)
SOON_S = 20.0
NODE = "worker-0"
HELLO = {"what": "hello", "rank": 1, "local_rank": 0}
LARGE = sys.float_info.max
MARKS: list[Any] = [
    HELLO,
    {"what": "begin", "ns": 5},
    {"what": "phase", "ns": 10**9, "name": "forward"},
    {"what": "end", "ns": 2 * 10**9, "name": "forward"},
    {"what": "step", "ns": 3 * 10**9, "number": 1, "values": {"loss": 0.5, "accuracy": 1.0}},
    {"what": "step", "ns": 4 * 10**9, "number": 2, "values": {"loss": LARGE}},
]
said = st.lists(hostile(MARKS), max_size=8).map(b"\n".join)
whole = st.just(b"\n".join(json.dumps(mark).encode() for mark in MARKS)).flatmap(changed)


@pytest.fixture(scope="module")
def listener() -> Iterator[MarkListener]:
    made = MarkListener([NODE])
    made.release(time.monotonic_ns())
    with no_thread_fails():
        yield made
        assert [each.mark.number for each in hear(made, json.dumps(MARKS[4]).encode())] == [1]
        made.close()


def hear(
    listener: MarkListener, data: bytes, hello: dict[str, Any] | None = HELLO
) -> list[HeardMark]:
    """What comes of a process that says so and ends, all of which is soon."""
    with socket.socket(socket.AF_UNIX) as job:
        job.settimeout(SOON_S)
        job.connect(listener.path(NODE))
        with suppress(OSError):
            if hello is not None:
                job.sendall(json.dumps(hello).encode() + b"\n")
            job.sendall(data)
            job.shutdown(socket.SHUT_WR)
            while job.recv(4096):
                pass
    give_up = time.monotonic() + SOON_S
    while listener._connections:
        assert time.monotonic() < give_up
        time.sleep(0.0005)
    return [listener.heard.get_nowait() for _ in range(listener.heard.qsize())]


@fuzzed
@given(said | whole, st.booleans())
def test_marks(listener: MarkListener, data: bytes, introduced: bool) -> None:
    for heard in hear(listener, data, HELLO if introduced else None):
        mark = heard.mark
        assert heard.node == NODE and 0 <= heard.rank < 2**31 and 0 <= heard.local_rank < 2**31
        assert 0 <= mark.ns < 2**63 and len(mark.name or "") <= 200 and len(mark.values) <= 64
        assert mark.number is None or abs(mark.number) <= 2**53
        record(heard)


def record(heard: HeardMark) -> dict[str, Any]:
    """As it is written, and read again."""
    mark = heard.mark
    made = MarkRecord(
        heard.node, heard.rank, heard.local_rank, mark.what, mark.name, mark.number, (mark.ns - 10**9) / 1e9, mark.values
    )  # fmt: skip
    read: dict[str, Any] = json.loads(to_json(made.to_json()).encode())
    return read


@fuzzed
@given(st.lists(st.tuples(st.integers(0, 3), said | whole), max_size=4))
def test_steps_are_made_of_any_marks(listener: MarkListener, jobs: list[tuple[int, bytes]]) -> None:
    """Of several processes, each with its rank."""
    marks = [
        record(heard)
        for rank, data in jobs
        for heard in hear(listener, data, {**HELLO, "rank": rank})
    ]
    known = known_steps({"mark": marks}, LinkTraffic([]))
    for step in known.steps:
        assert isfinite(step.end_s) and all(map(isfinite, step.values.values()))


def test_large_marks_that_nobody_takes_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4 << 20
    monkeypatch.setattr("testbed.runner.exec.mark_listener.MOST_WAITING_BYTES", most)
    made, names = MarkListener([NODE]), [chr(0x1F600 + number) * 200 for number in range(60)]
    large = {**MARKS[4], "values": dict.fromkeys(names, 0.5)}
    line = json.dumps(large, ensure_ascii=False).encode() + b"\n"
    try:
        taken = hear(made, line * 3)
        assert [heard.mark.values for heard in taken] == [large["values"]] * 3
        tracemalloc.start()
        with socket.socket(socket.AF_UNIX) as job:
            job.connect(made.path(NODE))
            job.sendall(json.dumps(HELLO).encode() + b"\n" + line * 300)
            job.shutdown(socket.SHUT_WR)
            assert job.recv(1) == b""
        assert tracemalloc.get_traced_memory()[0] < most
        waiting = made.heard.qsize()
        assert waiting > 20 and made.left_out[NODE] == 300 - waiting
        assert len(hear(made, b"")) == waiting and len(hear(made, line)) == 1
    finally:
        tracemalloc.stop()
        made.close()


def test_values_beyond_all_numbers_have_a_mean(listener: MarkListener) -> None:
    line = json.dumps(MARKS[5]).encode()
    marks = [record(each) for rank in (0, 1) for each in hear(listener, line, {**HELLO, "rank": rank})]  # fmt: skip
    (step,) = known_steps({"mark": marks}, LinkTraffic([])).steps
    assert step.values == {"loss": LARGE}


@pytest.mark.parametrize("introduced", [False, True])
def test_a_line_without_end_is_cut_off(listener: MarkListener, introduced: bool) -> None:
    """Where no greeting comes at once, else when there was too much nonsense; memory stays at one line's."""
    most = MOST_BYTES * (MOST_NONSENSE if introduced else 1)
    with socket.socket(socket.AF_UNIX) as job:
        job.settimeout(SOON_S)
        job.connect(listener.path(NODE))
        if introduced:
            job.sendall(json.dumps(HELLO).encode() + b"\n")
        tracemalloc.start()
        try:
            sent, piece = 0, b"x" * MOST_BYTES
            with suppress(OSError):
                while sent < 2 * most + (4 << 20):
                    sent += job.send(piece)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most <= sent < most + (4 << 20)
    assert taken < 10 * MOST_BYTES
