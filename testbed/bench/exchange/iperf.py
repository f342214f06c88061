"""What the links carry at best: iperf3 between every node and the server, all at once, up and then down."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from typing import Any

from testbed.bench.exchange.cell import Cell
from testbed.bench.exchange.crew import node_name
from testbed.bench.exchange.part import SERVER
from testbed.bench.exchange.sample import Sample
from testbed.bench.lab import Lab
from testbed.errors import ExperimentError, MachineError
from testbed.fabric.enter import command_in
from testbed.process import environment
from testbed.session.iperf import PROGRAM

_FIRST_PORT = 5400
_PATIENCE_S, _OMITTED_S = 30.0, 1


def measure(lab: Lab, cell: Cell, seconds: int) -> Sample:
    """Rounds as they would be if each phase went at the speed of the flows. Raises ExperimentError."""
    began_s = _children_s()
    with ExitStack() as stack:
        for number in cell.numbers[1:]:
            stack.callback(_end, _serve(lab, number))
        up = _all(lab, cell, seconds, ())
        down = _all(lab, cell, seconds, ("--reverse",))
    cpu_s = _children_s() - began_s
    carried = (up + down) / 8 * (seconds + _OMITTED_S)
    round_s = 8 * cell.nodes * cell.bytes * (1 / up + 1 / down)
    return Sample([round_s], cpu_s / (carried / 1e9))


def _all(lab: Lab, cell: Cell, seconds: int, way: tuple[str, ...]) -> float:
    """Payload of all flows together, bit/s, counted where it arrives."""
    running = [_ask(lab, number, seconds, way) for number in cell.numbers[1:]]
    try:
        return sum(_received(process, seconds) for process in running)
    finally:
        for process in running:
            _end(process)


def _serve(lab: Lab, number: int) -> subprocess.Popen[str]:
    """One server for each node, for both directions."""
    where = ["--bind", _address(lab, SERVER), "--port", str(_FIRST_PORT + number)]
    process = _start(lab, SERVER, ["--server", "--forceflush", *where])
    assert process.stdout is not None
    for line in process.stdout:
        if "listening" in line:
            return process
    _end(process)
    raise ExperimentError("iperf3 did not begin to listen")


def _ask(lab: Lab, number: int, seconds: int, way: tuple[str, ...]) -> subprocess.Popen[str]:
    where = ["--client", _address(lab, SERVER), "--port", str(_FIRST_PORT + number)]
    lasting = ["--time", str(seconds), "--omit", str(_OMITTED_S), "--json"]
    return _start(lab, number, [*where, *lasting, *way])


def _received(process: subprocess.Popen[str], seconds: int) -> float:
    try:
        out, _ = process.communicate(timeout=seconds + _PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise ExperimentError("iperf3 did not end") from None
    said: dict[str, Any] = json.loads(out or "{}")
    if "error" in said:
        raise ExperimentError(f"iperf3: {said['error']}")
    bits = float(said["end"]["sum_received"]["bits_per_second"])
    if not bits:
        raise ExperimentError("iperf3 carried nothing")
    return bits


def _start(lab: Lab, number: int, arguments: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command_in(lab.netns(node_name(number)), os.getpid(), [PROGRAM, *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
    except OSError as error:
        raise MachineError(
            f"{PROGRAM} cannot be started: {error}", fix="Run `make setup`."
        ) from error


def _children_s() -> float:
    """Processor seconds of all processes that have been started from here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.communicate()


def _address(lab: Lab, number: int) -> str:
    return lab.places[node_name(number)].data_address
