"""The run directory: nothing that was finished is lost, whatever happens."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.records.run_directory import (
    OPEN_FILES,
    RunDirectory,
    comparison_directory,
    read_events,
    read_json,
    read_jsonl,
    to_json,
)
from testbed.runner.exec.launch_spec import Tenant, make_output
from testbed.user_files import Output, PinnedFolder


def create(out: Path) -> RunDirectory:
    return RunDirectory.create(
        out, scenario_name="demo", algorithm="topk-0.15", seed=3, content_hash="0123456789abcdef"
    )


def test_its_name_says_what_it_holds_and_two_in_one_second_differ(tmp_path: Path) -> None:
    first, second = create(tmp_path), create(tmp_path)
    assert first.path != second.path
    assert first.path.parent == tmp_path / "runs"
    stamp, rest = first.path.name.split("_", 1)
    assert len(stamp) == 16
    assert stamp.endswith("Z")
    assert rest == "demo_topk-0.15_s3_01234567"
    assert first.log.is_dir()


def test_comparison_directory(tmp_path: Path) -> None:
    path, folder = comparison_directory(tmp_path, "demo", "0123456789abcdef")
    assert path.parent == tmp_path / "comparisons"
    assert path.name.endswith("_demo_01234567")
    assert folder.path.resolve() == path


def test_runs_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/runs").symlink_to("../disk")
    with create(tmp_path / "out") as made:
        assert made.path.parent == tmp_path / "disk"


@pytest.mark.root
@pytest.mark.parametrize("name", ["runs", "comparisons"])
def test_root_follows_no_link_of_somebody_elses_to_its_records(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / name).symlink_to("precious")
    os.chown(tmp_path / name, 4711, 4711, follow_symlinks=False)
    with pytest.raises(InputError, match="user 4711 has made this link"):
        create(tmp_path) if name == "runs" else comparison_directory(tmp_path, "demo", "01234567")
    assert not list((tmp_path / "precious").iterdir())


@pytest.mark.root
def test_whose_a_folder_is_shows_in_what_is_made_there(tmp_path: Path) -> None:
    folder = PinnedFolder(tmp_path)
    assert folder.is_own()
    os.chown(tmp_path, 4711, 4711)
    assert not folder.is_own() and folder.names() == []


@pytest.mark.root
def test_a_list_of_rights_above_lets_nobody_write_to_roots_records(tmp_path: Path) -> None:
    """As ``setfacl --default --modify user:4711:rwx`` has it."""
    entries = [(1, 7, -1), (2, 7, 4711), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)
    (tmp_path / "runs").mkdir()
    try:
        os.setxattr(tmp_path / "runs", "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"no such lists on this file system: {error}")
    with create(tmp_path) as made:
        for folder in (made.path, made.path / "events", made.path / "log"):
            assert not folder.stat().st_mode & 0o022  # of the group here: what a list may give


def test_what_is_moved_gets_its_files_all_the_same(tmp_path: Path) -> None:
    """Whoever owns a folder above puts another in the place of a run's: nothing is written there."""
    with create(tmp_path) as made:
        (tmp_path / "runs").rename(tmp_path / "moved")
        (made.path / "events").mkdir(parents=True)
        (made.path / "output").symlink_to(tmp_path)
        make_output(made.path, made.folder(), Tenant(os.getuid(), os.getgid()))
        output = Output(made.folder().folder("log"), 8, shown=False, several=False)
        output.line("worker-0", 0, b"words\n")
        output.close()
        made.event("worker", 0, {"kind": "step", "step": 1})
    assert {path.name for path in made.path.iterdir()} == {"events", "output"}
    assert not list((made.path / "events").iterdir())
    (kept,) = (tmp_path / "moved").iterdir()
    assert {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()} == {
        "events/worker-0.jsonl", "log/worker-0.log"
    }  # fmt: skip


def test_a_run_of_many_nodes_keeps_few_files_open(tmp_path: Path) -> None:
    before, nodes = len(list(Path("/proc/self/fd").iterdir())), OPEN_FILES + 40
    with create(tmp_path) as made:
        for step in range(2):
            for rank in range(nodes):
                made.event("worker", rank, {"kind": "step", "step": step})
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= OPEN_FILES
    files = list(made.path.glob("events/*.jsonl"))
    assert len(files) == nodes
    assert all([line["step"] for line in read_jsonl(file)] == [0, 1] for file in files)


def test_an_algorithm_called_like_a_path_stays_inside(tmp_path: Path) -> None:
    made = RunDirectory.create(
        tmp_path, scenario_name="demo", algorithm="../../x", seed=1, content_hash="f" * 16
    )
    assert made.path.parent == tmp_path / "runs"


def test_an_out_that_cannot_be_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InputError, match="--out"):
        create(tmp_path)


def test_events_and_links_read_back_in_order(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        for step in range(3):
            run.event("worker", 10, {"kind": "step", "step": step})
        run.event("worker", 2, {"kind": "step", "step": 9})
        run.link([{"kind": "sample", "n": 1}, {"kind": "sample", "n": 2}])
        run.link({"kind": "change"})
    assert (run.path / "events" / "worker-2.jsonl").exists()
    assert [event["step"] for event in read_events(run.path)["step"]] == [9, 0, 1, 2]
    assert [line.get("n") for line in read_jsonl(run.path / "links.jsonl")] == [1, 2, None]
    with pytest.raises(ValueError, match="closed"):
        run.event("worker", 0, {})


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    run = create(tmp_path)

    def write(thread: int) -> None:
        for number in range(200):
            run.event("server", 0, {"thread": thread, "number": number, "pad": "x" * 300})

    threads = [threading.Thread(target=write, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    seen = list(read_jsonl(run.path / "events" / "server-0.jsonl"))
    assert len(seen) == 1200
    for index in range(6):
        assert [e["number"] for e in seen if e["thread"] == index] == list(range(200))


def test_of_lines_that_a_full_disk_does_not_take_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ones would be appended to a part of a line."""
    write, left = os.write, 40

    def little(handle: int, data: memoryview) -> int:
        nonlocal left
        taken = write(handle, data[: min(left, 15)]) if left else 0
        left -= taken
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken

    with create(tmp_path) as directory:
        directory.event("worker", 0, {"step": 1})
        before = (directory.path / "events" / "worker-0.jsonl").read_bytes()
        with monkeypatch.context() as full:
            full.setattr(os, "write", little)
            with pytest.raises(OSError, match="No space left"):
                directory.events("worker", 0, [{"step": 2, "of": "n" * 20}, {"step": 3}])
        assert left == 0, "a part of it was written"
        assert (directory.path / "events" / "worker-0.jsonl").read_bytes() == before
        directory.event("worker", 0, {"step": 4})
        assert [e["step"] for e in read_events(directory.path)[str(None)]] == [1, 4]


def test_all_files_are_on_disk_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = list[tuple[str, int]](), os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.append((Path(f"/proc/self/fd/{file}").readlink().name, os.fstat(file).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    with create(tmp_path) as run:
        run.event("worker", 0, {"kind": "step"})
        run.link([{"time_s": 1.0}] * 2)
        assert not synced
    sizes = [(file.name, file.stat().st_size) for file in run.path.rglob("*.jsonl")]
    assert len(sizes) == 2 and sorted(synced) == sorted(sizes)


def test_a_torn_last_line_is_left_out_and_garbage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":')
    assert [line["a"] for line in read_jsonl(path)] == [1, 2]
    path.write_bytes(b'{"a":1}\n\x00\xff\n{"a":3}\n')
    with pytest.raises(InputError, match=r"events\.jsonl:2"):
        list(read_jsonl(path))
    path.write_bytes(b"[1]\n")
    with pytest.raises(InputError, match="object was expected"):
        list(read_jsonl(path))
    assert list(read_jsonl(tmp_path / "absent.jsonl")) == []


def test_a_killed_writer_keeps_every_line_it_finished(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from testbed.records.run_directory import RunDirectory\n"
        "run = RunDirectory.create(Path(sys.argv[1]), scenario_name='d', algorithm='a', seed=1,"
        " content_hash='0' * 8)\n"
        "for step in range(10**9):\n"
        "    run.event('worker', 0, {'kind': 'step', 'step': step})\n"
        "    if step == 500: print('x', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"x\n"
        child.send_signal(signal.SIGKILL)
    (run,) = (tmp_path / "runs").iterdir()
    steps = [event["step"] for event in read_events(run)["step"]]
    assert len(steps) > 500
    assert steps == list(range(len(steps)))


def test_records_stay_where_they_were_begun(tmp_path: Path) -> None:
    """Whatever the owner of a folder above puts in its place."""
    outside, made = tmp_path / "outside", create(tmp_path / "out")
    made.event("worker", 0, {"kind": "note"})
    output = Output(made.folder().folder("log"), 8, shown=False, several=False)
    (tmp_path / "out/runs").rename(tmp_path / "moved")
    for folder in (outside, made.path / "events", made.path / "log"):
        folder.mkdir(parents=True)
    names = ["events/worker-1.jsonl", "links.jsonl", "summary.json", "log/worker-0.log"]
    for name in names:
        (outside / Path(name).name).write_text("as it was\n")
        (made.path / name).symlink_to(outside / Path(name).name)
    made.event("worker", 1, {"kind": "note"})
    made.link({"kind": "note"})
    assert made.write_json("summary.json", {}) == made.path / "summary.json"
    output.line("worker-0", 0, b"hostile\n")
    output.close()
    made.close()
    assert {path.read_text() for path in outside.iterdir()} == {"as it was\n"}
    assert (made.path / "summary.json").is_symlink()
    (moved,) = (tmp_path / "moved").iterdir()
    assert all((moved / name).read_text() for name in names)


def test_json_is_replaced_in_one_move_and_strict(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.write_json("summary.json", {"a": 1})
    run.write_json(
        "summary.json", {"a": float("nan"), "where": Path("/x"), "b": [1.5, float("inf")]}
    )
    assert read_json(run.path / "summary.json") == {"a": None, "where": "/x", "b": [1.5, None]}
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(TypeError):
        run.write_json("summary.json", {"a": object()})
    assert read_json(run.path / "summary.json")["b"] == [1.5, None]
    with pytest.raises(InputError, match=r"absent\.json"):
        read_json(run.path / "absent.json")


def test_a_record_that_is_not_finite_is_a_line_too() -> None:
    assert json.loads(to_json({"loss": float("nan"), "k": 0.5})) == {"loss": None, "k": 0.5}


def test_names_of_files_in_another_encoding_are_read_back(tmp_path: Path) -> None:
    """As Python has them: halves of pairs, which strict readers of JSON refuse."""
    path = tmp_path / "a.json"
    path.write_text(to_json({"dir": "/a \udcc3\udca4"}))
    assert read_json(path) == {"dir": "/a \udcc3\udca4"}
    for nonsense in ('{"dir": "\\udcc3", "x": NaN}', '{"dir": "\\udcc3"', '"\\udcc3"'):
        path.write_text(nonsense)
        with pytest.raises(InputError, match=r"a\.json"):
            read_json(path)
