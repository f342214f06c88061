"""What a command is started with, and what comes while it works: it ends once, with a sentence, and harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import SCENARIO

from testbed import ASIDE
from testbed.bench.links.unprivileged import replay
from testbed.errors import ExperimentError
from testbed.process import environment, guard, is_trusted, module_command

FULL = "testbed: nothing more can be written: No space left on device. What was recorded before is kept\n"
SIGNALLED = """
import atexit, os, signal, sys, time
from testbed import __main__ as command

def five():
    for _ in range(5):
        os.kill(os.getpid(), signal.SIG{name})

def on_import(event, what, module):
    if event == "import" and what[0] == module:
        five()

class Wrapping:
    def __set_name__(self, *_):
        five()

class Late:
    def __del__(self):
        five()

def destroyed(**_):
    Late()
    time.sleep(60)

def act(work):
    from testbed import cli
    cli.application = lambda: work

{when}
sys.argv = ["testbed", "algorithms"]
command.main()
"""
"""A command that signals itself five times at some point."""


@pytest.mark.parametrize(
    ("when", "name"),
    [
        ("sys.addaudithook(lambda *of: on_import(*of, 'typer'))", "INT"),
        ("sys.addaudithook(lambda *of: on_import(*of, 'numpy'))", "HUP"),
        ("act(lambda **_: type('Wrapped', (), {'x': Wrapping()}))", "TERM"),
        ("act(destroyed)", "INT"),
        ("act(destroyed)", "HUP"),
    ],
)
def test_five_signals_end_a_command_once(when: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SIGNALLED.format(when=when, name=name)],
        capture_output=True, text=True, check=False, env=environment(), timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr == f"testbed: interrupted by SIG{name}\n"


@pytest.mark.parametrize(
    ("when", "name"),
    [
        ("atexit.register(five)", "INT"),
        ("signal.signal(signal.SIGHUP, signal.SIG_IGN); act(lambda **_: five())", "HUP"),
    ],
)
def test_signals_at_the_end_and_those_that_nohup_ignores_change_nothing(
    when: str, name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SIGNALLED.format(when=when, name=name)],
        capture_output=True, text=True, check=False, env=environment(), timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (name == "HUP") or "adatopk" in done.stdout


def test_signals_do_not_reach_processes_of_parallel_runs_as_they_start(tmp_path: Path) -> None:
    """Each is sent one before it imports anything."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if '--multiprocessing-fork' in sys.orig_argv:\n"
        f"    open({str(tmp_path / 'sent')!r}, 'a').close()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(steps=1, algorithms="none"))
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    options = ["--fabric", "sim", "--seed", "1-2", "--parallel", "2", "--no-figures"]
    done = run(tmp_path, "run", "scenario.yaml", *options, PYTHONPATH=path)
    assert done.returncode == 0 and "(2 of 2 runs done)" in done.stderr, done.stderr
    assert (tmp_path / "sent").exists() and "Traceback" not in done.stderr


def run(
    folder: Path, *arguments: str, shell: str = 'exec "$@"', **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", shell, "sh", *module_command("testbed", *arguments)], stdin=subprocess.DEVNULL,
        cwd=folder, capture_output=True, text=True, check=False, timeout=100, env=environment() | variables,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["PYTHONINSPECT", "PYTHONWARNINGS"])
def test_variables_of_python_are_its_users_alone(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, "--version", **{name: "error"})
    assert (done.returncode, done.stderr) == (0, "")
    script = (
        "import os, warnings; from testbed import __main__ as command; command._begin_anew()\n"
        "from testbed.process import users_environment\n"
        "warnings.simplefilter('ignore', append=True); warnings.warn('an error once', stacklevel=1)\n"
        f"print(os.environ.get({name!r}), users_environment()[{name!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, env=environment(**{name: "error"}),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "None error\n"), done.stderr


@pytest.mark.parametrize(
    "verb", [["init", "made"], ["--version"], ["algorithms", "--help"], ["clean"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full_is_said(
    tmp_path: Path, verb: list[str], unbuffered: str
) -> None:
    given = {"NARROWS_STATE": str(tmp_path / "state"), "PYTHONUNBUFFERED": unbuffered}
    for folder, where in (("out", ">/dev/full"), ("both", ">/dev/full 2>&1")):
        (tmp_path / folder).mkdir()
        done = run(tmp_path / folder, *verb, shell=f'exec "$@" {where}', **given)
        assert done.returncode == 1
        if folder == "out":
            assert done.stderr == FULL


def test_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--version", PYTHONUNBUFFERED="", shell='{ "$@"; echo $? >code; } | exec <&-'
    )
    assert (done.stderr, (tmp_path / "code").read_text()) == ("", "1\n")


def test_without_a_umask_others_cannot_change_what_a_run_makes(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(steps=1, algorithms="none"))
    variables = {
        "NARROWS_STATE": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = ["run", "scenario.yaml", "--fabric", "sim"]
    done = run(tmp_path, *command, shell='umask 0; exec "$@"', **variables)
    made = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert done.returncode == 0 and len(made) > 10, done.stderr
    assert [path for path in made if path.stat().st_mode & 0o002] == []


def test_programs_are_not_looked_for_where_others_can_put_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    sign = tmp_path / "sign"
    for folder in (tmp_path, shared):
        for name in ("docker", "docker-compose", "dockerd", "ip", "iperf3", "nvidia-smi"):
            (folder / name).write_text(f"#!/bin/sh\necho $0 >>{sign}\n")
            (folder / name).chmod(0o755)
    path = f".::{shared}:{os.environ['PATH']}" if os.geteuid() == 0 else f".::{os.environ['PATH']}"
    done = run(tmp_path, "doctor", "--json", PATH=path)
    (check,) = (one for one in json.loads(done.stdout)["checks"] if one["name"] == "search path")
    assert not sign.exists(), sign.read_text()
    assert not check["ok"] and "'.', ''" in check["detail"], check
    assert (str(shared) in check["detail"]) == (os.geteuid() == 0)


@pytest.mark.root
def test_a_folder_of_programs_is_roots_with_all_above_it_and_what_a_link_led_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice/kept", "own/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "alice/bin").symlink_to(tmp_path / "own/bin")
    (tmp_path / "bin").symlink_to("alice/bin")
    (tmp_path / "roots").symlink_to("own/../own/bin")
    (tmp_path / "round").symlink_to("round")
    os.chown(tmp_path / "alice", 4711, 4711)
    assert is_trusted(str(tmp_path / "own/bin")) and is_trusted(str(tmp_path / "roots"))
    assert not is_trusted(str(tmp_path / "round")) and not is_trusted(str(tmp_path / "bin"))
    assert not is_trusted(str(tmp_path / "alice/kept")), "she can put another there"
    monkeypatch.setenv(
        "PATH", f"{tmp_path}/alice/bin:{tmp_path}/bin:{tmp_path}/alice/kept:/usr/bin"
    )
    before = os.umask(0o022)
    try:
        guard()
    finally:
        os.umask(before)
        os.environ.pop(f"{ASIDE}PATH", None)
    assert not is_trusted(str(tmp_path / "alice/bin")), "she can have it lead elsewhere"
    assert os.environ["PATH"] == "/usr/bin"


def test_what_lies_in_a_users_folder_is_not_imported_by_a_replay_in_it(tmp_path: Path) -> None:
    """``bench link`` replays as root in a folder that belongs to a user."""
    sign = tmp_path / "sign"
    for name in ("json", "subprocess", "testbed"):
        (tmp_path / f"{name}.py").write_text(f"open({str(sign)!r}, 'w').close()\n")
    with pytest.raises(ExperimentError, match=r"none\.yaml"):
        replay(None, tmp_path, "none.yaml", 1.0)
    assert not sign.exists()
