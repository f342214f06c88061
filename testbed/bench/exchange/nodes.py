"""Processes of a benchmark's nodes, each in a namespace of its own and without privileges:
``python -m testbed.bench.exchange.nodes``. Tasks and answers are lines of JSON.

Told a task, it connects; told ``warm``, it makes a few rounds and says how long one took; told ``go
N``, it makes N and says how long each took, and the processor's time; told ``count``, what its
interface has carried meanwhile.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from testbed.bench.exchange.cases import SERVER, BenchPart, BenchTask, entry
from testbed.bench.links.lab import Lab
from testbed.errors import ExperimentError
from testbed.fabric.node_launcher import command_in
from testbed.process import environment, module_command
from testbed.runner.signals import seldom_collected

_Answer = tuple[int, dict[str, Any] | None]
_END_S = 60.0


def node_name(number: int) -> str:
    """As nodes are called in the lab."""
    return "server" if number == SERVER else f"worker-{number - 1}"


class BenchProcesses:
    """Processes by number. The thread that makes them has to live as long as they shall."""

    def __init__(self, lab: Lab, numbers: Iterable[int], log: Path) -> None:
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._early: list[tuple[int, dict[str, Any]]] = []
        """Answers to what some have been told, and others not yet."""
        self._processes = {number: _start(lab, number, log) for number in numbers}
        for number, process in self._processes.items():
            Thread(target=self._read, args=(number, process), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Return whether all processes are alive."""
        return bool(self._processes) and all(p.poll() is None for p in self._processes.values())

    def tell(self, lines: Mapping[int, str]) -> None:
        """A line to each. Raises ExperimentError for one that is gone."""
        for number, line in lines.items():
            stdin = self._processes[number].stdin
            assert stdin is not None
            try:
                stdin.write(line + "\n")
                stdin.flush()
            except OSError as error:
                raise ExperimentError(f"{node_name(number)} is gone: {error}") from error

    def answers(self, numbers: Iterable[int], timeout_s: float) -> dict[int, dict[str, Any]]:
        """One from each of ``numbers``. Raises ExperimentError for a complaint, a death, or
        silence."""
        missing, got = set(numbers), dict[int, dict[str, Any]]()
        give_up = time.monotonic() + timeout_s
        early, self._early = self._early, []
        while missing:
            number, said = early.pop(0) if early else self._next(give_up, missing)
            if number in missing:
                got[number] = said
                missing.discard(number)
            else:
                self._early.append((number, said))
        self._early += early
        return got

    def _next(self, give_up: float, missing: Iterable[int]) -> tuple[int, dict[str, Any]]:
        try:
            number, said = self._answers.get(timeout=max(0.0, give_up - time.monotonic()))
        except queue.Empty:
            names = ", ".join(node_name(each) for each in sorted(missing))
            raise ExperimentError(f"nothing came in time from {names}") from None
        if said is None:
            raise ExperimentError(f"{node_name(number)} ended")
        if "error" in said:
            raise ExperimentError(f"{node_name(number)}: {said['error']}")
        return number, said

    def end(self) -> None:
        """Whatever they are doing."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(_END_S)
        self._processes = {}

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put((number, json.loads(line)))
        self._answers.put((number, None))


@contextmanager
def crew(lab: Lab, numbers: Iterable[int], log: Path) -> Iterator[BenchProcesses]:
    """Processes for the length of a ``with`` block; ``log`` is the folder of what they complain
    about."""
    processes = BenchProcesses(lab, numbers, log)
    try:
        yield processes
    finally:
        processes.end()


def _start(lab: Lab, number: int, log: Path) -> subprocess.Popen[str]:
    command = module_command("testbed.bench.exchange.nodes")
    log.mkdir(exist_ok=True)
    with (log / f"{node_name(number)}.log").open("ab") as complaints:
        return subprocess.Popen(
            command_in(lab.netns(node_name(number)), os.getpid(), command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=environment(OMP_NUM_THREADS="1"),
        )


_DEVICES = Path("/proc/self/net/dev")
_RECEIVED, _SENT = 0, 8


def main() -> None:
    """Until nobody tells it anything any more."""
    while line := sys.stdin.readline():
        try:
            _carry_out(BenchTask.from_json(json.loads(line)))
        except Exception as error:  # whoever measures decides
            sys.stderr.write(traceback.format_exc())
            _say(error=f"{type(error).__name__}: {error}")


def _carry_out(task: BenchTask) -> None:
    part = entry(task.exchange).part(task)
    try:
        _say(connected=True)
        _told("warm")
        began = time.monotonic()
        _rounds(part, range(1, task.warm_up + 1))
        _say(round_s=(time.monotonic() - began) / task.warm_up)
        count = int(_told("go"))
        before, busy_s = carried(task.device), time.process_time()
        with seldom_collected():
            seconds = _rounds(part, range(task.warm_up + 1, task.warm_up + count + 1))
        _say(seconds=seconds, cpu_s=time.process_time() - busy_s)
        _told("count")
        received, sent = (now - was for now, was in zip(carried(task.device), before, strict=True))
        _say(received=received, sent=sent)
    finally:
        part.close()
    _say(closed=True)


def _rounds(part: BenchPart, steps: range) -> list[float]:
    """How long each took, s."""
    seconds, before = [], time.monotonic_ns()
    for step in steps:
        part.round(step)
        now = time.monotonic_ns()
        seconds.append((now - before) / 1e9)
        before = now
    return seconds


def carried(device: str) -> tuple[int, int]:
    """Bytes that a device of this namespace has received and sent."""
    for line in _DEVICES.read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            fields = [int(field) for field in counters.split()]
            return fields[_RECEIVED], fields[_SENT]
    raise LookupError(f"there is no device {device!r} here")


def _told(word: str) -> str:
    """Return the text after ``word``, which is due. Raises ValueError for another, EOFError when
    nobody is there."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("nobody says anything any more")
    said, _, rest = line.strip().partition(" ")
    if said != word:
        raise ValueError(f"{word!r} was due, and {line!r} came")
    return rest


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
