"""Being somebody without rights for one command: for suites that compare such a user with root."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError, MachineError
from testbed.process import environment

_NAME = "nobody"
_PATIENCE_S = 300.0
_CAN_RUN = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import testbed, torch'], check=True)"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody, and a Python interpreter that they can run."""

    uid: int
    gid: int
    python: str

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs this interpreter as this user."""
        return [*_become(self.uid, self.gid), self.python, *arguments]


def user() -> User:
    """Who called sudo, or else nobody. Raises MachineError without root, or where they have no Python."""
    if os.geteuid() != 0:
        raise MachineError("only root can be somebody else as well", fix="Run as root (sudo).")
    entry = pwd.getpwnam(_NAME)
    uid = int(os.environ.get("SUDO_UID", entry.pw_uid)) or entry.pw_uid
    gid = int(os.environ.get("SUDO_GID", entry.pw_gid)) or entry.pw_gid
    for python in _interpreters():
        tried = subprocess.run(
            [*_become(uid, gid), python, "-c", _CAN_RUN],
            env=_environment(Path(tempfile.gettempdir())), capture_output=True, check=False,
        )  # fmt: skip
        if tried.returncode == 0:
            return User(uid, gid, python)
    raise MachineError(
        f"user {uid} cannot run this Python ({sys.executable})",
        fix="Have it where everybody may read it.",
    )


@contextmanager
def folder(whose: User, content: Path) -> Iterator[Path]:
    """A folder of that user's with copies of the files in ``content``; gone with the ``with`` block."""
    made = Path(tempfile.mkdtemp(prefix="narrows-"))
    try:
        for file in content.iterdir():
            if file.is_file():
                shutil.copy(file, made)
        for path in (made, *made.iterdir()):
            os.chown(path, whose.uid, whose.gid)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def replay(whose: User | None, where: Path, scenario: str, seconds: float) -> dict[str, Any]:
    """What ``testbed replay --json`` says as that user, or as root. Raises ExperimentError."""
    arguments = [
        "-m",
        "testbed",
        "replay",
        scenario,
        "--json",
        "--seconds",
        f"{seconds:g}",
        "--quiet",
    ]
    arguments += ["--out", "user" if whose else "root"]
    command = [sys.executable, *arguments] if whose is None else whose.command(*arguments)
    done = subprocess.run(
        command, cwd=where, env=_environment(where) if whose else environment(),
        capture_output=True, text=True, timeout=_PATIENCE_S + seconds, check=False,
    )  # fmt: skip
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:]
        raise ExperimentError(f"testbed replay ended with {done.returncode}: {last}") from None
    return said


def _become(uid: int, gid: int) -> Sequence[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"]


def _environment(home: Path) -> dict[str, str]:
    """For an interpreter that may not know this one's packages."""
    known = environment(
        HOME=str(home), NARROWS_STATE=str(home / "state"), XDG_RUNTIME_DIR=str(home)
    )
    packages = [sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")]
    path = [known["PYTHONPATH"], *dict.fromkeys(packages)]
    return {**known, "PYTHONPATH": os.pathsep.join(path)}


def _interpreters() -> Iterator[str]:
    yield sys.executable
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for place in ("/usr/bin", "/usr/local/bin"):
        if (found := Path(place, name)).exists():
            yield str(found)
