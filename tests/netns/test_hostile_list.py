"""Seventy hostile things: nothing escalates, nothing is left, nothing ends in a traceback.

The list is ``hostile_list.ITEMS``. Those whose place is another test name it; all others are tried here, as root and as a
user: what a job can do by one job that tries it all (``hostile_job``), what a file or an argument can do by many commands
(``hostile_cases``, ``hostile_records``), which one process carries out for each of the two (``hostile_commands``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hostile_cases import Case, commands, plant_settings
from hostile_commands import LATE
from hostile_list import ITEMS
from hostile_records import records, spoil
from private_host import PrivateHost
from unprivileged import USER, as_user

from testbed.runner.signals import CORES_PER_RUN

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
WHO = ("root", "user")
DOCUMENTED = {0, 1, 2, 3}
SCENARIO = """
name: hostile
nodes: {worker: {role: worker, count: 2, limits: {processes: 200, memory: 1 GiB}}}
links: {default: {up: {rate: 100 Mbit/s, queue: 50 ms}, down: {rate: 100 Mbit/s, queue: 50 ms}}}
"""
PLANTED = "import os\nwith open({sign!r}, 'a') as file:\n    file.write(__file__ + '\\n')\nraise SystemExit('planted')\n"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
"""What a terminal would obey."""


@dataclass
class Trial:
    """One of the two who try it all, on a host of its own."""

    who: str
    host: PrivateHost
    before: str
    terminal: tuple[int, int]
    strange: Path
    """The working folder, by a name that no shell likes."""
    sleeper: subprocess.Popen[str]
    commands: subprocess.Popen[str]
    """``hostile_commands``, which waits for cases."""
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    tried: dict[str, list[str]] = field(default_factory=dict)
    begun: list[Path] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.host.folder

    @property
    def outside(self) -> Path:
        """What nothing may be written to."""
        return self.home / "outside"

    def begin(self, **batches: dict[str, Case]) -> None:
        """Have these commands tried, each batch in its order beside the others."""
        files = []
        for name, cases in batches.items():
            self.cases |= cases
            files.append(self.home / f"{name}.cases")
            files[-1].write_text(json.dumps(cases))
        self.own()
        assert self.commands.stdin is not None
        self.commands.stdin.writelines(f"{file}\n" for file in files)
        self.commands.stdin.flush()
        self.begun += files

    def finish(self) -> None:
        """Wait for them, however long all take, and keep what came of each."""
        assert self.commands.stdout is not None
        waited_for, said = {f"{file}\n" for file in self.begun}, []
        while waited_for and (line := self.commands.stdout.readline()):
            said += [line] if line not in waited_for else []
            waited_for.discard(line)
        for file in self.begun:
            results = file.with_suffix(".results")
            lines = results.read_text().splitlines() if results.exists() else []
            tried: dict[str, dict[str, Any]] = dict(map(json.loads, lines))
            for name in json.loads(file.read_text()):
                ended = name in tried and tried[name]["code"] != LATE
                assert ended, f"{name!r} as {self.who} did not end: {tried.get(name)} {said}"
            self.results |= tried
        self.begun.clear()

    def end(self) -> None:
        """Have no more commands tried."""
        assert self.commands.stdin is not None
        self.commands.stdin.close()
        self.commands.wait()

    def close(self) -> None:
        """Have everything end, and remove it."""
        self.host.close()
        self.sleeper.kill()
        self.sleeper.wait()
        self.end()
        assert self.commands.stdout is not None
        self.commands.stdout.close()
        for descriptor in self.terminal:
            os.close(descriptor)
        shutil.rmtree(self.home)

    def own(self) -> None:
        """Have everything in the home be the user's who tries it."""
        if self.who == "user":
            give(self.home)


def give(home: Path) -> None:
    """To the user, with all that is in it."""
    for path in (home, *home.rglob("*")):
        with suppress(FileNotFoundError):  # a library's lock, meanwhile let go
            os.chown(path, USER, USER, follow_symlinks=False)


def standing(who: str) -> Trial:
    home = Path(tempfile.mkdtemp(prefix="narrows-hostile-", dir="/srv"))
    # not in /tmp, where a node has files of its own
    home.chmod(0o755)
    strange = home / "a b$HOME\n..;é'\"x"
    (strange / "really").mkdir(parents=True)
    (strange / "link").symlink_to("really")
    (strange / "links.yaml").write_text(SCENARIO)
    for name in ("outside", "outside/log", "precious", "precious/narrows-x"):
        (home / name).mkdir()
    for name in (".profile", "outside/manifest.json", "outside/log/worker-0.log", "precious/file"):
        (home / name).write_text("as it was\n")
    plant_settings(home, home / "outside/sign")  # beside what starts as well
    host = PrivateHost(home)
    if who == "root":
        script = "ip netns add others && ip link add others0 type dummy && chmod 1777 /run/lock"
        host.start("sh", "-c", script).communicate()
    before = host.state()
    sleeper = subprocess.Popen(["sleep", "1000"], text=True)
    (home / "precious/cgroup.procs").write_text(f"{sleeper.pid}\n")
    master, slave = os.openpty()
    os.fchown(slave, USER if who == "user" else 0, -1)
    process = waiting(who, home, host)
    return Trial(who, host, before, (master, slave), strange, sleeper, process)


def waiting(who: str, home: Path, host: PrivateHost) -> subprocess.Popen[str]:
    """Start what carries out commands, once for all of them."""
    if who == "user":
        give(home)
    command = [sys.executable, str(HERE / "hostile_commands.py")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    whole = as_user(home, *command) if who == "user" else command
    return host.start("env", f"PATH={path}", f"HOME={home}", *whole, stdin=subprocess.PIPE)


def the_job(trial: Trial) -> dict[str, Any]:
    """The command whose job tries it all."""
    sign = str(trial.strange / "sign")
    plan = {
        "sentinels": [
            "/etc/cron.d/narrows-hostile", "/usr/bin/narrows-hostile", str(trial.home / ".profile"),
            str(trial.outside / "manifest.json"), str(HERE.parents[1] / "testbed/mark.py"),
        ],
        "outside": str(trial.outside), "records": "really", "terminal": os.ttyname(trial.terminal[1]),
        "pid": os.getpid(),
        "planted": {name: PLANTED.format(sign=sign) for name in ("sitecustomize.py", "json.py", "torch.py")},
    }  # fmt: skip
    job = ["python", "-P", str(HERE / "hostile_job.py"), json.dumps(plan)]
    options = ["--out", "link", "--read", str(HERE)]
    return {
        "arguments": ["exec", "links.yaml", *options, "--", *job], "folder": str(trial.strange), "terminal": True,
    }  # fmt: skip


@pytest.fixture(scope="module")
def both() -> Iterator[dict[str, Trial]]:
    """All that is tried, by both side by side. Beside a job, which waits for 10 s until it is killed, other commands run."""
    trials: dict[str, Trial] = {}
    try:
        for who in WHO:
            trials[who] = standing(who)
        for trial in trials.values():
            few = (os.cpu_count() or 1) < CORES_PER_RUN
            cases = commands(trial.home, few_processors=few)
            trial.begin(job={"job": the_job(trial)}, commands=cases)
        for trial in trials.values():
            trial.finish()
            trial.begin(records=others_records(trial))
        for trial in trials.values():
            trial.finish()
            trial.end()
            for path in sorted(trial.strange.glob("tried-?.json")):
                for name, (how, what) in json.loads(path.read_text()).items():
                    if how == "done" or name not in trial.tried:  # one rank that could is enough
                        trial.tried[name] = [how, what]
        yield trials
    finally:
        for trial in trials.values():
            trial.close()


def others_records(trial: Trial) -> dict[str, Case]:
    """Commands over the records of the job as somebody else's, spoiled in many ways."""
    (run,) = trial.strange.glob("really/runs/*_job_*")
    cases = records(trial.home, run)
    for name in cases:
        spoil(trial.home / "records" / name, run, name, trial.outside)
    return cases


@pytest.fixture(params=WHO)
def trial(request: pytest.FixtureRequest, both: dict[str, Trial]) -> Trial:
    return both[str(request.param)]


def test_no_command_ends_in_a_traceback_or_an_undocumented_code(trial: Trial) -> None:
    wrong = {
        name: result
        for name, result in trial.results.items()
        if result["code"] not in DOCUMENTED or "Traceback" in result["said"]
    }
    assert not wrong, wrong
    assert len(trial.results) > 60


def test_every_command_is_refused_that_should_be(trial: Trial) -> None:
    wrong = {
        name: (trial.results[name], case["arguments"])
        for name, case in trial.cases.items()
        if ("codes" in case and trial.results[name]["code"] not in case["codes"])
        or case.get("words", "") not in trial.results[name]["said"]
    }
    assert not wrong, wrong


def test_nothing_that_a_terminal_obeys_is_said(trial: Trial) -> None:
    colours = re.compile("\x1b\\[[0-9;:]*m")
    wrong = {
        name: result["said"]
        for name, result in trial.results.items()
        if OBEYED.search(colours.sub("", result["said"]).replace("\r\n", "\n"))
    }
    assert not wrong, wrong
    assert "\x1b[31mred\x1b[0m" in trial.results["job"]["said"], "colours are not kept"


DONE = {
    "descriptors": "[0, 1, 2]", "control group": None,
    "memory of process 1": None, "killed process 1": None, "strangers": None, "marks": None,
    "took the link away": None, "terminal made": None, "spoke into process 1": None,
}  # fmt: skip
"""What a job may do, and does no harm."""


def test_a_job_can_do_nothing_of_it(trial: Trial) -> None:
    assert len(trial.tried) > 40, trial.results["job"]
    done = {name: what for name, (how, what) in trial.tried.items() if how == "done"}
    own = {name for name in done if name.startswith("made /") and name != "made / writable"}
    assert done.keys() - own <= DONE.keys(), done
    assert {name: text for name, text in DONE.items() if text} == {
        "descriptors": done["descriptors"]
    }
    refused, connected = json.loads(done["strangers"].replace("(", "[").replace(")", "]"))
    assert refused + connected == 200 and connected > 0, "no stranger came to the control network"
    assert done["marks"] == "3", "not every connection with nonsense got to the marks' socket"


def test_the_records_are_where_they_were_begun_and_whole(trial: Trial) -> None:
    (run,) = trial.strange.glob("really/runs/*_job_*")
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["scenario"] == "hostile"
    assert json.loads((run / "summary.json").read_text())["ended"] in (True, False)
    assert "\x1b]0;hostile" in (run / "log/worker-0.log").read_text(), "output is kept as it came"
    assert trial.results["job"]["code"] == 1
    assert "rank 0 on node 'worker-0' ended with status 3" in trial.results["job"]["said"]


def test_a_page_of_others_records_has_their_words_as_text(trial: Trial) -> None:
    page = (trial.home / "records/page/report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "[link=http://x]" in trial.results["report html"]["said"]


def test_nothing_else_was_changed(trial: Trial) -> None:
    kept = [".profile", "outside/manifest.json", "outside/log/worker-0.log", "precious/file"]
    assert {(trial.home / name).read_text() for name in kept} == {"as it was\n"}
    inside = {str(path.relative_to(trial.outside)) for path in trial.outside.rglob("*")}
    assert inside == {"manifest.json", "log", "log/worker-0.log"}
    assert not list(Path("/etc/cron.d").glob("narrows-*"))
    assert trial.sleeper.poll() is None, "a process that a journal named was ended"
    sign = trial.strange / "sign"
    assert not sign.exists(), sign.read_text()


def test_nothing_is_left(trial: Trial) -> None:
    assert trial.host.settle(trial.before) == ""
    groups = set(re.findall(r"/narrows-[^/\\]+", trial.tried["control group"][1]))
    for folder in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        assert not [name for name in groups if Path(f"{folder}{name}").exists()], folder


def test_the_list_has_seventy_items_and_every_test_that_it_names(both: dict[str, Trial]) -> None:
    assert [item.number for item in ITEMS] == list(range(1, 71))
    for item in ITEMS:
        for name in item.elsewhere:
            file, _, test = name.partition("::")
            assert f"def {test}(" in (HERE.parent / file).read_text(), name
        for trial in both.values():
            for name in item.cases:
                assert name in trial.results, (item.number, name)
            for name in item.attempts:
                assert name in trial.tried, (item.number, name)
        assert item.elsewhere or item.cases or item.attempts, item
