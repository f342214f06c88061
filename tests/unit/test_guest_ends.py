"""How guests end, with a program in place of the kernel that ends as kernels do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import ExperimentError, MachineError
from testbed.host.uml import guest, inside
from testbed.host.uml.guest import LEAST
from testbed.host.uml.inside import GuestOrder
from testbed.process import environment

KERNEL = """#!/bin/sh
for each in "$@"; do case "$each" in uml_dir=*) folder="${each#uml_dir=}";; esac; done
sleep 1000 &
echo $$ $! "$folder" > "WHERE"
BEHAVIOUR
"""
"""With a helper, which outlives it if nobody ends it."""
ASKED = "while [ ! -e $folder/stop-15 ]; do sleep 0.05; done"
ON_ITS_OWN = """
import sys
from pathlib import Path
from testbed.host.uml import guest as boot, guest as installed, guest as xstate
from testbed.host.uml.inside import GuestOrder as Order
installed.require = lambda: installed.Kernel(sys.argv[1], "none")
xstate.needed = lambda: False
boot.run(Order(["true"]), size=boot.LEAST)
"""


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """Names the kernel's process, its helper's and the folder."""
    return tmp_path / "where"


Kernel = Callable[[str], Path]


@pytest.fixture
def kernel(tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Makes a kernel that behaves so, and installs it."""

    def make(behaviour: str) -> Path:
        program = tmp_path / "kernel"
        text = KERNEL.replace("WHERE", str(where)).replace("BEHAVIOUR", behaviour)
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setattr(guest, "require", lambda: guest.Kernel(str(program), "none"))
        monkeypatch.setattr(guest, "needed", lambda: False)
        return program

    return make


def started(where: Path) -> tuple[list[int], Path]:
    """The kernel's processes and its folder, once it runs."""
    give_up = time.monotonic() + 20
    while not (where.exists() and where.read_text().endswith("\n")):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    kernel, helper, folder = where.read_text().split()
    return [int(kernel), int(helper)], Path(folder)


def assert_gone(where: Path) -> None:
    """Nothing of it may be left."""
    processes, folder = started(where)
    give_up = time.monotonic() + 10
    while folder.exists() or any(_runs(process) for process in processes):
        assert time.monotonic() < give_up, (folder.exists(), processes)
        time.sleep(0.02)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def run(limit_s: float | None = None) -> int:
    return guest.run(GuestOrder(["true"]), size=LEAST, limit_s=limit_s)


def test_the_commands_status_is_returned(kernel: Kernel, where: Path) -> None:
    kernel("""echo '{"status": 7, "problem": ""}' > $folder/outcome.json""")
    assert run() == 7
    assert_gone(where)


def test_what_the_guest_lacks_is_told(kernel: Kernel, where: Path) -> None:
    kernel("""echo '{"status": 3, "problem": "it cannot run that"}' > $folder/outcome.json""")
    with pytest.raises(MachineError, match=r"^it cannot run that$"):
        run()
    assert_gone(where)


def test_a_program_that_is_missing_is_the_machines_matter(tmp_path: Path) -> None:
    for name in ("output", "errors"):
        (tmp_path / name).touch()
    with pytest.raises(MachineError, match="'narrows-has-no-such-command': No such file"):
        inside._start(GuestOrder(["narrows-has-no-such-command"]), tmp_path)


def test_panic_is_told(kernel: Kernel, where: Path) -> None:
    kernel("echo 'booting'; echo 'Kernel panic - not syncing: it was asked to'; echo more; exit 1")
    with pytest.raises(MachineError, match="Kernel panic - not syncing: it was asked to"):
        run()
    assert_gone(where)


def test_a_kernel_that_says_nothing_is_told(kernel: Kernel, where: Path) -> None:
    kernel("exit 1")
    with pytest.raises(MachineError, match="broke down: it said nothing"):
        run()
    assert_gone(where)


def test_limit_ends_it(kernel: Kernel, where: Path) -> None:
    kernel(f"""{ASKED}; echo '{{"status": 143}}' > $folder/outcome.json""")
    with pytest.raises(ExperimentError, match=r"longer than 0\.5 s"):
        run(0.5)
    assert_gone(where)


def test_who_does_not_end_when_asked_is_killed(
    kernel: Kernel, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "_GRACE_S", 0.5)
    kernel("while :; do sleep 0.1; done")
    began = time.monotonic()
    with pytest.raises(ExperimentError, match=r"longer than 0\.5 s"):
        run(0.5)
    assert time.monotonic() - began >= 1.0
    assert_gone(where)


def test_nothing_outlives_a_host_that_is_killed(kernel: Kernel, where: Path) -> None:
    program = kernel("while :; do sleep 0.1; done")
    host = subprocess.Popen([sys.executable, "-c", ON_ITS_OWN, program], env=environment())
    processes, folder = started(where)
    assert folder.exists() and all(_runs(process) for process in processes)
    host.kill()
    assert host.wait() == -9
    assert_gone(where)


def test_second_signal_waits_for_nothing(kernel: Kernel, where: Path) -> None:
    program = kernel("while :; do sleep 0.1; done")
    host = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_OWN, program],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    _, folder = started(where)
    for _ in range(2):
        os.kill(host.pid, 15)
        while host.poll() is None and not (folder / "stop-15").exists():
            time.sleep(0.01)
    _, errors = host.communicate(timeout=20)
    assert "before its command had ended" in errors
    assert_gone(where)
