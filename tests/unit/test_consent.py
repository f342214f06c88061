"""Setup by root says what it will do to the machine, and does it only if nobody who is there objects."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.process import environment

pytestmark = pytest.mark.root
APT_GET = '#!/bin/sh\necho "apt-get $*" >> "$NARROWS_TOLD"\nexit 1\n'
APT_CACHE = '#!/bin/sh\necho "  Candidate: 1"\n'


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """The only programs are an ``apt-get`` that notes what it is told, and installs nothing, and its ``apt-cache``."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "sh").symlink_to("/bin/sh")
    return tmp_path / "told"


BY_MAKE, BY_A_USER = ("-m", "testbed.host"), ("-m", "testbed", "setup")


def setup(
    told: Path,
    *options: str,
    answer: str | None = None,
    command: tuple[str, ...] = BY_MAKE,
    **more: str,
) -> tuple[int, str]:
    """Set an engine up where there is none, the answer given on a terminal (None: there is no terminal).

    Returns the exit code and what was said.
    """
    known = {
        name: value
        for name, value in environment().items()
        if name not in ("CI", "PYTHONDONTWRITEBYTECODE")
    }
    variables = {**known, "PATH": str(told.parent / "bin"), "NARROWS_TOLD": str(told), **more}
    ours, theirs = pty.openpty()
    try:
        if answer is not None:
            os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, *command, *options, "engine"],
            stdin=subprocess.DEVNULL if answer is None else theirs,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=variables, timeout=60,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stdout


@pytest.mark.parametrize("command", [BY_MAKE, BY_A_USER])
@pytest.mark.parametrize("answer", ["", "n", "what?"])
def test_nothing_is_done_without_a_yes(told: Path, answer: str, command: tuple[str, ...]) -> None:
    code, said = setup(told, answer=answer, command=command)
    assert code == 3 and not told.exists()
    assert "installs with apt-get:" in said and "docker-compose" in said
    assert "starts" in said and "testbed setup stop" in said
    assert "nothing was installed or started" in said and "--fabric netns" in said


def test_a_yes_is_enough(told: Path) -> None:
    code, said = setup(told, answer="y")
    assert code == 3 and "Go on?" in said
    assert told.read_text().startswith("apt-get update")


@pytest.mark.parametrize(
    ("options", "more", "answer"),
    [((), {}, None), ((), {"CI": "true"}, "n"), (("--yes",), {}, "n")],
)
def test_nobody_is_asked_where_nobody_answers(
    told: Path, options: tuple[str, ...], more: dict[str, str], answer: str | None
) -> None:
    code, said = setup(told, *options, answer=answer, **more)
    assert code == 3 and "Go on?" not in said
    assert "this changes the machine" in said and "docker-compose" in said
    assert told.read_text().startswith("apt-get update")


def test_nothing_is_said_where_nothing_is_changed(told: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testbed.host", "environment"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env={**environment(), "PATH": str(told.parent / "bin"), "NARROWS_TOLD": str(told)}, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
