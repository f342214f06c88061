"""What somebody hostile, or only careless, may put in the way of root's runs: nothing of it is taken for ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.process import environment

pytestmark = pytest.mark.timeout(200)
PLANTED = ("json.py", "torch.py", "testbed.py", "pyroute2.py", "ctypes.py", "sitecustomize.py")
PROGRAM = """
import os
with open({found!r}, "a") as file:
    file.write(f"{{__file__}} as {{os.geteuid()}}\\n")
raise SystemExit("planted")
"""


@pytest.fixture
def testbed(tmp_path: Path) -> list[str]:
    """The command as it is installed, which finds its modules by itself."""
    return [str(Path(sys.executable).parent / "testbed")]


def test_no_module_is_taken_from_the_working_directory(
    testbed: list[str], tmp_path: Path, nothing_left: set[str]
) -> None:
    here, found = tmp_path / "here", tmp_path / "found"
    here.mkdir()
    for name in PLANTED:
        (here / name).write_text(PROGRAM.format(found=str(found)))
    (here / "trace.csv").write_text("time_s,rate_mbit_s\n0,20\n1,10\n")
    scenario = here / "small.yaml"
    scenario.write_text(
        "name: small\nnodes: {server: {role: server}, worker: {role: worker, count: 1}}\n"
        "links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}\n"
        "train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, stop: {steps: 3}}\n"
        "algorithms: [none]\n"
    )
    own = {name: text for name, text in environment().items() if name != "PYTHONPATH"}
    for number, arguments in enumerate(
        (
            ["replay", "trace.csv", "--seconds", "1", "--no-figures"],
            ["run", "small.yaml", "--no-figures"],
            ["exec", "small.yaml", "--", "true"],
        ),
        1,
    ):
        done = subprocess.run(
            [*testbed, *arguments],
            cwd=here, env=own, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        assert len(list(here.glob("runs/*"))) == number, done.stderr
    assert not found.exists(), found.read_text()
