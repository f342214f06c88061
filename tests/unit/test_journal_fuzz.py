"""Hostile journals: ``testbed clean`` removes what they may name, nothing else, and says so in sentences."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_rig import TIMEOUT_S, fuzzed, hostile, memory_within
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.cli import main
from testbed.fabric.cleanup import register, sweep
from testbed.journal import Journal, abandoned, cleaners, folder, journals

pytestmark = pytest.mark.timeout(TIMEOUT_S)
SOON_S = 20.0
LARGE_BYTES = 4 << 20
HEAD = {"run": "abc", "pid": 2**22 + 1, "start": "x/1", "began": 1.5}
ENTRIES: list[Any] = [
    HEAD,
    {"kind": "namespace", "name": "nw-fuzzed-nowhere"},
    {"kind": "link", "name": "nwfuzzed-r0", "alias": "narrows fuzzed"},
    {"kind": "link", "name": "port0", "alias": None, "netns": "nw-fuzzed-switch"},
    {"kind": "process", "pid": 2**22 + 1, "start": "x/1"},
    {"kind": "folder", "path": "/nowhere/narrows-marks-fuzzed"},
    {"kind": "subnet", "network": "10.0.0.0/24"},
    {"kind": "cgroup", "path": "/nowhere/narrows-fuzzed/worker-0"},
    {"kind": "kept"},
]


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NARROWS_STATE", str(path))
        register()
        yield path


NO_NAME = b'{"kind":"link","name":"\\ud800\\ud800","alias":"narrows fuzzed"}'
"""A device that no text can name."""


@fuzzed
@example(lines=[NO_NAME], headed=True, as_json=False)
@given(st.lists(hostile(ENTRIES), max_size=6), st.booleans(), st.booleans())
def test_clean(state: Path, lines: list[bytes], headed: bool, as_json: bool) -> None:
    """Exit code 0, or 3 where something is left; the standing namespaces and links are the same afterwards."""
    path = state / "hostile.journal"
    path.write_bytes(b"\n".join([json.dumps(HEAD).encode()] * headed + lines))
    os.utime(path, (0, 0))
    before = standing()
    began_s = time.monotonic()
    with memory_within(4 * LARGE_BYTES):
        try:
            main(["clean", "--all", *["--json"] * as_json])
            code: Any = 0
        except SystemExit as left:
            code = left.code or 0
    assert code in (0, 3)
    assert time.monotonic() - began_s < SOON_S
    assert path.exists() == (code == 3)
    assert standing() == before
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("part", [b"{}\n", b"\n", b"[", b"{", b'{"kind": 1}\n'])
def test_a_large_journal_that_names_nothing_takes_little_memory(state: Path, part: bytes) -> None:
    path = state / "large.journal"
    path.write_bytes(json.dumps(HEAD).encode() + b"\n" + part * (LARGE_BYTES // len(part)))
    try:
        with memory_within(LARGE_BYTES // 4):
            (read,) = journals()
        assert (read.run, read.entries) == (HEAD["run"], [])
    finally:
        path.unlink()


def test_of_a_journal_without_end_the_beginning_is_read(state: Path) -> None:
    entry = json.dumps({"kind": "folder", "path": "/nowhere/narrows-marks-fuzzed"}) + "\n"
    path = state / "endless.journal"
    path.write_text(json.dumps(HEAD) + "\n" + entry)
    os.truncate(path, 1 << 40)  # zeros that take no room
    try:
        with memory_within(LARGE_BYTES // 4):
            (read,) = journals()
        assert read.entries == [json.loads(entry)]
    finally:
        path.unlink()


def standing() -> list[str]:
    """What journals name, of this machine: devices, named namespaces, and this test's own files."""
    places = (Path("/sys/class/net"), Path("/run/netns"))
    return sorted(str(path) for place in places if place.exists() for path in place.iterdir())


def journal(state: Path, *entries: dict[str, Any]) -> Journal:
    path = state / "named.journal"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (HEAD, *entries)))
    (made,) = journals()
    return made


def test_what_cannot_be_a_runs_is_never_removed(state: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "cgroup.procs").touch()
    (mine / "pids.max").touch()
    (tmp_path / "narrows-abc").mkdir()
    (tmp_path / "narrows-link").symlink_to(mine)
    up = "../" * 9
    made = journal(
        state,
        {"kind": "folder", "path": str(mine)},
        {"kind": "folder", "path": str(tmp_path / "narrows-link")},
        {"kind": "folder", "path": f"{tmp_path}/narrows-abc/../mine"},
        {"kind": "cgroup", "path": f"{mine}"},
        {"kind": "cgroup", "path": f"{tmp_path}/narrows-abc/../mine"},
        {"kind": "namespace", "name": up + str(mine / "pids.max")[1:]},
    )
    assert sweep(made) == []
    assert sorted(path.name for path in mine.iterdir()) == ["cgroup.procs", "pids.max"]
    assert (mine / "pids.max").read_text() == ""


def test_what_would_harm_the_machine_is_no_entry(state: Path) -> None:
    up = "../" * 9
    made = journal(
        state,
        {"kind": "namespace", "name": ""},
        {"kind": "namespace", "name": up + "proc/self/ns/net"},
        {"kind": "namespace", "name": "somebody-elses"},
        {"kind": "link", "name": "eth0", "alias": None},
        {"kind": "link", "name": "eth0", "alias": None, "netns": up + "proc/self/ns/net"},
        {"kind": "docker", "run": ""},
    )
    assert made.entries == []
    made.close()


def test_a_runs_folder_is_removed(state: Path, tmp_path: Path) -> None:
    (tmp_path / "narrows-marks-x").mkdir()
    made = journal(state, {"kind": "folder", "path": str(tmp_path / "narrows-marks-x")})
    assert sweep(made) == [f"folder {tmp_path / 'narrows-marks-x'}"]
    assert not (tmp_path / "narrows-marks-x").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link"])
def test_what_is_no_file_is_no_journal(state: Path, tmp_path: Path, kind: str) -> None:
    path = folder() / "odd.journal"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            (tmp_path / "else").write_text(json.dumps(HEAD))
            path.symlink_to(tmp_path / "else")
    assert journals() == abandoned() == []
    path.rmdir() if kind == "folder" else path.unlink()


@pytest.mark.root
def test_root_does_not_do_as_others_journals_say(state: Path) -> None:
    path = state / "theirs.journal"
    path.write_text(json.dumps(HEAD) + "\n")
    assert [journal.run for journal in abandoned()] == ["abc"]
    os.chown(path, 65534, 65534)
    assert journals() == []
    path.unlink()


def test_every_kind_of_entry_can_be_cleaned() -> None:
    assert {entry["kind"] for entry in ENTRIES if "kind" in entry} <= {*cleaners, "kept"}
