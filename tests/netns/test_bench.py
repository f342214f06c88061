"""The link benchmark once, short: that it measures at all, says sane things and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest
from command_rig import measured

from testbed.bench.links.lab import busy
from testbed.records.manifest import THRESHOLDS

PAYLOAD = 1448 / 1514
"""Of a full segment with its Ethernet, IPv4 and TCP headers."""
PYTHON = sys.executable.encode()


@pytest.mark.nightly
@pytest.mark.timed
@pytest.mark.judged
@pytest.mark.timeout(240)
def test_static_and_swing_once(state: Path, tmp_path: Path) -> None:
    found, _ = measured("link", "--suite", "static", "--suite", "swing", out=tmp_path)
    assert set(found) == {"suites", "machine"}
    assert set(found["suites"]) == {"static", "swing"}
    static = found["suites"]["static"]
    assert static["failure"] is None
    assert {check["name"] for check in static["checks"]} == {"10 Mbit/s", "500 Mbit/s"}
    rows = {(row["rate_mbit"], row["alternative"]): row for row in static["rows"]}
    for rate in (10, 500):
        for name in ("narrows", "tc-htb", "tc-htb-1ms", "tc-tbf"):
            row = rows[rate, name]
            # What a verdict calls valid; others may let a burst pass at first, which shows in a short measurement.
            most = THRESHOLDS.ratio_deviation if name == "narrows" else 0.05
            assert row["delivered/asked"] == pytest.approx(1, abs=most), row
            assert row["payload/asked"] == pytest.approx(PAYLOAD * row["delivered/asked"], rel=0.02)
            assert 0 < row["cpu_s_per_gb"] < 1000
    assert rows["", "unshaped"]["gbit_s"] > 0.5
    swing = {
        (row["changes_per_s"], row["alternative"]): row["delivered/asked"]
        for row in found["suites"]["swing"]["rows"]
    }
    assert set(swing) == {(n, name) for n in (10, 100) for name in ("narrows", "tc-htb", "tc-tbf")}
    for changes, most in ((10, 0.01), (100, 0.03)):  # the suite's own limits
        assert swing[changes, "narrows"] == pytest.approx(1, abs=most), swing
    # A journal goes when everything in it is gone.
    assert not list(state.glob("*.journal"))


def test_busy_processes_end_with_their_block_and_by_themselves() -> None:
    def children() -> str:
        return Path("/proc/thread-self/children").read_text()

    def start_and_leave() -> None:
        stack.enter_context(busy(1, 30.0))
        pids.append(int(children()))
        while not Path(f"/proc/{pids[0]}/cmdline").read_bytes().startswith(PYTHON):
            time.sleep(0.01)

    stack, pids = ExitStack(), list[int]()
    before = children()
    with busy(2, 30.0):
        assert len(children().split()) == len(before.split()) + 2
    assert children() == before
    starter = Thread(target=start_and_leave)
    starter.start()
    starter.join()
    _, status = os.waitpid(pids[0], 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL  # with the thread that started it
    stack.close()
    began = time.monotonic()
    with busy(1, 0.1):
        time.sleep(0.05)
    assert time.monotonic() - began < 20
