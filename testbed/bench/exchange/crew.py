"""The processes of a benchmark's nodes, each in its own namespace, without privileges; told what to do in lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from testbed.bench.exchange.part import SERVER
from testbed.bench.lab import Lab
from testbed.errors import ExperimentError
from testbed.fabric.enter import command_in
from testbed.process import environment, module_command

_Answer = tuple[int, dict[str, Any] | None]
_END_S = 60.0


def node_name(number: int) -> str:
    """As nodes are called in the lab."""
    return "server" if number == SERVER else f"worker-{number - 1}"


class Crew:
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
        """Whether all of them are."""
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
        """One from each of ``numbers``. Raises ExperimentError for a complaint, a death, or silence."""
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
def crew(lab: Lab, numbers: Iterable[int], log: Path) -> Iterator[Crew]:
    """Processes for the length of a ``with`` block; ``log`` is the folder of what they complain about."""
    made = Crew(lab, numbers, log)
    try:
        yield made
    finally:
        made.end()


def _start(lab: Lab, number: int, log: Path) -> subprocess.Popen[str]:
    command = module_command("testbed.bench.exchange.node")
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
