"""Who a job's processes are in containers when root calls, what they may write to, and which images they have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rights_rig import run_in
from standing import assert_gone
from verdict_rig import accepted_run

from testbed.host import images
from testbed.process import environment

pytestmark = [
    pytest.mark.root,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("image"),
]
OWNER, NOBODY = 4711, 10001
SCENARIO = """
name: whose
nodes: {{worker: {{role: worker{own}}}}}
links: {{default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}}}
"""
OWN = "narrows-test/own:users"
SAY = """
echo "is $(id -u):$(id -g)"
cat scenario.yaml > /dev/null && echo reads
touch here 2> /dev/null && echo writes here
echo made > $NARROWS_OUTPUT/made && echo writes output
touch /tmp/there && echo writes tmp
touch /usr/there 2> /dev/null && echo writes usr
touch /mine/there 2> /dev/null && echo writes mine
test "$(pwd)" = "$(readlink -f "$(pwd)")" && ls "$(pwd)" > /dev/null && echo finds
"""


@pytest.fixture(scope="module")
def own(image: str) -> Iterator[str]:
    """An image with a folder in which everybody may write, as those made for root often have."""
    recipe = f"FROM {images.tags().base}\nRUN mkdir -m 777 /mine\n"
    build = ["docker", "build", "--quiet", "--network", "none", "--tag", OWN, "-"]
    subprocess.run(build, input=recipe.encode(), check=True, capture_output=True)
    yield OWN
    subprocess.run(["docker", "rmi", OWN], check=True, capture_output=True)


def executed(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``testbed exec scenario.yaml`` in a folder."""
    command = [sys.executable, "-P", "-m", "testbed", "exec", "scenario.yaml", *options]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=200
    )  # fmt: skip


def said(folder: Path, *options: str, own: str = "") -> list[str]:
    """What a job in ``folder`` says."""
    image = f", image: {own!r}" if own else ""
    (folder / "scenario.yaml").write_text(SCENARIO.format(own=image))
    ended = executed(folder, "--fabric", "docker", *options, "--", "sh", "-c", SAY)
    (run,) = folder.glob("runs/*")
    accepted_run(run, ended.returncode)
    assert_gone(run_in(folder))
    return [line.partition(" | ")[2] for line in ended.stdout.splitlines()]


def test_the_owner_of_the_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, OWNER, 0)
    found = said(tmp_path)
    everything = ["reads", "writes here", "writes output", "writes tmp", "finds"]
    assert found == [f"is {OWNER}:{OWNER}", *everything]
    (output,) = tmp_path.glob("runs/*/output")
    assert [(tmp_path / "here").stat().st_uid, output.stat().st_uid] == [OWNER, OWNER]


def test_nobody_else_in_a_folder_of_roots(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = said(tmp_path)
    assert found == [f"is {NOBODY}:{NOBODY}", "reads", "writes output", "writes tmp", "finds"]
    (made,) = tmp_path.glob("runs/*/output/made")
    assert (made.read_text(), made.stat().st_uid) == ("made\n", NOBODY)


# every day the same image says the same in a folder below root's home
@pytest.mark.nightly
def test_an_image_of_ones_own_has_a_root_that_stays_as_it_is(tmp_path: Path, own: str) -> None:
    tmp_path.chmod(0o755)
    found = said(tmp_path, own=own)
    assert found == [f"is {NOBODY}:{NOBODY}", "reads", "writes output", "writes tmp", "finds"]


def test_its_root_may_be_written_to_where_that_is_wanted(tmp_path: Path, own: str) -> None:
    tmp_path.chmod(0o755)
    found = said(tmp_path, "--writable-root", own=own)
    assert "writes mine" in found and "writes usr" not in found


def test_a_folder_below_roots_home(own: str) -> None:
    """In images nobody but root may look into it."""
    folder = Path("/root") / f"narrows-test-{os.getpid()}"
    (folder / "deeper").mkdir(parents=True)
    try:
        found = said(folder / "deeper", own=own)
        assert found == [f"is {NOBODY}:{NOBODY}", "reads", "writes output", "writes tmp", "finds"]
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Run `docker pull 127.0.0.1:1/not-there`, or give --pull"),
        (["--pull"], "127.0.0.1:1/not-there could not be pulled"),
    ],
)
def test_no_image_is_pulled_silently(tmp_path: Path, options: list[str], words: str) -> None:
    text = SCENARIO.format(own=", image: 127.0.0.1:1/not-there")
    (tmp_path / "scenario.yaml").write_text(text)
    tmp_path.chmod(0o755)
    ended = executed(tmp_path, "--fabric", "docker", *options, "--", "true")
    assert ended.returncode == 3 and words in " ".join(ended.stderr.split()), ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]
