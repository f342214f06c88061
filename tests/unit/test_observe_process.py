"""The process of Prometheus on this machine's loopback: rights, places where it listens, and its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loopback import own_place
from observed_rig import assert_gains_nothing, connected, promised, rights_of
from processes_rig import listening
from unprivileged import USER, as_user

from testbed.host import prometheus
from testbed.process import environment as with_package
from testbed.runner import observe

pytestmark = [
    pytest.mark.optional,
    pytest.mark.skipif(
        prometheus.program() is None, reason="needs Prometheus, which `make observe` fetches"
    ),
    pytest.mark.root,
]
PROGRAM = """
import sys
from pathlib import Path
from testbed.fabric import cleanup
from testbed.journal import Journal
from testbed.runner import dashboard, observe
from testbed.user_files import PinnedFolder

port, folder = int(sys.argv[1]), Path(sys.argv[2])
cleanup.register()
about = dashboard.ObservedRun({}, "127.0.0.1:9", f"http://127.0.0.1:{port}", "r1", "server")
journal = Journal.open(f"{port}-observe")
log = PinnedFolder(folder).append(observe.LOG)
process = observe._start(journal, about, log, None, port)
observe._await_ready(process, lambda: observe._connect(None, "127.0.0.1", port), log)
print(process.pid, flush=True)
sys.stdin.readline()
observe._end(process)
print("; ".join(cleanup.sweep(journal)), flush=True)
"""
"""Starts Prometheus as an observed run does, but for namespace and port, until a line is read."""


@contextmanager
def started(
    tmp_path: Path, *, by_user: bool = False
) -> Iterator[tuple[subprocess.Popen[str], int, int, dict[str, str]]]:
    """The process that started Prometheus, its id, its port, and the environment.

    ``by_user``: as a user without capabilities, who finds it on the path.
    """
    _, port = own_place()
    path = f"{prometheus.require().parent}:{os.environ['PATH']}"
    own = {"NARROWS_STATE": str(tmp_path / "state"), "TMPDIR": str(tmp_path), "PATH": path}
    environment = with_package(**own)
    command = [sys.executable, "-c", PROGRAM, str(port), str(tmp_path)]
    with subprocess.Popen(
        as_user(tmp_path, *command) if by_user else command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        try:
            yield parent, int(parent.stdout.readline()), port, environment
        finally:
            parent.kill()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own need not be."""
    with tempfile.TemporaryDirectory(prefix="narrows-observed-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds; a zombie has ended."""
    give_up = time.monotonic() + 20.0
    while time.monotonic() < give_up:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_it_has_no_rights_listens_on_loopback_alone_and_leaves_nothing(folder: Path) -> None:
    with started(folder) as (parent, pid, port, _):
        with connected(pid, port):
            assert rights_of(pid) == promised("docker, root")["Prometheus"]
        assert_gains_nothing(pid)
        assert listening(pid) == {("127.0.0.1", port)}
        (home,) = folder.glob("narrows-*-observe")
        assert (home.stat().st_mode & 0o777, (home / "data").stat().st_uid) == (0o711, observe.USER)
        said, _ = parent.communicate("\n", timeout=60)
        assert gone(pid) and not home.exists()
        assert re.search(rf"folder {home}", said)


def test_a_user_without_capabilities_starts_it_too(folder: Path) -> None:
    """Members of the group ``docker`` do: it is that user's, and shares the namespaces of whoever starts it."""
    os.chown(folder, USER, USER)
    with started(folder, by_user=True) as (parent, pid, port, _):
        with connected(pid, port):
            rights = rights_of(pid, USER, other=parent.pid)
        assert rights == promised("docker, member")["Prometheus"]
        assert_gains_nothing(pid)
        assert listening(pid) == {("127.0.0.1", port)}
        said, _ = parent.communicate("\n", timeout=60)
        assert gone(pid) and "folder " in said and not list(folder.glob("narrows-*-observe"))


def test_it_ends_with_a_parent_that_is_killed_and_clean_removes_its_folder(folder: Path) -> None:
    with started(folder) as (parent, pid, _, environment):
        (home,) = folder.glob("narrows-*-observe")
        parent.kill()
        parent.wait(60)
        assert gone(pid) and home.exists()
    clean = [sys.executable, "-m", "testbed", "clean"]
    said = [
        subprocess.run(clean, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert f"folder {home}" in said[0] and "nothing to clean" in said[1]
    assert not home.exists()
