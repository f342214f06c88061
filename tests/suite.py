"""The whole suite in lanes: ``python tests/suite.py [--nightly | --coverage | --times] [--lane NAME]… [-- PYTEST OPTIONS]``.

First what measures time and judges runs, alone: a verdict counts every process that waits for a processor. Then, beside unit tests that
let all others go first (``processors.py``), what measures time without a verdict, and what judges runs without measuring: other tests
of links hold locks of the kernel that the agent waits for. Tests in containers that judge runs follow. Then all other tests of links, in workers each alone on a machine of its own as far as it can see (``alone.sh``), beside
those of containers and those of a swarm, whose engines are the tests' own (``swarm/lab.py``).

``build/`` keeps each lane's output, with the time of every test, which the terminal does not show, and its JUnit file. At most three tests that failed are carried out
once more, alone: what passes then is named and counted as passed, but not in ``--nightly``. The last line has pytest's form and
counts all lanes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as Xml
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import coverage_report as coverage
from lane_output import without_durations
from processors import favoured, yielding
from verdict_rig import BESIDE

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
ALONE = ROOT / "tests" / "alone.sh"
PARALLEL = 3
"""Workers of each parallel lane, whose tests wait as much as they compute."""
ORDER = ("failed", "error", "passed", "skipped")
"""Of outcomes in pytest's closing line."""
FAULTS_SEED = "NARROWS_FAULTS_SEED"
"""Environment: chooses among the faults of tests/netns/fault_cases.py."""
SECOND_TRIES = 3
"""Tests that may fail for the moment that they ran in, of thousands; if more failed, all of them have."""
EXCUSED_SHARE = 0.15
"""Of runs on real links that may be excused for want of a processor before the suite says that this machine is too busy."""


@dataclass(frozen=True)
class Lane:
    """A part of the suite that one pytest carries out."""

    name: str
    marks: str
    options: tuple[str, ...] = ()
    alone: bool = False
    """Whether nothing else may take the processors from it, but what gives way."""

    @property
    def junit(self) -> Path:
        """Where its results are."""
        return BUILD / f"junit-{self.name}.xml"

    @property
    def log(self) -> Path:
        """Where its output is."""
        return BUILD / f"{self.name}.log"

    @property
    def environment(self) -> dict[str, str]:
        """Of its pytest."""
        others = {name: text for name, text in os.environ.items() if name != BESIDE}
        return others if self.alone else {**others, BESIDE: "1"}

    def command(self, options: list[str]) -> list[str]:
        """The pytest that carries it out."""
        program = (
            ["coverage", "run", "-m", "pytest"] if os.environ.get("COVERAGE_FILE") else ["pytest"]
        )
        return [
            sys.executable, "-m", *program, "-q", "-m", self.marks, f"--junitxml={self.junit}", "--durations=0",
            "-o", f"cache_dir={BUILD / 'cache' / self.name}",
            *self.options, *options,
        ]  # fmt: skip


def workers(count: int) -> tuple[str, ...]:
    """Options of a lane with so many workers: as root they do not see each other."""
    python = f"//python={ALONE} {sys.executable}" if os.geteuid() == 0 else ""
    return ("--dist", "loadfile", "--no-loadscope-reorder", "--tx", f"{count}*popen{python}")


FOLDERS = sorted(
    {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/test_*.py")} - {"tests/unit"}
)
"""Those of tests that need more than Python."""
TIMED = Lane("timed", "timed and judged", tuple(FOLDERS), alone=True)
EXACT = Lane("exact", "timed and not judged", tuple(FOLDERS), alone=True)
IN_CONTAINERS = Lane("containers", "judged and not timed", ("tests/docker",))
DOCKER = Lane("docker", "not judged and not timed", ("tests/docker",))
SWARM = Lane("swarm", "not timed", ("tests/swarm",))
ON_LINKS = [name for name in FOLDERS if name not in ("tests/docker", "tests/swarm")]
JUDGED = Lane("judged", "judged and not timed", (*workers(1), *ON_LINKS))
LINKS = Lane("links", "not judged and not timed", (*workers(PARALLEL), *ON_LINKS))
UNIT = Lane("unit", "", (*workers(PARALLEL), "tests/unit"))
LANES = [TIMED, EXACT, JUDGED, IN_CONTAINERS, UNIT, LINKS, DOCKER, SWARM]
SECOND = Lane("second", "", alone=True)
"""Of those that failed in one of the lanes."""


def main() -> int:
    """Run the lanes; returns the worst exit code."""
    parser = argparse.ArgumentParser(prog="tests/suite.py")
    parser.add_argument(
        "--nightly", action="store_true", help="with what is too long for every day"
    )
    parser.add_argument("options", nargs="*", help="for pytest, after --")
    parser.add_argument(
        "--times", action="store_true", help="only say where the last run's time went"
    )
    parser.add_argument("--coverage", action="store_true", help="also say what no test runs")
    parser.add_argument(
        "--lane",
        action="append",
        choices=[lane.name for lane in LANES],
        help="only this one; may be repeated, so that a long night can be had in parts",
    )
    given = parser.parse_args()
    if given.times:
        print("\n".join(slowest(LANES, 40)) or f"no results in {BUILD}: run `make test` first")
        return 0
    if given.nightly:
        os.environ["NARROWS_NIGHTLY"] = "1"
    lanes = [lane for lane in LANES if given.lane is None or lane.name in given.lane]
    BUILD.mkdir(exist_ok=True)
    verdicts = BUILD / "verdicts.jsonl"
    again = BUILD / "tried-again.txt"
    for earlier in (verdicts, again, SECOND.junit, *(lane.junit for lane in lanes)):
        earlier.unlink(missing_ok=True)
    # hundreds of processes import the same modules: compiled once they start in half the time
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["NARROWS_VERDICTS"] = str(verdicts)
    os.environ["NARROWS_TRIED_AGAIN"] = str(again)
    # one choice of faults for all workers, also around midnight
    seed = os.environ.get(FAULTS_SEED) or str(datetime.now(UTC).date().toordinal())
    os.environ[FAULTS_SEED] = seed
    if given.coverage:
        coverage.prepare()
    begun = time.monotonic()
    codes = [shown(lane, given.options) for lane in lanes if lane is TIMED]
    with favoured() as before, yielding() as behind:
        if not behind:  # unit tests would not give way
            codes += [shown(lane, given.options) for lane in lanes if lane is EXACT]
        unit = Beside(UNIT, given.options, behind) if UNIT in lanes else None
        if behind:
            codes += [shown(lane, given.options, before) for lane in lanes if lane is EXACT]
        codes += [shown(lane, given.options, before) for lane in lanes if lane is JUDGED]
        codes += [shown(lane, given.options) for lane in lanes if lane is IN_CONTAINERS]
        docker = Beside(DOCKER, given.options) if DOCKER in lanes else None
        swarm = Beside(SWARM, given.options) if SWARM in lanes else None
        codes += [shown(lane, given.options) for lane in lanes if lane is LINKS]
        codes += [beside.code() for beside in (docker, swarm, unit) if beside is not None]
    # 5: no test has these marks; below 0: a signal ended it, as a shell says it
    codes = [0 if code == 5 else code if code >= 0 else 128 - code for code in codes]
    passed: set[str] = set()
    if max(codes) == 1 and not given.nightly and (tests := second_tries(lanes)):
        codes = [shown(SECOND, tests)]
        passed = {name(case) for case in cases([SECOND]) if outcome(case) == "passed"}
        if codes == [0]:  # files that could not be imported, too
            passed |= {test for test in tests if "::" not in test}
            codes = [int(not passed.issuperset(tests))]  # what was skipped has not passed
    for line in (
        *slowest(lanes, 10),
        *tried_again(again),
        *(f"passed at its second try alone, and failed before: {test}" for test in sorted(passed)),
        f"faults were chosen by {FAULTS_SEED}={seed}, which plays the same again",
        excused(verdicts),
        counted(lanes, time.monotonic() - begun, passed),
    ):
        print(line)
    return max(*codes, coverage.report() if given.coverage else 0)


class Beside:
    """A lane that is carried out beside others; its output is seen when it has ended."""

    def __init__(self, lane: Lane, options: list[str], prefix: Sequence[str] = ()) -> None:
        self.lane = lane
        self._command = [*prefix, *lane.command(options)]
        self._code = 1
        self._thread = threading.Thread(target=self._carry_out)
        self._thread.start()

    def code(self) -> int:
        """Pytest's exit code, after its end."""
        self._thread.join()
        print(f"▸ {self.lane.name}", flush=True)
        for data in without_durations([self.lane.log.read_bytes()]):
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return self._code

    def _carry_out(self) -> None:
        with self.lane.log.open("w") as log:
            self._code = subprocess.run(
                self._command,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self.lane.environment,
                check=False,
            ).returncode


def shown(lane: Lane, options: list[str], prefix: Sequence[str] = ()) -> int:
    """Carry a lane out, its output in its log and, but for durations, here. Returns pytest's exit code. ``prefix``: of its command."""
    command = [*prefix, *lane.command(options)]
    print(f"▸ {lane.name}", flush=True)
    with lane.log.open("wb") as log, subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=lane.environment
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for data in without_durations(_logged(process.stdout.fileno(), log)):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
    return process.returncode


def _logged(output: int, log: BinaryIO) -> Iterator[bytes]:
    """What comes, once it is in the log."""
    while data := os.read(output, 4096):
        log.write(data)
        log.flush()
        yield data


def cases(lanes: list[Lane]) -> list[Xml.Element]:
    """Every test case of the lanes that were carried out."""
    return [
        case
        for lane in lanes
        if lane.junit.exists()
        for case in Xml.parse(lane.junit).iter("testcase")
    ]


def seconds_by_file(lanes: list[Lane]) -> Counter[str]:
    """How long the tests of each file took together."""
    taken: Counter[str] = Counter()
    for case in cases(lanes):
        taken[name(case).split("::")[0]] += float(case.get("time", 0.0))  # type: ignore[assignment]
    return taken


def file_of(dotted: str) -> str:
    """The file of a JUnit class name, which has the classes in it as well."""
    parts = dotted.split(".")
    count = next((n for n, part in enumerate(parts, 1) if part.startswith("test_")), len(parts))
    return "/".join(parts[:count]) + ".py"


def name(case: Xml.Element) -> str:
    """Pytest's name for a test case."""
    dotted = case.get("classname", "")
    if not dotted:  # of a file that could not be imported
        return file_of(case.get("name", ""))
    file = file_of(dotted)
    classes = dotted.split(".")[file.count("/") + 1 :]
    return "::".join([file, *classes, case.get("name", "")])


def second_tries(lanes: list[Lane]) -> list[str]:
    """Names of the tests that failed, if they are few."""
    failed = sorted({name(case) for case in cases(lanes) if outcome(case) in ORDER[:2]})
    return failed if len(failed) <= SECOND_TRIES else []


def slowest(lanes: list[Lane], count: int) -> list[str]:
    """The files that took longest, in words."""
    return [f"{taken:7.1f} s  {name}" for name, taken in seconds_by_file(lanes).most_common(count)]


def excused(verdicts: Path) -> str:
    """How many runs on real links could not be valid since this machine had no processor for them."""
    runs = (
        [json.loads(line) for line in verdicts.read_text().splitlines()]
        if verdicts.exists()
        else []
    )
    count, stolen = sum(run["excused"] for run in runs), sum(run["stolen"] for run in runs)
    share = count / max(1, len(runs))
    warning = (
        ": this machine is too busy for what the suite is to show" if share > EXCUSED_SHARE else ""
    )
    return (
        f"{count} of {len(runs)} runs on real links excused for want of a processor ({share:.0%}), "
        f"{stolen} of them when others on the same hardware had it{warning}"
    )


def tried_again(file: Path) -> list[str]:
    """Which tests of time were tried again, since they lacked processors."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        *(f"tried again: {line}" for line in lines),
        f"{len(lines)} tries of tests of time were no measurement",
    ]


OUTCOMES = {"failure": "failed", "error": "error", "skipped": "skipped"}
"""What JUnit has below a test case that did not pass, the worst first, and pytest's word for it."""


def counted(lanes: list[Lane], seconds: float, passed: Collection[str] = ()) -> str:
    """Pytest's closing line, of all lanes. ``passed``: the names of those that did at their second try."""
    outcomes = Counter("passed" if name(case) in passed else outcome(case) for case in cases(lanes))
    words = [f"{outcomes[kind]} {kind}" for kind in ORDER if outcomes[kind]]
    return f"{', '.join(words) or 'no tests ran'} in {seconds:.2f}s"


def outcome(case: Xml.Element) -> str:
    """Pytest's word for what became of a test."""
    kinds = {child.tag for child in case}
    return next((word for tag, word in OUTCOMES.items() if tag in kinds), "passed")


if __name__ == "__main__":
    sys.exit(main())
