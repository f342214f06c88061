"""After t0 nothing is compiled and no kernel is read from the disk: counted in a process that starts cold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROWS = (
    "none",
    "laplace-0.05+int8+layers",
    "topk-0.05",
    "radix-0.05",
    "onebit-double",
    "qsgd-4bit",
    "dgc-0.05",
)
SCRIPT = """
import gc, json, sys
import numba, torch
from numba.core import event
from numba.core.dispatcher import Dispatcher

torch.set_num_threads(1)
from virtual_setup import ALGORITHMS, Stage
from testbed.compatibility import resolve
from testbed.compress.kernels import compilation

def signatures():
    found = (o for o in gc.get_objects() if issubclass(type(o), Dispatcher))
    return {f"{d.py_func.__module__}.{d.py_func.__qualname__}": len(d.overloads) for d in found}

def played(name):
    ALGORITHMS[name] = resolve(name)
    stage, at_start = Stage(2, name, stop={"steps": 4}), []
    for role in stage.roles.values():
        def noted(run=role.run):
            at_start.append(signatures())
            with event.install_recorder("numba:compile") as compiled:
                try:
                    return run()
                finally:
                    events.extend(compiled.buffer)
        role.run = noted
    stage.play()
    return at_start[0], signatures()

events, result = [], {}
played("topk-0.05")
virtual = signatures()
compilation.all()  # as nodes on real links
result["virtual"] = {"missing": sum(count > virtual.get(name, 0) for name, count in signatures().items())}
events.clear()
for name in sys.argv[1:]:
    before, after = played(name)
    late = {key: count for key, count in after.items() if count != before.get(key)}
    result[name] = {"late": late, "ready": sum(before.values()), "compiled": len(events)}

@numba.njit
def stranger(x):
    return x + 1

before = signatures()
with event.install_recorder("numba:compile") as compiled:
    stranger(1)
result["a stranger"] = {"late": [k for k, n in signatures().items() if n != before.get(k)], "compiled": len(compiled.buffer)}
print(json.dumps(result))
"""

REAL = """
import json, queue, socket
from virtual_setup import job
from testbed.compress.kernels import compilation
from testbed.records.exporter import Exporter
from testbed.runner.control_channel import JsonLines
from testbed.runner.node_process import Assignment, run_assignment
from testbed.topology import DATA_PORT

session, server = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.77.0.1", DATA_PORT))
lines = JsonLines(socket.create_connection(session.getsockname()))
inbox = queue.SimpleQueue()
inbox.put({"type": "another"})
names, addresses = {0: "server", 1: "worker-0"}, {0: "127.77.0.1", 1: "127.77.0.2"}
labels = {"run": "first"}
node = Assignment(job(1, 1, "topk"), "worker", names, addresses, labels, lines, inbox, Exporter({}))
node.flows = {"sources": [], "sinks": []}
try:
    run_assignment(node)
except RuntimeError as error:
    ended = str(error)
said = json.loads(session.accept()[0].makefile().readline())["type"]
print(json.dumps([said, ended, compilation.all.cache_info().currsize]))
"""
"""A worker that is told something else than to start."""


def output(script: str, *arguments: str) -> Any:
    """What a process of its own writes."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, object]]:
    """What was ready at t0 and what came later, by algorithm, in that order in one process."""
    result: dict[str, dict[str, object]] = output(SCRIPT, *ROWS)
    return result


def test_a_node_on_real_links_has_every_kernel_when_it_is_ready() -> None:
    said, ended, loaded = output(REAL)
    assert (said, loaded) == ("ready", 1) and "'another'" in ended


def test_virtual_time_waits_for_kernels_that_it_needs_alone(counted) -> None:
    assert counted["virtual"]["missing"] >= 20


@pytest.mark.parametrize("name", ROWS)
def test_nothing_is_compiled_or_loaded_after_t0(name: str, counted) -> None:
    assert counted[name]["late"] == {}
    assert counted[name]["compiled"] == 0
    assert counted[name]["ready"] >= 10


def test_the_count_finds_what_is_compiled_late(counted) -> None:
    found = counted["a stranger"]
    assert any("stranger" in name for name in found["late"])
    assert found["compiled"] > 0
