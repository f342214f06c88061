"""Suite ``unprivileged``: whether the same scenario gets the same certificate as root and as a
user without any rights.
"""

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

from testbed.bench.links.training import scenario, written
from testbed.bench.results import ResultCheck, Setup, Suite, at_most, link, median
from testbed.errors import ExperimentError, MachineError
from testbed.process import environment, module_command
from testbed.runner.exec.launch_spec import by_sudo

_NAME = "nobody"
_PATIENCE_S = 300.0
_CAN_RUN = (
    "import subprocess, sys; "
    "subprocess.run([sys.executable, '-P', '-c', 'import testbed, torch'], check=True)"
)


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
    """Who called sudo, or else nobody. Raises MachineError without root, or where they have no
    Python."""
    if os.geteuid() != 0:
        raise MachineError("only root can be somebody else as well", fix="Run as root (sudo).")
    entry = pwd.getpwnam(_NAME)
    uid = by_sudo("SUDO_UID") or entry.pw_uid
    gid = by_sudo("SUDO_GID") or entry.pw_gid
    for python in _interpreters():
        tried = subprocess.run(
            [*_become(uid, gid), python, "-P", "-c", _CAN_RUN],
            env=_environment(Path(tempfile.gettempdir())),
            capture_output=True,
            check=False,
        )
        if tried.returncode == 0:
            return User(uid, gid, python)
    raise MachineError(
        f"user {uid} cannot run this Python ({sys.executable})",
        fix="Have it where everybody may read it.",
    )


@contextmanager
def folder_of_user(whose: User, content: Path) -> Iterator[Path]:
    """A folder of that user's with copies of the files in ``content``; gone with the ``with``
    block."""
    folder = Path(tempfile.mkdtemp(prefix="narrows-"))
    try:
        for file in content.iterdir():
            if file.is_file():
                shutil.copy(file, folder)
        for path in (folder, *folder.iterdir()):
            os.chown(path, whose.uid, whose.gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replay(whose: User | None, where: Path, scenario: str, seconds: float) -> dict[str, Any]:
    """Return what ``testbed replay --json`` says as that user, or as root. Raises
    ExperimentError."""
    interpreter, *arguments = module_command(
        *("testbed", "replay", scenario, "--json", "--seconds", f"{seconds:g}", "--quiet"),
        *("--out", "user" if whose else "root"),
    )
    command = [interpreter, *arguments] if whose is None else whose.command(*arguments)
    done = subprocess.run(
        command,
        cwd=where,
        env=_environment(where) if whose else environment(),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S + seconds,
        check=False,
    )
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
    for folder in ("/usr/bin", "/usr/local/bin"):
        if (path := Path(folder, name)).exists():
            yield str(path)


WHO = ("root", "user")
RATIO_APART, MAPE_APART, LATE_APART_MS = 0.005, 0.005, 2.5
"""A quarter of what the certificate allows."""


def run(setup: Setup) -> Suite:
    """``testbed replay`` by either in turn. Raises MachineError where there is nobody else to
    be."""
    seconds = setup.seconds(20.0, 3.0)
    path = written(setup, "agreement", _scenario())
    somebody = user()
    with folder_of_user(somebody, path.parent) as folder:
        runs = setup.in_turns(
            "agreement: ",
            WHO,
            lambda who, _: replay(None if who == "root" else somebody, folder, path.name, seconds),
        )
    rows = [row for who in WHO for row in _rows(who, runs[who])]
    return Suite(
        "Root and an unprivileged user: the same certificate",
        rows,
        checks(runs),
        {
            "repeat": setup.repetitions,
            "seconds": seconds,
            "judged": [
                {"who": who, **{key: run[key] for key in ("verdict", "reasons", "measures")}}
                for who in WHO
                for run in runs[who]
            ],
        },
    )


def _scenario() -> dict[str, Any]:
    """One worker and the server at 20 Mbit/s: light, since it is not the load that is compared."""
    content = scenario()
    return {
        **content,
        "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 1}},
        "links": {"default": link("20 Mbit/s")},
        "events": [{**event, "scale": 0.2} for event in content["events"]],
    }


def _rows(who: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    verdicts = " ".join(sorted({run["verdict"] for run in runs}))
    return [
        {"who": who, "link": name, **_medians(runs, name), "verdicts": verdicts}
        for name in _link_names(runs)
    ]


def _medians(runs: list[dict[str, Any]], name: str) -> dict[str, float | None]:
    links = [link for run in runs for link in run["links"] if _link_name(link) == name]
    return {
        "ratio": median(link["ratio"] for link in links),
        "mape_1s": median(link["mape_1s"] for link in links),
        "late_p99_ms": median((link["lateness_ms"] or {}).get("p99") for link in links),
    }


def checks(runs: dict[str, list[dict[str, Any]]]) -> list[ResultCheck]:
    """The largest differences over all link directions, and whether the verdicts are the same, and
    not invalid. Pure."""
    apart = {key: _apart(runs, key) for key in ("ratio", "mape_1s", "late_p99_ms")}
    verdicts = [[run["verdict"] for run in runs[who]] for who in WHO]
    differ = float(set(verdicts[0]) != set(verdicts[1]))
    invalid = sum(each.count("invalid") for each in verdicts)
    return [
        at_most("delivered/asked, largest difference", apart["ratio"], RATIO_APART),
        at_most("error per 1 s, largest difference", apart["mape_1s"], MAPE_APART),
        at_most("lateness p99, largest difference, ms", apart["late_p99_ms"], LATE_APART_MS),
        at_most("verdicts differ (1: yes)", differ, 0),
        at_most("invalid replays, of either", invalid, 0),
    ]


def _apart(runs: dict[str, list[dict[str, Any]]], key: str) -> float | None:
    """The largest difference; None where it is known of nothing, or of a link direction for one of
    them alone."""
    names = dict.fromkeys(name for who in WHO for name in _link_names(runs[who]))
    pairs = [tuple(_medians(runs[who], name)[key] for who in WHO) for name in names]
    if any((root is None) != (user is None) for root, user in pairs):
        return None
    both = [abs(root - user) for root, user in pairs if root is not None and user is not None]
    return max(both, default=None)


def _link_names(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(_link_name(link) for run in runs for link in run["links"]))


def _link_name(link: dict[str, Any]) -> str:
    return f"{link['link']} {link['direction']}"
