"""What a guest passes through, what it keeps to itself, and how it is ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from guest_rig import MARK, OURS, boot, guest, started, until_gone, until_written

from testbed.host.paths import ROOT

NOBODY = 65534
LONG = 3_000_000
SCRIPT = """
id -u > {kept}/user
echo 1 > {dropped}/file; echo 1 > /etc/narrows-was-here; rm {file}
cat /etc/shadow > /dev/null 2> {kept}/refused
ip link add a0 type veth peer name b0 && ip link add i0 type ifb && ip link add r0 type bridge &&
tc qdisc add dev a0 root netem delay 5ms loss 1% && tc qdisc add dev b0 ingress &&
tc qdisc add dev lo root handle 1: htb && ip -json link > {kept}/links
head -c {long} /dev/zero | tr '\\0' x; echo
echo aside >&2
kill -SEGV $$
"""


@dataclass
class Looked:
    """A guest that did all that is looked at here. ``user``: who booted it, None: whoever runs the tests."""

    done: subprocess.CompletedProcess[str]
    kept: Path
    dropped: Path
    user: int | None


@pytest.fixture(scope="module")
def looked() -> Iterator[Looked]:
    """Booted by a user without rights where there can be one."""
    with tempfile.TemporaryDirectory(prefix="narrows-guest-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        kept, dropped = folder / "kept", folder / "dropped"
        for each in (kept, dropped):
            each.mkdir()
            each.chmod(0o777)
        script = SCRIPT.format(kept=kept, dropped=dropped, file=__file__, long=LONG)
        options = ["--writable", str(kept), "--", "sh", "-c", script]
        python = shutil.which("python3", path="/usr/bin")
        if python is None or not _may_read(python):
            yield Looked(boot(*options), kept, dropped, None)
            return
        env = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(dropped / "cache"), MARK: OURS}
        done = subprocess.run(
            [python, *guest(*options)[1:]],
            cwd=ROOT,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(dropped / "cache", ignore_errors=True)
        yield Looked(done, kept, dropped, NOBODY)


def _may_read(python: str) -> bool:
    """Whether there is a Python for a user without rights, who may read the checkout."""
    if os.geteuid() != 0:
        return False
    code = "import sys, testbed.host.uml.guest; sys.exit(sys.version_info < (3, 11))"
    done = subprocess.run([python, "-c", code], cwd=ROOT, user=NOBODY, check=False)
    return done.returncode == 0


def test_streams_and_a_killed_commands_status_pass_through(looked: Looked) -> None:
    """The status is what a shell would give."""
    assert looked.done.stderr == "aside\n"
    assert looked.done.stdout == "x" * LONG + "\n"
    assert looked.done.returncode == 128 + signal.SIGSEGV


def test_only_named_folders_are_written_to(looked: Looked) -> None:
    assert {path.name for path in looked.kept.iterdir()} == {"user", "refused", "links"}
    assert not list(looked.dropped.iterdir())
    assert not Path("/etc/narrows-was-here").exists() and Path(__file__).exists()


def test_guest_has_every_impairment_and_its_own_network(looked: Looked) -> None:
    names = {link["ifname"] for link in json.loads((looked.kept / "links").read_text())}
    assert {"lo", "a0", "b0", "i0", "r0"} <= names and "eth0" not in names


@pytest.mark.root
@pytest.mark.optional
def test_needs_no_root(looked: Looked) -> None:
    if looked.user is None:
        pytest.skip("another user has no Python here, or may not read the checkout")
    assert (looked.kept / "user").read_text() == "0\n"
    assert "Permission denied" in (looked.kept / "refused").read_text()


def test_signal_reaches_the_command_and_the_second_waits_for_nothing() -> None:
    script = "trap 'echo caught' TERM; echo ready; while :; do sleep 0.2; done"
    process, folder = started(guest("--", "sh", "-c", script))
    process.terminate()
    until_written(process, folder, "caught")
    assert process.poll() is None
    process.terminate()
    output, errors = process.communicate(timeout=30)
    assert output == "ready\ncaught\n"
    assert process.returncode == 1 and "before its command had ended" in errors


def test_too_much_memory_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testbed.host.uml", "--memory", "100000", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and "does not fit" in done.stderr


@pytest.mark.nightly
def test_missing_program_is_told() -> None:
    done = boot("narrows-has-no-such-command")
    assert done.returncode == 3
    assert "'narrows-has-no-such-command': No such file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_kernel_panic_is_told() -> None:
    done = boot("--", "sh", "-c", "echo c > /proc/sysrq-trigger")
    assert done.returncode == 3 and "Kernel panic" in done.stderr


@pytest.mark.nightly
def test_limit_ends_it() -> None:
    done = boot("--limit", "4", "--", "sleep", "100")
    assert done.returncode == 1 and "longer than 4 s" in done.stderr


@pytest.mark.nightly
def test_status_after_a_signal_passes_through() -> None:
    script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.2; done"
    process, _ = started(guest("--", "sh", "-c", script))
    process.terminate()
    output, _ = process.communicate()
    assert (process.returncode, output) == (3, "ready\ncaught\n")


@pytest.mark.nightly
def test_kill_leaves_nothing() -> None:
    process, _ = started(guest("--", "sh", "-c", "echo ready; sleep 100"))
    process.kill()
    process.communicate()
    until_gone()
