"""Bulk flows over loopback: bytes, and the round trip seen before they begin."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from loopback import own_place, refusing

from testbed.process import module_command
from testbed.runner import bulk_flow


def run(begin_in_s: float, for_s: float = 0.3) -> tuple[bulk_flow.FlowSent, int]:
    begin_ns = time.monotonic_ns() + int(begin_in_s * 1e9)
    stop_ns = max(begin_ns, time.monotonic_ns()) + int(for_s * 1e9)
    received: list[int] = []
    place = own_place()
    sink = threading.Thread(
        target=lambda: received.append(bulk_flow.serve(*place, stop_ns + 200_000_000))
    )
    sink.start()
    sent = bulk_flow.blast(*place, stop_ns, begin_ns)
    sink.join()
    return sent, received[0]


def test_a_flow_measures_the_round_trip_before_it_begins() -> None:
    sent, received = run(1.0)
    assert sent.least_rtt_us is not None
    assert 0 <= sent.least_rtt_us < 500_000
    assert sent.bytes > 0
    assert 0 < received <= sent.bytes


def test_a_flow_that_begins_at_once_has_none() -> None:
    sent, received = run(-1.0, for_s=2.0)
    assert sent.least_rtt_us is None
    assert received > 0


def test_what_came_over_one_connection_after_the_other_is_added_up() -> None:
    place, stop_ns = own_place(), time.monotonic_ns() + 2_000_000_000
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(bulk_flow.serve, *place, stop_ns)
        for size in (1000, 20, 3):
            with bulk_flow._connect(*place, stop_ns) as connection:
                connection.sendall(bytes(size))
        assert received.result() == 1023


def test_nobody_listens() -> None:
    with refusing() as port:
        sent = bulk_flow.blast("127.0.0.1", port, time.monotonic_ns() + 100_000_000)
    assert sent == bulk_flow.FlowSent(0)


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    stop = str(time.monotonic_ns() + 50_000_000)
    with refusing() as port:
        bulk_flow.main(["blast", "127.0.0.1", str(port), stop])
    assert json.loads(capsys.readouterr().out) == {"bytes": 0, "least_rtt_us": None}


def test_nobody_to_tell_is_no_error() -> None:
    """Who started it was killed: the other end of its output is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    command = module_command("testbed.runner.bulk_flow", "blast", "127.0.0.1", "9", "0")
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
