"""Errors are sentences with an exit code."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import SCENARIO
from unprivileged import USER

from testbed.errors import (
    ExperimentError,
    GradientError,
    InputError,
    LinkError,
    MachineError,
    NarrowsError,
    NodeLost,
    WireError,
    shortage,
)
from testbed.process import environment, module_command, seconds_given


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (NarrowsError("no"), 1, "no"),
        (InputError("no"), 2, "no"),
        (InputError("no", where="a.yaml:3", hint="Write yes"), 2, "a.yaml:3: no. Write yes"),
        (MachineError("no engine", fix="Run `make setup`"), 3, "no engine. Run `make setup`"),
        (ExperimentError("no"), 1, "no"),
        (
            NodeLost("worker-1", None, "killed"),
            1,
            "'worker-1' was lost before its first step: killed",
        ),
        (NodeLost("worker-1", 7, "killed"), 1, "node 'worker-1' was lost at step 7: killed"),
        (
            LinkError("a", "up", requested="1", actual="2"),
            1,
            "link 'a' up: asked for 1, the kernel holds 2",
        ),
        (WireError("no"), 1, "no"),
        (GradientError("NaN in 'w'"), 1, "NaN in 'w'"),
    ],
)
def test_errors_say_what_they_are_for(error: NarrowsError, code: int, sentence: str) -> None:
    assert error.exit_code == code
    assert str(error).endswith(sentence)


SHORT = """
import os, resource, threading
from testbed import cli

def act(**_):
    if os.geteuid() == 0:
        os.setresuid({user}, {user}, {user})
    resource.setrlimit(resource.RLIMIT_{limit}, ({most}, {most}))
    {action}

cli.application = lambda: act
cli.main([])
"""
"""A command that an unprivileged user carries out with little of something."""


@pytest.mark.parametrize(
    ("limit", "most", "action", "sentence"),
    [
        ("NPROC", 1, "threading.Thread(target=print).start()", "processes or threads. Raise `ulimit -u`"),
        ("NPROC", 1, "os.fork()", "processes or threads. Raise `ulimit -u`"),
        ("NOFILE", 3, "os.dup(1)", "open files. Raise `ulimit -n`"),
        ("AS", 1 << 20, "bytearray(1 << 30)", "memory. Raise `ulimit -v`"),
    ],
)  # fmt: skip
def test_what_the_system_has_no_more_of_is_said(
    tmp_path: Path, limit: str, most: int, action: str, sentence: str
) -> None:
    script = tmp_path / "short.py"
    script.write_text(SHORT.format(user=USER, limit=limit, most=most, action=action))
    command = [sys.executable, "-P", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(), timeout=60
    )
    assert done.stderr.startswith(f"testbed: the system gives this user no more {sentence}")
    assert done.returncode == MachineError.exit_code and "Traceback" not in done.stderr


def test_an_error_of_ours_is_none_of_the_systems() -> None:
    assert shortage(RuntimeError("no")) is None
    assert shortage(OSError(errno.EPERM, "no")) is None
    one, other = socket.socketpair()
    with one, other, pytest.raises(BlockingIOError) as caught:
        one.recv(1, socket.MSG_DONTWAIT)
    assert shortage(caught.value) is None


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_whose_standard_files_are_closed_does_its_work(
    closed: str, tmp_path: Path
) -> None:
    script = f'"$0" -P -m testbed algorithms {closed}; echo $? > code'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "code").read_text() == "0\n"


def test_what_is_printed_goes_into_no_file_that_is_opened_later(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from testbed import cli\n"
        "cli._open_standard_files()\n"
        f"opened = os.open({str(tmp_path / 'file')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "print('said', flush=True)\n"
        "os.system('echo said')\n"
        "os.write(opened, b'written')\n"
        "sys.exit(opened)\n"
    )
    command = ["sh", "-c", '"$0" -P -c "$1" >&-', sys.executable, script]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, env=environment())
    assert done.returncode > 2, done.stderr
    assert (tmp_path / "file").read_text() == "written"


@pytest.mark.parametrize("given", ["x", "nan", "-1", "0", "1e400", "1e7", "\x1b]0;hostile\x07"])
def test_a_variable_that_gives_no_seconds_is_named(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("NARROWS_BEGIN_S", given)
    with pytest.raises(InputError, match=r"^NARROWS_BEGIN_S: .* is no number of seconds") as said:
        seconds_given("NARROWS_BEGIN_S", 600.0)
    assert "\x1b" not in str(said.value)
    for text, seconds in (("8", 8.0), ("", 600.0)):
        monkeypatch.setenv("NARROWS_BEGIN_S", text)
        assert seconds_given("NARROWS_BEGIN_S", 600.0) == seconds


@pytest.mark.parametrize("name, verb", [("NARROWS_BEGIN_S", "exec"), ("NARROWS_START_S", "run")])
def test_commands_say_so(name: str, verb: str) -> None:
    command = module_command("testbed", verb, "scenario.yaml", *["true"] * (verb == "exec"))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(**{name: "soon"})
    )
    assert done.returncode == 2 and done.stderr.startswith(f"testbed: {name}: 'soon'"), done.stderr


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(steps=1, algorithms="none"))
    command = module_command("testbed", "exec", str(scenario), "--", "true")
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *command],
        cwd=tmp_path / "gone", capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("testbed: the working directory is not there any more")


@pytest.mark.parametrize(
    ("limit", "verb", "said"),
    [
        (0, ("exec", "--", "true"), "testbed: nothing more can be written"),
        (4, ("run", "--fabric", "sim"), "testbed: nothing more can be written in runs/"),
    ],
)
def test_files_that_may_not_grow_are_named(
    tmp_path: Path, limit: int, verb: tuple[str, ...], said: str
) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(steps=1, algorithms="none"))
    command = module_command("testbed", verb[0], "scenario.yaml", *verb[1:])
    done = subprocess.run(
        ["sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", *command],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
    )  # fmt: skip
    assert done.returncode in (1, 3), done.stderr
    assert said in done.stderr and ": File too large" in done.stderr
    assert "Traceback" not in done.stderr
