"""Sleeping until deadlines on processors that wake up late; signals while standard input is awaited."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from testbed import process
from testbed.process import AWAKE_NS, NAP_NS, Sleeper

NEVER_NS = 1 << 62


class SlowToWake:
    """A clock whose sleeps last ``longer_ns`` longer than asked for, and on which a look takes 10 us."""

    def __init__(self, longer_ns: int) -> None:
        self.now_ns, self.longer_ns, self.sleeps, self.slept_ns = 0, longer_ns, 0, 0

    def monotonic_ns(self) -> int:
        self.now_ns += 10_000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        asleep_ns = round(seconds * 1e9) + self.longer_ns
        self.now_ns += asleep_ns
        self.slept_ns += asleep_ns


def never_stopped() -> bool:
    return False


def that_wakes_late(
    longer_ns: int, monkeypatch: pytest.MonkeyPatch, *, realtime: bool = True
) -> tuple[Sleeper, SlowToWake]:
    """A sleeper that has had some naps, and its clock."""
    clock = SlowToWake(longer_ns)
    monkeypatch.setattr(process, "time", clock)
    sleeper = Sleeper()
    sleeper.realtime = realtime
    for nap in range(1, 5):
        sleeper.sleep(nap * NAP_NS, NEVER_NS, never_stopped)
        assert longer_ns <= clock.now_ns - nap * NAP_NS <= longer_ns + 50_000
    return sleeper, clock


@pytest.mark.parametrize("longer_ns", [0, 300_000, 1_500_000])
def test_a_deadline_does_not_wait_for_a_processor_that_wakes_up_late(
    longer_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper, clock = that_wakes_late(longer_ns, monkeypatch)
    due_ns = clock.now_ns + 50_000_000
    sleeper.sleep(
        due_ns - longer_ns // 2, due_ns, never_stopped
    )  # what would come just before it waits
    assert 0 <= clock.now_ns - due_ns <= 20_000
    sleeper.sleep(due_ns + NAP_NS, NEVER_NS, never_stopped)
    assert clock.now_ns - due_ns - NAP_NS >= longer_ns, "what is no deadline is slept for"


def test_no_more_than_two_milliseconds_pass_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, clock = that_wakes_late(9_000_000, monkeypatch)
    clock.longer_ns, due_ns = 0, clock.now_ns + NAP_NS
    sleeps, slept_ns = clock.sleeps, clock.slept_ns
    sleeper.sleep(due_ns, due_ns, never_stopped)
    assert clock.sleeps == sleeps + 1
    assert 0 <= clock.now_ns - due_ns <= 20_000
    assert NAP_NS - (clock.slept_ns - slept_ns) == pytest.approx(AWAKE_NS, abs=20_000)


@pytest.mark.parametrize("every_ns", [200_000, 1_000_000, 5_000_000])
def test_a_tenth_of_the_time_passes_awake_at_most(
    every_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many deadlines there are: others need the processor, and how long naps last must still be seen."""
    sleeper, clock = that_wakes_late(1_500_000, monkeypatch)
    clock.longer_ns = 0
    begun_ns, slept_ns, sleeps = clock.now_ns, clock.slept_ns, clock.sleeps
    for n in range(1, 101):
        due_ns = begun_ns + n * every_ns
        sleeper.sleep(due_ns, due_ns, never_stopped)
    assert clock.sleeps - sleeps >= 98, "all but the first, for which there was time"
    awake_ns = clock.now_ns - begun_ns - (clock.slept_ns - slept_ns)
    looking_ns = 100 * 50_000
    assert awake_ns <= 0.1 * 100 * every_ns + AWAKE_NS + looking_ns


def test_an_ordinary_thread_sleeps_until_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, clock = that_wakes_late(500_000, monkeypatch, realtime=False)
    due_ns = clock.now_ns + 5_000_000
    sleeper.sleep(due_ns, due_ns, never_stopped)
    assert clock.now_ns - due_ns >= 500_000


def test_who_is_stopped_sleeps_no_longer_than_a_nap(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, clock = that_wakes_late(0, monkeypatch)
    begun_ns, due_ns = clock.now_ns, clock.now_ns + 10**9
    sleeper.sleep(due_ns, due_ns, lambda: clock.now_ns > begun_ns + NAP_NS // 2)
    assert clock.now_ns - begun_ns <= NAP_NS + 50_000


READS = """
import signal, sys, threading
from testbed.process import InterruptibleInput
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the other thread takes it
for line in InterruptibleInput.as_text():
    print(repr(line), flush=True)
"""


def test_a_signal_that_interrupts_no_read_ends_the_wait_all_the_same() -> None:
    """As one does that comes between Python's last look for signals and the read."""
    with subprocess.Popen(
        [sys.executable, "-c", READS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write("ä\n".encode() + b"\xff\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"'\xc3\xa4\\n'\n"
            assert process.stdout.readline() == "'\ufffd\\n'\n".encode()
            time.sleep(0.3)  # until it waits: earlier, any read would be given up
            process.send_signal(signal.SIGTERM)
            assert process.wait(20.0) == 7
        finally:
            process.kill()


def test_standard_input_that_ends_is_read_to_its_end() -> None:
    told = subprocess.run(
        [sys.executable, "-c", READS],
        input=b"one\ntwo",
        capture_output=True,
        timeout=20.0,
        check=True,
    )
    assert told.stdout == b"'one\\n'\n'two'\n"
