"""What a guest passes through, what it keeps to itself, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from guest_rig import boot, folders, guest

from testbed.guest.order import OUTPUT
from testbed.setup.paths import ROOT

_NOBODY = 65534


def test_streams_and_status_pass_through() -> None:
    code = "import sys; print('x' * 3_000_000); print('aside', file=sys.stderr); sys.exit(7)"
    done = boot("--", sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (7, "aside\n")
    assert done.stdout == "x" * 3_000_000 + "\n"


def test_only_named_folders_are_written_to(tmp_path: Path) -> None:
    kept, dropped = tmp_path / "kept", tmp_path / "dropped"
    kept.mkdir(), dropped.mkdir()
    script = f"echo 1 > {kept}/file; echo 1 > {dropped}/file; echo 1 > /etc/narrows-was-here; rm {__file__}"
    done = boot("--writable", str(kept), "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in kept.iterdir()] == ["file"] and not list(dropped.iterdir())
    assert not Path("/etc/narrows-was-here").exists() and Path(__file__).exists()


def test_guest_has_every_impairment_and_its_own_network() -> None:
    script = (
        "ip link add a0 type veth peer name b0 && ip link add i0 type ifb && ip link add r0 type bridge &&"
        "tc qdisc add dev a0 root netem delay 5ms loss 1% && tc qdisc add dev b0 ingress &&"
        "tc qdisc add dev lo root handle 1: htb && ip -json link"
    )
    done = boot("--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    names = {link["ifname"] for link in json.loads(done.stdout)}
    assert {"lo", "a0", "b0", "i0", "r0"} <= names and "eth0" not in names


def test_missing_program_is_told() -> None:
    done = boot("narrows-has-no-such-command")
    assert done.returncode == 3
    assert "'narrows-has-no-such-command': No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_kernel_panic_is_told() -> None:
    done = boot("--", "sh", "-c", "echo c > /proc/sysrq-trigger")
    assert done.returncode == 3 and "Kernel panic" in done.stderr


def test_killed_command_has_the_shells_status() -> None:
    assert boot("--", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


def test_limit_ends_it() -> None:
    done = boot("--limit", "4", "--", "sleep", "100")
    assert done.returncode == 1 and "longer than 4 s" in done.stderr


def test_too_much_memory_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testbed.guest", "--memory", "100000", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and "does not fit" in done.stderr


def _started(*command: str) -> tuple[subprocess.Popen[str], Path]:
    """A guest whose command has written something, and the folder that it shares."""
    before = folders()
    process = subprocess.Popen(
        guest("--", *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        for folder in folders() - before:
            output = folder / OUTPUT
            if output.exists() and output.stat().st_size:
                return process, folder
        time.sleep(0.05)
    raise AssertionError(process.communicate()[1])


def test_signal_reaches_the_command() -> None:
    script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.2; done"
    process, _ = _started("sh", "-c", script)
    process.terminate()
    output, _ = process.communicate()
    assert (process.returncode, output) == (3, "ready\ncaught\n")


def test_second_signal_waits_for_nothing() -> None:
    process, folder = _started("sh", "-c", "trap '' TERM; echo ready; sleep 100")
    process.terminate()
    while not list(folder.glob("stop-*")):
        time.sleep(0.01)
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1 and "before its command had ended" in errors


def test_kill_leaves_nothing() -> None:
    """What does not stay is seen by a fixture."""
    process, folder = _started("sh", "-c", "echo ready; sleep 100")
    process.kill()
    process.communicate()
    give_up = time.monotonic() + 5
    while folder.exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not folder.exists()


@pytest.mark.root
@pytest.mark.optional
def test_needs_no_root() -> None:
    python = shutil.which("python3", path="/usr/bin")
    if python is None or not _may_read(python):
        pytest.skip("another user has no Python here, or may not read the checkout")
    script = "id -u; tc qdisc add dev lo root netem delay 1ms && cat /etc/shadow"
    done = subprocess.run(
        [python, "-m", "testbed.guest", "--memory", "1", "--", "sh", "-c", script],
        cwd=ROOT,
        user=_NOBODY,
        group=_NOBODY,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": f"/tmp/narrows-{os.getpid()}"},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(f"/tmp/narrows-{os.getpid()}", ignore_errors=True)
    assert done.stdout == "0\n" and "Permission denied" in done.stderr, done.stderr
    assert done.returncode == 1


def _may_read(python: str) -> bool:
    code = "import sys, testbed.guest.boot; sys.exit(sys.version_info < (3, 11))"
    done = subprocess.run([python, "-c", code], cwd=ROOT, user=_NOBODY, check=False)
    return done.returncode == 0
