"""After t0 nothing is compiled and no kernel is read from the disk: counted in a process that starts cold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, object]]:
    """What was ready at t0 and what came later, by algorithm, in that order in one process."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *ROWS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"},
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, object]] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", ROWS)
def test_nothing_is_compiled_or_loaded_after_t0(name: str, counted) -> None:
    assert counted[name]["late"] == {}
    assert counted[name]["compiled"] == 0
    assert counted[name]["ready"] >= 10


def test_the_count_finds_what_is_compiled_late(counted) -> None:
    found = counted["a stranger"]
    assert any("stranger" in name for name in found["late"])
    assert found["compiled"] > 0
