"""What the suite says of itself: closing line, slowest files, excused runs, modules hardly run."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as Xml
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import suite
from coverage_report import complaints
from lane_output import without_durations
from long_files import BESIDE_TIMES, LONG, limit_s
from processors import IDLE, WEIGHT, favoured, yielding
from verdict_rig import BESIDE

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="one" time="1.5"/>
<testcase classname="tests.unit.test_a.TestGroup" name="two" time="0.25"><failure message="no"/></testcase>
<testcase classname="tests.netns.test_b" name="three" time="9.0"><skipped message="why"/></testcase>
<testcase classname="tests.netns.test_b" name="four" time="0.5"><error message="at setup"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[suite.Lane]:
    monkeypatch.setattr(suite, "BUILD", tmp_path)
    made = [suite.Lane("carried-out", ""), suite.Lane("not-carried-out", "")]
    made[0].junit.write_text(JUNIT)
    return made


def test_the_last_line_counts_every_lane(lanes: list[suite.Lane]) -> None:
    assert suite.counted(lanes, 12.345) == "1 failed, 1 error, 1 passed, 1 skipped in 12.35s"
    assert suite.counted(lanes[1:], 1.0) == "no tests ran in 1.00s"


def test_a_second_try_is_for_a_few_and_named_as_pytest_does(lanes: list[suite.Lane]) -> None:
    failed = ["tests/netns/test_b.py::four", "tests/unit/test_a.py::TestGroup::two"]
    assert suite.second_tries(lanes) == failed
    line = suite.counted(lanes, 1.0, failed[:1])
    assert line == "1 failed, 2 passed, 1 skipped in 1.00s"
    many = "".join(
        f'<testcase classname="tests.unit.test_a" name="n{n}"><failure/></testcase>'
        for n in range(suite.SECOND_TRIES + 1)
    )
    lanes[0].junit.write_text(f"<testsuites><testsuite>{many}</testsuite></testsuites>")
    assert suite.second_tries(lanes) == []


def only_lane(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *options: str
) -> suite.Lane:
    """The suite of ``folder``, whose file of tests in ``tests/unit`` is in the lane that is returned."""
    test = folder / "tests" / "unit" / "test_some.py"
    test.parent.mkdir(parents=True)
    test.write_text(text)
    other = folder / "tests" / "other" / "test_other.py"
    other.parent.mkdir(parents=True)
    other.write_text("def test_other():\n    pass\n")
    for name in ("NARROWS_VERDICTS", "NARROWS_TRIED_AGAIN", "NARROWS_FAULTS_SEED"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(suite, "ROOT", folder)
    monkeypatch.setattr(suite, "BUILD", folder / "build")
    only = suite.Lane("only", "", (*options, "tests/unit"))
    none = suite.Lane("none", "nothing_has_this", ("tests/other",))
    for name in ("TIMED", "EXACT", "JUDGED", "IN_CONTAINERS", "LINKS", "DOCKER", "SWARM"):
        monkeypatch.setattr(suite, name, none)
    monkeypatch.setattr(suite, "UNIT", only)
    monkeypatch.setattr(suite, "LANES", [only])
    monkeypatch.setattr("sys.argv", ["tests/suite.py"])
    return only


@pytest.mark.parametrize(
    ("fails", "code", "words"),
    [
        (1, 0, "passed at its second try alone, and failed before: tests/unit/test_some.py::test_it[a/b]"),
        (2, 1, "1 failed"),
    ],
)  # fmt: skip
def test_what_failed_by_chance_is_carried_out_again(
    fails: int, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    tries = tmp_path / "tries"
    tries.write_text("")
    text = (
        f"import pytest, time\nfrom pathlib import Path\nTRIES = Path({str(tries)!r})\n"
        '@pytest.mark.parametrize("n", ["a/b"])\ndef test_it(n):\n'
        '    TRIES.write_text(TRIES.read_text() + "x"); time.sleep(0.01)\n'
        f"    assert len(TRIES.read_text()) > {fails}\n"
    )
    only = only_lane(tmp_path, monkeypatch, text)
    assert suite.main() == code
    assert len(tries.read_text()) == 2
    printed = capfd.readouterr().out
    assert words in printed
    seed = os.environ["NARROWS_FAULTS_SEED"]
    last = printed.splitlines()[-3:]
    assert seed and f"NARROWS_FAULTS_SEED={seed}," in last[0] and "excused" in last[1]
    assert "slowest durations" not in printed and "s call " not in printed
    for lane in (only, suite.SECOND):
        assert "s call     tests/unit/test_some.py::test_it[a/b]" in lane.log.read_text()


def test_a_lane_can_be_had_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    only = only_lane(tmp_path, monkeypatch, "def test_it():\n    pass\n")
    links = suite.Lane("links", "", ("tests/other",))
    links.junit.parent.mkdir()
    links.junit.write_text(JUNIT)
    monkeypatch.setattr(suite, "LINKS", links)
    monkeypatch.setattr(suite, "LANES", [links, only])
    monkeypatch.setattr("sys.argv", ["tests/suite.py", "--lane", "only"])
    assert suite.main() == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("1 passed in ")
    assert links.junit.read_text() == JUNIT, "what another lane has shown stays"


def test_a_lane_that_a_signal_ends_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it made one by second tries of what has failed in another."""
    only_lane(tmp_path, monkeypatch, "import os\ndef test_it():\n    os.kill(os.getpid(), 9)\n")
    assert suite.main() == 128 + 9


OUTPUT = b"""..F                                                                      [100%]
=================================== FAILURES ===================================
=== a heading of a test's own
0.12s is a line of its own, too
============================== slowest durations ===============================
12.34s call     tests/unit/test_a.py::test_b
0.01s setup    tests/unit/test_a.py::test_b

(7 durations < 0.005s hidden.  Use -vv to show these durations.)
LAST"""
CLOSINGS = (
    b"1 failed, 2 passed in 3.00s\n",
    b"=========================== short test summary info ============================\nFAILED x\n",
)


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_terminal_has_all_but_durations(size: int, closing: bytes) -> None:
    output = OUTPUT.replace(b"LAST", closing)
    chunks = [output[n : n + size] for n in range(0, len(output), size)]
    kept = output[: output.index(b"============================== slowest")] + closing
    assert b"".join(without_durations(chunks)) == kept
    assert next(without_durations(iter([b".."]))) == b"..", "nobody waits for the end of a line"


def test_files_that_take_long_are_there() -> None:
    assert {path.name for path in Path(suite.ROOT, "tests").glob("*/test_*.py")} >= LONG


def test_the_slowest_files_come_first(lanes: list[suite.Lane]) -> None:
    assert suite.slowest(lanes, 1) == ["    9.5 s  tests/netns/test_b.py"]
    assert [line.split()[-1] for line in suite.slowest(lanes, 9)] == [
        "tests/netns/test_b.py",
        "tests/unit/test_a.py",
    ]


@pytest.mark.parametrize(("excused", "warned"), [(0, False), (1, False), (2, True)])
def test_excused_runs_are_counted(tmp_path: Path, excused: int, warned: bool) -> None:
    file = tmp_path / "verdicts.jsonl"
    runs = [{"excused": n < excused, "stolen": n == 1 < excused} for n in range(10)]
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    said = suite.excused(file)
    assert said.startswith(
        f"{excused} of 10 runs on real links excused for want of a processor ({excused}0%)".replace(
            "(00%)", "(0%)"
        )
    )
    assert f", {excused // 2} of them when others on the same hardware had it" in said
    assert ("too busy" in said) == warned


def test_no_run_is_none_excused(tmp_path: Path) -> None:
    assert suite.excused(tmp_path / "not-there").startswith("0 of 0 runs")


def test_every_folder_of_tests_is_in_a_lane() -> None:
    folders = {
        f"tests/{path.parent.name}" for path in Path(suite.ROOT, "tests").glob("*/test_*.py")
    }
    assert folders == {*suite.FOLDERS, "tests/unit"}
    assert {"tests/unit", "tests/docker", "tests/gpu"} <= {
        *suite.LINKS.options,
        *suite.DOCKER.options,
        *suite.SWARM.options,
        *suite.UNIT.options,
    }


def test_a_lane_beside_others_has_its_log_and_its_code(
    lanes: list[suite.Lane], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite.Lane, "command", lambda *_: ["sh", "-c", "echo said; exit 3"])
    assert suite.Beside(lanes[0], []).code() == 3
    assert lanes[0].log.read_text() == "said\n" and "said" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shares", "listed", "words"),
    [
        ({"a.py": 80.0}, [], []),
        ({"a.py": 49.9}, ["a.py"], []),
        ({"a.py": 49.9}, [], ["a.py: 50 % is run: test it"]),
        ({"a.py": 50.0}, ["a.py"], ["a.py: enough is run: take it off the list"]),
        ({}, ["a.py"], ["a.py: there is no such module: take it off the list"]),
    ],
)
def test_the_list_of_modules_hardly_run_may_only_shrink(
    shares: dict[str, float], listed: list[str], words: list[str]
) -> None:
    assert complaints(shares, listed) == words


@pytest.mark.root
@pytest.mark.parametrize(("group", "settings"), [(favoured, WEIGHT), (yielding, IDLE)])
def test_a_group_is_for_what_is_started_with_it(
    group: Callable[[], AbstractContextManager[list[str]]],
    settings: dict[str, str],
    tmp_path: Path,
) -> None:
    with group() as prefix:
        if not prefix:
            pytest.skip("this user or kernel has no control groups to give")
        folder = Path(prefix[-1])
        groups = tmp_path / "groups"
        command = [*prefix, "sh", "-c", 'cat /proc/self/cgroup > "$1"', "sh", str(groups)]
        subprocess.run(command, check=True)
        assert f"/{folder.name}\n" in groups.read_text()
        given = {key: (folder / key).read_text() for key in settings if (folder / key).exists()}
        assert given and all(text == f"{settings[key]}\n" for key, text in given.items())
    assert not folder.exists()


@pytest.mark.parametrize(
    ("second", "code", "counted"), [("pass", 0, "1 passed"), ("assert False", 1, "1 error")]
)
def test_a_file_that_could_be_imported_only_later_counts_by_its_tests(
    second: str, code: int, counted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    tries = tmp_path / "tries"
    tries.write_text("")
    text = (
        f"from pathlib import Path\nTRIES = Path({str(tries)!r})\n"
        'TRIES.write_text(TRIES.read_text() + "x")\nassert len(TRIES.read_text()) > 1\n'
        f"def test_it():\n    {second}\n"
    )
    only_lane(tmp_path, monkeypatch, text, "--continue-on-collection-errors")
    assert suite.main() == code
    assert counted in capfd.readouterr().out.splitlines()[-1]


def test_what_is_skipped_at_its_second_try_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tries = tmp_path / "tries"
    text = (
        "from pathlib import Path\nimport pytest\n"
        f"TRIES = Path({str(tries)!r})\n"
        "def test_it():\n    if TRIES.exists():\n        pytest.skip('later')\n"
        "    TRIES.touch()\n    assert False\n"
    )
    only_lane(tmp_path, monkeypatch, text)
    assert suite.main() == 1
    out = capfd.readouterr().out
    assert "passed at its second try" not in out
    assert "1 failed" in out.splitlines()[-1]


def test_a_file_that_cannot_be_imported_is_tried_again_by_its_name() -> None:
    case = Xml.fromstring('<testcase classname="" name="tests.unit.test_wire"><error/></testcase>')
    assert suite.name(case) == "tests/unit/test_wire.py"


@pytest.mark.timeout(280)
def test_beside_others_a_test_may_take_several_times_as_long(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This very test has the limit that goes with where it runs."""
    limit = request.node.get_closest_marker("timeout")
    assert limit.args == (limit_s(280),)
    monkeypatch.delenv(BESIDE, raising=False)
    assert limit_s(280) == 280
    monkeypatch.setenv(BESIDE, "1")
    assert limit_s(280) == 280 * BESIDE_TIMES


def test_only_what_measures_time_is_alone() -> None:
    assert [lane.name for lane in suite.LANES if lane.alone] == ["timed", "exact"]
    assert all((BESIDE in lane.environment) is not lane.alone for lane in suite.LANES)
