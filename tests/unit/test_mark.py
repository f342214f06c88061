"""What a script says of itself comes to the listener; where there is none, nothing happens."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.runner.exec.mark_listener import (
    MOST_CONNECTIONS,
    MOST_NONSENSE,
    HeardMark,
    MarkListener,
)

SCRIPT = """
from testbed import mark
mark.begin()
for number in range(3):
    mark.phase("forward")
    with mark.phase("backward"):
        pass
    mark.step(loss=0.5 / (number + 1))
mark.step(10)
mark.step()
"""


@pytest.fixture
def listener() -> Iterator[MarkListener]:
    made = MarkListener(["worker-0", "worker-1"])
    yield made
    made.close()
    assert not made.folder.exists()


def run(script: str, marks: str, rank: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NARROWS_MARKS": marks, "RANK": str(rank), "LOCAL_RANK": "0"}
    return subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def all_heard(listener: MarkListener, count: int) -> list[HeardMark]:
    return [listener.heard.get(timeout=60) for _ in range(count)]


def test_marks_come_in_order_with_their_times(listener: MarkListener) -> None:
    listener.release(time.monotonic_ns())
    before = time.monotonic_ns()
    done = run(SCRIPT, listener.path("worker-1"), rank=3)
    assert done.returncode == 0, done.stderr
    heard = all_heard(listener, 15)
    assert {(one.node, one.rank, one.local_rank) for one in heard} == {("worker-1", 3, 0)}
    said = [one.mark.model_dump() for one in heard]
    assert [m["what"] for m in said] == [
        "begin",
        *["phase", "phase", "end", "step"] * 3,
        "step",
        "step",
    ]
    steps = [m for m in said if m["what"] == "step"]
    assert [m["number"] for m in steps] == [1, 2, 3, 10, 11]
    assert [m["values"] for m in steps[:3]] == [{"loss": 0.5}, {"loss": 0.25}, {"loss": 0.5 / 3}]
    times = [m["ns"] for m in said]
    assert times == sorted(times) and before < times[0] and times[-1] < time.monotonic_ns()


def test_nobody_has_to_listen(tmp_path: Path) -> None:
    for marks in ("", str(tmp_path / "nobody")):
        done = run(SCRIPT, marks)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


CLOSED_AT_ONCE = """
import select, socket
class Late(socket.socket):
    def connect(self, path):
        super().connect(path)
        ended = select.poll()
        ended.register(self, select.POLLHUP)
        assert ended.poll(20_000)
socket.socket = Late
"""
"""Before a script: a connection is used only when its other end has been closed."""


@pytest.mark.parametrize("before", [CLOSED_AT_ONCE, ""], ids=["at once", "without an answer"])
def test_a_script_goes_on_when_its_connection_is_closed(tmp_path: Path, before: str) -> None:
    """As for want of room for another connection, or when the session ends."""
    closed = []

    def accept() -> None:
        connection, _ = listening.accept()
        if not before:
            assert connection.recv(1, socket.MSG_PEEK)  # what nobody reads makes the end an error
        connection.close()
        closed.append(connection)

    path = tmp_path / "marks"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=accept)
        thread.start()
        done = run(f"{before}{SCRIPT}", str(path))
        thread.join(20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(closed) == 1


def test_all_begin_at_the_instant_they_are_told(listener: MarkListener) -> None:
    script = "import time; from testbed import mark; mark.begin(); print(time.monotonic_ns())"
    env = {**os.environ, "LOCAL_RANK": "0"}
    waiting = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**env, "NARROWS_MARKS": listener.path(f"worker-{rank}"), "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    give_up = time.monotonic() + 60
    while listener.waiting != {0, 1}:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert all(process.poll() is None for process in waiting)
    t0_ns = time.monotonic_ns() + 300_000_000
    listener.release(t0_ns)
    for process in waiting:
        out, _ = process.communicate(timeout=20)
        assert int(out) >= t0_ns


def test_a_child_of_a_fork_speaks_for_itself(listener: MarkListener) -> None:
    script = """
import os
from testbed import mark
mark.step()
if os.fork() == 0:
    os.environ["RANK"] = "7"
    mark.step()
    os._exit(0)
os.wait()
mark.step()
"""
    assert run(script, listener.path("worker-0")).returncode == 0
    heard = all_heard(listener, 3)
    assert sorted(one.rank for one in heard) == [0, 0, 7]


def test_who_talks_nonsense_is_not_listened_to(listener: MarkListener) -> None:
    for nonsense in (b"hello\n", b"[]\n", b'{"rank": "x", "local_rank": 0}\n', b"\xff" * 100):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(listener.path("worker-0"))
            stranger.sendall(nonsense)
    assert run("from testbed import mark; mark.step()", listener.path("worker-0")).returncode == 0
    assert all_heard(listener, 1)[0].mark.what == "step"
    assert listener.heard.empty()


def test_marks_that_make_no_sense_are_counted_and_left_out(listener: MarkListener) -> None:
    sense = '{"what": "step", "ns": 5, "number": 3, "values": {"loss": 0.5}}'
    nonsense = (
        '{"what": "step", "ns": 1%s, "number": 3}' % ("0" * 400),
        '{"what": "step", "ns": 5, "number": null}',
        '{"what": "step", "ns": 5, "number": 1%s}' % ("0" * 400),
        '{"what": "step", "ns": -1, "number": 3}',
        '{"what": "step", "ns": 5.5, "number": 3}',
        '{"what": "step", "ns": 5, "number": 3, "values": {"loss": "much"}}',
        '{"what": "step", "ns": 5, "number": 3, "values": [1]}',
        '{"what": "phase", "ns": 5}',
        '{"what": "phase", "ns": 5, "name": "%s"}' % ("x" * 201),
        '{"what": "other", "ns": 5}',
        "[" * 60_000,
        "null",
        "",
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as job:
        job.connect(listener.path("worker-0"))
        job.sendall(b'{"what": "hello", "rank": 1, "local_rank": 0}\n')
        for line in (*nonsense, sense):
            job.sendall(line.encode() + b"\n")
        (heard,) = all_heard(listener, 1)
    assert (heard.rank, heard.mark.number, heard.mark.values) == (1, 3, {"loss": 0.5})
    assert listener.left_out == {"worker-0": len(nonsense)}


def test_nobody_sends_nonsense_for_ever(listener: MarkListener) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as job:
        job.connect(listener.path("worker-0"))
        job.sendall(b'{"what": "hello", "rank": 1, "local_rank": 0}\n')
        with pytest.raises(OSError):
            for _ in range(100 * MOST_NONSENSE):
                job.sendall(b"nonsense\n")
    assert listener.left_out == {"worker-0": MOST_NONSENSE}


def test_a_job_that_marks_faster_than_it_is_heard_loses_marks_and_no_memory(
    listener: MarkListener,
) -> None:
    listener.heard.maxsize = 10
    script = "from testbed import mark\nfor _ in range(50): mark.step()"
    assert run(script, listener.path("worker-1")).returncode == 0
    give_up = time.monotonic() + 60
    while listener.left_out != {"worker-1": 40}:
        assert time.monotonic() < give_up, listener.left_out
        time.sleep(0.01)
    assert [one.mark.number for one in all_heard(listener, 10)] == list(range(1, 11))


def introduced(listener: MarkListener, rank: int) -> socket.socket:
    job = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    job.connect(listener.path("worker-0"))
    job.sendall(b'{"what": "hello", "rank": %d, "local_rank": 0}\n' % rank)
    return job


def test_marks_for_which_there_was_no_room_are_no_nonsense(listener: MarkListener) -> None:
    """However many there were: the job is heard as soon as there is room again."""
    listener.heard.maxsize = 10
    step = b'{"what": "step", "ns": 5, "number": 3}\n'
    with introduced(listener, 1) as job:
        job.sendall(step * (10 + 2 * MOST_NONSENSE))
        assert until(lambda: listener.left_out == {"worker-0": 2 * MOST_NONSENSE})
        all_heard(listener, 10)
        job.sendall(step)
        all_heard(listener, 1)


def test_who_reads_no_answers_holds_up_nobody(listener: MarkListener) -> None:
    listener.release(time.monotonic_ns())
    with introduced(listener, 1) as job, introduced(listener, 2) as other:
        for _ in range(20):
            job.sendall(b'{"what": "begin", "ns": 5}\n' * 1000)
        other.settimeout(10)
        other.sendall(b'{"what": "begin", "ns": 5}\n')
        assert other.recv(100)


def test_who_has_gone_does_not_wait_any_more(listener: MarkListener) -> None:
    with introduced(listener, 5) as job:
        job.sendall(b'{"what": "begin", "ns": 5}\n')
        assert until(lambda: listener.waiting == {5})
    assert until(lambda: listener.waiting == set())


def test_connections_are_counted_and_their_ends_too(listener: MarkListener) -> None:
    """More than a node's processes need are closed, of that node alone; when some end there is room again."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    jobs = [introduced(listener, rank) for rank in range(MOST_CONNECTIONS + 2)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one_more:
        one_more.connect(listener.path("worker-0"))
        one_more.settimeout(10)
        assert one_more.recv(1) == b""
    assert run("from testbed import mark; mark.step()", listener.path("worker-1")).returncode == 0
    assert all_heard(listener, 1)[0].node == "worker-1"
    for job in jobs:
        job.close()
    assert until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)
    assert run("from testbed import mark; mark.step()", listener.path("worker-0")).returncode == 0
    assert all_heard(listener, 1)[0].node == "worker-0"


def test_a_process_without_descriptors_hears_again_when_it_has_some(listener: MarkListener) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with introduced(listener, 0) as job:
        job.sendall(b'{"what": "step", "ns": 5, "number": 1}\n')
        all_heard(listener, 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                other.connect(listener.path("worker-0"))
                time.sleep(0.3)  # it cannot be accepted, and nothing says so
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            other.sendall(b'{"what": "hello", "rank": 1, "local_rank": 0}\n')
            other.sendall(b'{"what": "step", "ns": 5, "number": 2}\n')
            assert all_heard(listener, 1)[0].mark.number == 2


def until(true: Callable[[], bool], within_s: float = 10) -> bool:
    give_up = time.monotonic() + within_s
    while not true():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def test_no_thread_is_left_after_the_end_of_hearing(listener: MarkListener) -> None:
    """One that still read while the interpreter ended would abort the process."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.path("worker-0"))
        client.sendall(b'{"rank": 0, "local_rank": 0}\n{"what": "end", "ns": 1}\n')
        assert listener.heard.get(timeout=60).mark.what == "end"
        with listener._lock:
            [thread] = listener._connections.values()
        assert thread.is_alive()
        listener.close()
        assert not thread.is_alive()
        assert not listener._connections
