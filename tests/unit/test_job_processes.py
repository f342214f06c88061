"""A job's processes: what they print, whose failure is whose, and whose memory is looked at."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.errors import Interrupted
from testbed.fabric.base import Fabric
from testbed.fabric.node_launcher import offer
from testbed.process import PACKAGE
from testbed.runner.exec.launch_spec import LaunchSpec, ProcessSlot
from testbed.runner.exec.trial import Member, ProcessGroup
from testbed.runner.signals import interruptible
from testbed.user_files import Output, PinnedFolder, lines

LONG = b"x" * ((1 << 20) + 1)


def printed(*parts: bytes) -> Iterator[bytes]:
    """Lines of what comes in these parts, each read by itself."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        thread = threading.Thread(target=_write, args=(writing, parts))
        thread.start()
        yield from lines(pipe)
        thread.join()


def _write(writing: int, parts: tuple[bytes, ...]) -> None:
    for part in parts:
        for begin in range(0, len(part), 1 << 15):
            os.write(writing, part[begin : begin + (1 << 15)])
        while fcntl.ioctl(writing, termios.FIONREAD, bytes(4)) != bytes(
            4
        ):  # until it has been read
            time.sleep(0.001)
    os.close(writing)


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((b"one\ntw", b"o\n\nthree"), [b"one\n", b"two\n", b"\n", b"three\n"]),
        ((b"\r 5%", b"\r 10%", b"\r 15%\n"), [b" 5%\n", b" 10%\n", b" 15%\n"]),
        ((b"of Windows\r", b"\nnext\r\n"), [b"of Windows\n", b"next\n"]),
        ((b"at the end\r",), [b"at the end\n"]),
        ((b"x" * 20_000, b"y", b"\n"), [b"x" * 20_000 + b"y\n"]),
        ((b"wide\r\r", b"\nnext\n"), [b"wide\n", b"next\n"]),
        ((LONG, b"\n", b"\nnext\n"), [LONG + b"\n", b"\n", b"next\n"]),
    ],
)
def test_lines_end_in_many_ways(parts: tuple[bytes, ...], found: list[bytes]) -> None:
    assert list(printed(*parts)) == found


def test_the_last_words_are_those_of_a_progress_bar(tmp_path: Path) -> None:
    output = Output(PinnedFolder(tmp_path), 8, shown=False, several=False)
    for line in printed(b"\r  5%|", b"\r 50%|#####", b"\r"):
        output.line("worker-0", 0, line)
    output.close()
    assert output.last["worker-0", 0] == "50%|#####"
    assert (tmp_path / "worker-0.log").read_bytes() == b"  5%|\n 50%|#####\n"


class Launching:
    """A fabric that starts commands here."""

    def launch(self, _: str, command: list[str], _variables: object) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        return self.process

    def resume(self, _: str) -> None:
        """None stands still."""

    def signal(self, _: str, number: int) -> None:
        self.process.send_signal(number)


class Interrupting(Launching):
    """A fabric whose user presses Ctrl-C while a command is being started, which has said something by then."""

    def launch(self, *about: Any) -> subprocess.Popen[bytes]:
        process = super().launch(*about)
        assert process.stdout is not None
        self.said = os.read(process.stdout.fileno(), 100)
        signal.raise_signal(signal.SIGINT)
        return process


def test_who_is_being_started_at_an_interruption_is_asked_to_end(tmp_path: Path) -> None:
    fabric = Interrupting()
    command = (
        "sh",
        "-c",
        "trap 'echo asked; exit 3' TERM; echo begun; while :; do sleep 0.1; done",
    )
    output = Output(PinnedFolder(tmp_path), 8, shown=False, several=False)
    group = ProcessGroup(cast("Fabric", fabric), LaunchSpec(command), output)
    slot = ProcessSlot(["worker-0"], 0, 0, "10.0.0.1", "10.0.0.1", "data0")
    try:
        with pytest.raises(Interrupted, match="SIGINT"), interruptible():
            group.start(slot, {})
        assert fabric.said == b"begun\n" and len(group.members) == 1
        group.end()
        until_s = time.monotonic() + 60.0
        while group.running and time.monotonic() < until_s:
            time.sleep(0.01)
        assert [(member.status, member.end_requested) for member in group.members] == [(3, True)]
        assert group.running == [] and output.last["worker-0", 0] == "asked"
    finally:
        fabric.process.kill()
        fabric.process.communicate()
        output.close()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_process_that_no_thread_can_follow_is_not_waited_for(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has two threads. As many can be started as ``threads`` says."""
    fabric, start, started = Launching(), threading.Thread.start, []

    def few(thread: threading.Thread) -> None:
        if len(started) == threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    spec = cast("LaunchSpec", SimpleNamespace(command=["echo", "said"], processes=1))
    output = Output(PinnedFolder(tmp_path), 8, shown=False, several=False)
    group = ProcessGroup(cast("Fabric", fabric), spec, output)
    slot = ProcessSlot(["worker-0"], 0, 0, "10.0.0.1", "10.0.0.1", "data0")
    if threads < 2:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            group.start(slot, {})
        assert group.running == []
    else:
        group.start(slot, {})
        for thread in started:
            thread.join(10.0)
        assert group.running == [] and [member.status for member in group.members] == [0]
        assert output.last["worker-0", 0] == "said"
    fabric.process.communicate(timeout=10.0)
    output.close()


def ended_badly(rank: int, ended_ns: int | None) -> Member:
    process = subprocess.Popen(["sh", "-c", "exit 7"])
    process.wait()
    slot = ProcessSlot(["worker-0", "worker-1"], rank, 0, "10.0.0.1", "10.0.0.1", "data0")
    return Member(slot, rank, process, 0, ended_ns)


def test_a_kill_excuses_nothing_that_went_wrong_before_it() -> None:
    group = ProcessGroup(None, LaunchSpec(("sh",)), None)  # type: ignore[arg-type]
    group.members = [ended_badly(0, 5), ended_badly(1, 5)]
    runs = ended_badly(1, None)
    group.excuse({"worker-0": 8})
    assert [member.rank for member in group.failed] == [0, 1]
    group.members.append(runs)
    group.excuse({"worker-0": 8, "worker-1": 5})
    runs.ended_ns = 9
    assert [member.rank for member in group.failed] == [0]


def test_of_several_failures_the_first_in_time_is_the_cause() -> None:
    """A rank that waits for one that failed fails, too, and may have a lower number."""
    group = ProcessGroup(None, LaunchSpec(("sh",)), None)  # type: ignore[arg-type]
    group.members = [ended_badly(rank, ended_ns) for rank, ended_ns in ((0, 9), (1, 5), (0, 7))]
    excused = ended_badly(1, 1)
    excused.end_requested = True
    group.members.append(excused)
    assert [member.ended_ns for member in group.failed] == [5, 7, 9]


def test_the_package_is_found_and_nothing_beside_it(tmp_path: Path) -> None:
    script = (
        "import testbed.mark, importlib.util as u; "
        "print(testbed.__file__, testbed.mark.__file__, u.find_spec('analysis'))"
    )
    (tmp_path / "elsewhere").mkdir()
    said = [
        subprocess.run(
            [sys.executable, "-S", *arguments],
            env={**os.environ, "PYTHONPATH": str(offer(tmp_path))},
            cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=True,
        ).stdout
        for arguments in (["-c", script], ["-m", "testbed.fabric.node_launcher", "--help"])
    ]  # fmt: skip
    assert said[0].split() == [f"{PACKAGE}/__init__.py", f"{PACKAGE}/mark.py", "None"]
    assert "usage: testbed.fabric.node_launcher" in said[1]
