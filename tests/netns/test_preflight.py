"""What this machine cannot do is refused before anything is made of the run, whatever asks for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

SCENARIO = """
name: fast
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links:
  default: {up: {rate: RATE, queue: 50 ms}, down: {rate: RATE, queue: 50 ms}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 20 ms, stop: {steps: 3}}
algorithms: [topk-0.15]
congestion: CONGESTION
"""


def refused(folder: Path, verb: str, rate: str, congestion: str) -> str:
    """What is said; nothing may have been made."""
    text = SCENARIO.replace("RATE", rate).replace("CONGESTION", congestion)
    (folder / "fast.yaml").write_text(text)
    command = [sys.executable, "-m", "testbed", verb, "fast.yaml", "--out", str(folder)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr and "starting" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["fast.yaml"]
    return " ".join(done.stderr.split())


# every day test_docker_member.py has a replay refused for its rate
@pytest.mark.parametrize("verb", ["run", pytest.param("replay", marks=pytest.mark.nightly)])
def test_a_rate_that_the_machine_cannot_move(tmp_path: Path, verb: str) -> None:
    said = refused(tmp_path, verb, "400 Gbit/s", "cubic")
    assert "would have 400.00 Gbit/s" in said
    measured = re.search(r"can move ([\d.]+) Gbit/s", said)
    assert measured is not None and 0 < float(measured[1]) < 400
    # no dilation is enough for a machine that is very slow at this moment
    assert re.search(r"`dilation: \d+` in the scenario it would fit|Ask for lower rates", said)


@pytest.mark.parametrize("verb", ["run", "replay"])
def test_a_congestion_control_that_the_kernel_does_not_have(tmp_path: Path, verb: str) -> None:
    said = refused(tmp_path, verb, "20 Mbit/s", "nonesuch")
    assert "'nonesuch'" in said and "cubic" in said


ELSEWHERE = """
from pathlib import Path
from testbed.errors import MachineError
from testbed.host.user_namespace import elsewhere, enter_own_world
from testbed.runner.preflight import measure_veth

def refuse():
    raise MachineError(f"moved {measure_veth(1, 10) > 0}", fix="nothing")

try:
    elsewhere(refuse)
except MachineError as refusal:
    print(refusal.message, refusal.fix)
enter_own_world()
Path("/proc/sys/user/max_user_namespaces").write_text("0")
print(elsewhere(refuse))
"""


def test_it_is_tried_out_in_a_world_of_its_own_where_that_is_permitted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "moved True nothing\nNone\n", done.stderr
