"""Rights of processes with a guest kernel, on the host and in the guest, as ``docs/privileges.md`` has them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_rig import command_line, descendants
from guest_rig import guest
from processes_rig import (
    keeping_mounts,
    kept_namespace,
    own_namespaces,
    parts,
    power_of,
    sockets_of,
    status_of,
    table,
    user_of,
)
from unprivileged import USER, as_user

from testbed.process import environment

pytestmark = [pytest.mark.root, pytest.mark.nightly, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SCENARIO = """
name: guest
nodes: {worker: {role: worker, count: 1}}
links: {default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}}
"""
BEGUN_S = 300.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the user's."""
    with tempfile.TemporaryDirectory(prefix="narrows-guest-rights-") as name:
        os.chown(name, USER, USER)
        yield Path(name)


def test_processes_on_the_host_have_what_is_documented(folder: Path) -> None:
    home, folder = folder, folder / "work"
    folder.mkdir()
    os.chown(folder, USER, USER)
    (folder / "scenario.yaml").write_text(SCENARIO)
    job = ["sh", "-c", "touch begun; sleep 600"]
    command = [sys.executable, "-m", "testbed", "exec", "scenario.yaml", "--guest", "--", *job]
    with subprocess.Popen(
        as_user(home, *keeping_mounts(home / "mounts", *command)), cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            give_up = time.monotonic() + BEGUN_S
            while not (folder / "begun").exists():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < give_up
                time.sleep(0.1)
            rows: dict[str, list[dict[str, object]]] = {}
            for pid in [process.pid, *descendants(process.pid)]:
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                    row = rights(pid, home / "mounts")
                    rows.setdefault(name_of(pid), []).append(row)
        finally:
            process.terminate()
            process.communicate(timeout=60)
    expected = {
        row.pop("process"): {
            name: cell if name in ("user", "capabilities") else parts(cell)
            for name, cell in row.items()
        }
        for row in table("### Processes of a guest on its host")
    }
    assert rows == {name: [expected[name]] * len(rows[name]) for name in expected}


def name_of(pid: int) -> str:
    """A process's name in the documentation."""
    words = command_line(pid).split("\0")
    module = next((word for word in words if word.startswith("testbed.")), "testbed")
    return module if Path(words[0]).name.startswith("python") else Path(words[0]).name


def rights(pid: int, mounts: Path) -> dict[str, object]:
    """A process's row but for its name. ``mounts``: as ``keeping_mounts`` has kept those of the test."""
    return {
        "user": user_of(status_of(pid), {str(USER): "the user"}),
        "capabilities": power_of(pid),
        "namespaces of its own": own_namespaces(pid, given=kept_namespace(mounts)),
        "sockets": set(sockets_of(pid)),
    }


def test_processes_in_a_guest_have_what_is_documented(folder: Path) -> None:
    """Those of ``exec``, ``replay`` and ``run``: the tests that read them on a host do so in there."""
    tests = ["tests/netns/test_isolation.py", "-k", "documented"]
    options = ["-o", "addopts=", "-o", "timeout=240", "-p", "no:cacheprovider", "-q"]
    inside = [sys.executable, "-m", "pytest", *options, *tests]
    command = guest("--memory", "4", "--writable", str(folder), "--", *inside)
    variables = {"NARROWS_GUEST_RIGHTS": "1", "NARROWS_NIGHTLY": "1", "TMPDIR": str(folder)}
    done = subprocess.run(
        as_user(folder, *command), cwd=ROOT, env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
