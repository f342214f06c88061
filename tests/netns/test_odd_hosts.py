"""The demo on hosts that are not like a developer's: odd names, no DNS, nothing at home, a clock that is set."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from private_host import PrivateHost
from verdict_rig import accepted_runs

from testbed.records.run_directory import read_events, read_jsonl

DEMO = Path(__file__).parents[2] / "scenarios" / "demo.yaml"
SHORTER = {
    "count: 4": "count: 2",
    "pace: 120 ms": "pace: 300 ms",
    "steps: 70": "steps: {steps}",
    "evaluate_every: 10": "evaluate_every: 5",
    "slow: {worker-1: 1.1, worker-2: 1.2, worker-3: 1.3}": "slow: {worker-1: 1.05}",
    "algorithms: [none, topk-0.15, adatopk, {name: adalag-w1, from: adalag, controller: {weight: 1}}]": "algorithms: [{algorithms}]",
}
ODD = """
set -e
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"
mount --bind "$2" "$(realpath /etc/resolv.conf)"
mount -t tmpfs tmpfs "$3"
! touch "$1/x" 2>/dev/null && [ ! -s /etc/resolv.conf ]
shift 3
exec "$@"
"""
"""A home that is read-only, an empty resolv.conf, a folder for temporary files on a file system of its own."""
HOUR_S = 3600.0


def short_demo(folder: Path, steps: int, *algorithms: str) -> Path:
    """The demo with fewer workers, steps and algorithms, and the trace that it names."""
    text = DEMO.read_text(encoding="utf-8")
    for before, after in SHORTER.items():
        assert before in text
        text = text.replace(before, after)
    text = text.replace("{steps}", str(steps)).replace("{algorithms}", ", ".join(algorithms))
    shutil.copytree(DEMO.parent / "traces", folder / "traces")
    path = folder / "short demo ä.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PrivateHost]:
    made = PrivateHost(tmp_path)
    yield made
    made.close()


def finished(
    process: subprocess.Popen[str], out: Path, while_training: Callable[[Path], None] | None = None
) -> tuple[int, str]:
    """Exit code and output of a run whose records go to ``out``."""
    try:
        if while_training is not None:
            while_training(out)
        said, _ = process.communicate(timeout=120)
    except BaseException:
        process.send_signal(signal.SIGINT)
        raise
    return process.returncode, said


def sound(out: Path, code: int, steps: int, algorithms: int) -> None:
    """Verdicts as they may be; every record is there, and times go one way."""
    runs = sorted(out.glob("runs/*"))
    assert len(runs) == algorithms
    accepted_runs(runs, code)
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        assert abs(started_s(manifest) - time.time()) < HOUR_S / 2
        made = read_events(run)["step"]
        for node in {record["node"] for record in made}:
            own = [record for record in made if record["node"] == node]
            assert [record["step"] for record in own] == list(range(1, steps + 1))
            times = [time_s for record in own for time_s in (record["start_s"], record["end_s"])]
            assert times == sorted(times) and times[0] >= 0 and times[-1] < 60
        links = [record for record in read_jsonl(run / "links.jsonl") if "to_s" in record]
        assert links and all(record["from_s"] <= record["to_s"] < 90 for record in links)


def started_s(manifest: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(manifest["started_utc"]).timestamp()


@pytest.mark.judged
@pytest.mark.timeout(150)
def test_names_home_dns_and_language(host: PrivateHost, tmp_path: Path) -> None:
    here, home, temporary = (tmp_path / name for name in ("a b ä", "no home", "temporary ü"))
    for folder in (here, home, temporary):
        folder.mkdir()
    (tmp_path / "empty").touch()
    scenario = short_demo(here, 12, "topk-0.15")
    odd = {
        "HOME": home, "TMPDIR": temporary, "LANG": "C", "LC_ALL": "C", "XDG_CACHE_HOME": home / "cache",
        "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",
    }  # fmt: skip
    before = host.state()
    command = host.start(
        "sh", "-c", ODD, "sh", str(home), str(tmp_path / "empty"), str(temporary),
        "env", *(f"{name}={value}" for name, value in odd.items()),
        sys.executable, "-m", "testbed", "run", str(scenario), "--fabric", "netns", "--out", str(here / "out 1"),
    )  # fmt: skip
    code, said = finished(command, here / "out 1")
    assert "Traceback" not in said and "Warning" not in said, said
    sound(here / "out 1", code, 12, 1)
    (run,) = (here / "out 1" / "runs").iterdir()
    assert (run / "scenario.yaml").exists() and "topk-0.15" in run.name
    (comparison,) = (here / "out 1" / "comparisons").iterdir()
    assert list((comparison / "figures").glob("*.png"))
    mounts = "umount -l " + " ".join(f"'{path}'" for path in (home, temporary))
    host.start("sh", "-c", f'{mounts}; umount -l "$(realpath /etc/resolv.conf)"').communicate(
        timeout=30
    )
    assert host.settle(before) == ""


@contextmanager
def clock_put_right() -> Iterator[Callable[[float], None]]:
    """Sets this machine's clock so many seconds from the true time; at the end it is right again."""
    real_s, monotonic_s = time.time(), time.monotonic()

    def set_by(offset_s: float) -> None:
        time.clock_settime(time.CLOCK_REALTIME, real_s + time.monotonic() - monotonic_s + offset_s)

    try:
        set_by(0.0)
    except PermissionError:
        pytest.skip("the clock of this machine may not be set")
    try:
        yield set_by
    finally:
        set_by(0.0)


@pytest.mark.nightly
@pytest.mark.timed
@pytest.mark.judged
@pytest.mark.optional
@pytest.mark.timeout(150)
def test_a_clock_that_is_set_in_mid_run(host: PrivateHost, tmp_path: Path) -> None:
    """An hour on, then an hour before the true time; nothing else may run meanwhile."""
    scenario, out = short_demo(tmp_path, 40, "topk-0.15"), tmp_path / "out"
    before = host.state()
    command = host.testbed("run", str(scenario), "--fabric", "netns", "--no-figures", "--out", str(out))  # fmt: skip

    def until(count: int) -> None:
        give_up = time.monotonic() + 60.0
        while made(out) < count:
            assert time.monotonic() < give_up and command.poll() is None, command.communicate()
            time.sleep(0.02)

    with clock_put_right() as set_by:
        until(6)
        set_by(HOUR_S)
        until(24)
        set_by(-HOUR_S)
        until(44)
        set_by(0.0)
        code, said = finished(command, out)
    assert "Traceback" not in said, said
    sound(out, code, 40, 1)
    assert host.settle(before) == ""


def made(out: Path) -> int:
    """Steps of all workers so far."""
    return sum(
        file.read_text().count('"kind":"step"') for file in out.glob("runs/*/events/worker-*.jsonl")
    )
