"""What is named and is no file: a sentence, and never a wait."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
from contextlib import chdir
from io import BytesIO
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.process import environment
from testbed.scenario.load import load
from testbed.scenario.profile import read_profile
from testbed.scenario.recorded_paces import read_step_times
from testbed.traces.readers import read
from testbed.user_files import PinnedFolder, archive_of, data_of, last_line_in, text_of

READERS = [load, read, read_step_times, read_profile, lambda path: data_of(path, 10)]


@pytest.fixture(params=READERS, ids=["scenario", "trace", "pace", "profile", "data"])
def reader(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return request.param


def test_a_pipe_that_nobody_writes_to(reader, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match=r"pipe\.csv: this is not a regular file"):
        reader(tmp_path / "pipe.csv")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/dev/zero", "this is not a regular file"),
        ("/", "this is a directory"),
        ("a\0b", "this is no name of a file"),
        ("x" * 300, "cannot be read: File name too long"),
        ("none", "no such file|cannot be read: No such file"),
    ],
)
def test_what_is_no_file(reader, name: str, said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=said):
        reader(tmp_path / name)


def test_what_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"larger than 1 MiB\. Name another"):
        data_of(tmp_path / "large", 1 << 20, "Name another")


def test_what_is_no_text_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo")
    assert text_of(path, 100) == "one\ntwo"
    for data, said in (
        (b"one\n\xff", "t:2: this is not UTF-8"),
        (b"\xef\xbb\xbfone\n\xff", "t:2: .*0xff"),
        (b"one\n\n\0", "t:3: this is a binary file"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=said):
            text_of(path, 100)


@pytest.mark.parametrize("number", ["1" + 400 * "0", 5000 * "9"])
def test_a_number_that_is_no_time(number: str, tmp_path: Path) -> None:
    path = tmp_path / "pace.json"
    path.write_text(f'{{"step_ms": [{number}]}}')
    with pytest.raises(InputError) as caught:
        read_step_times(path)
    assert len(str(caught.value)) < 300


def test_a_log_is_appended_to_and_its_last_line_read_through_no_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run" / "log", tmp_path / "outside"
    folder.mkdir(parents=True)
    run = PinnedFolder(tmp_path / "run")
    for line in (b"one\n", b"two\n"):
        with PinnedFolder(folder).append("worker-0.log") as log:
            log.write(line)
    assert (folder / "worker-0.log").read_bytes() == b"one\ntwo\n"
    assert last_line_in(run, "worker-0.log") == "two"
    assert last_line_in(run, "other.log") == ""
    (folder / "long.log").write_bytes(b"x" * (1 << 20) + b"\nthe end\n")
    assert last_line_in(run, "long.log") == "the end"
    os.mkfifo(folder / "pipe.log")
    assert last_line_in(run, "pipe.log") == ""
    outside.mkdir()
    assert last_line_in(PinnedFolder(outside), "worker-0.log") == ""
    (outside / "secret").write_text("secret\n")
    (folder / "secret.log").symlink_to(outside / "secret")
    assert last_line_in(run, "secret.log") == ""
    (folder / "link.log").symlink_to(outside / "link.log")
    with pytest.raises(OSError, match="symbolic links"):
        PinnedFolder(folder).append("link.log")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "log").symlink_to(outside)
    assert last_line_in(PinnedFolder(tmp_path / "linked"), "secret") == ""
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_log_is_read_in_the_run_that_was_opened(tmp_path: Path) -> None:
    """Whoever owns the folder above may put a link to another one in the run's place."""
    own, other = tmp_path / "runs" / "run", tmp_path / "var"
    for folder in (own, other):
        (folder / "log").mkdir(parents=True)
        (folder / "log" / "auth.log").write_text(f"{folder.name}\n")
    run = PinnedFolder(own)
    own.parent.rename(tmp_path / "away")
    own.parent.mkdir()
    own.symlink_to(other)
    assert last_line_in(run, "auth.log") == "run"


@pytest.mark.root
def test_a_log_in_a_folder_of_somebody_elses_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "worker-0.log").write_text("said\n")
    assert last_line_in(PinnedFolder(tmp_path), "worker-0.log") == "said"
    os.chown(tmp_path / "log", 61234, 61234)
    assert last_line_in(PinnedFolder(tmp_path), "worker-0.log") == ""


def test_files_of_a_pinned_folder_stay_in_it_and_replace_links(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    path.mkdir()
    (outside / "secret").write_text("secret")
    pinned = PinnedFolder(path)
    path.rename(tmp_path / "moved")
    path.symlink_to(outside)
    (tmp_path / "moved" / "link").symlink_to(outside / "secret")
    (tmp_path / "moved" / "log").symlink_to(outside)
    os.mkfifo(tmp_path / "moved" / "pipe")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        pinned.folder("log")
    copies = pinned.folder("copies")
    for name in ("link", "pipe", "copies", "none"):
        pinned.copy(name, copies)
    assert copies.names() == []
    pinned.write("link", b"written")
    pinned.copy("link", copies)
    assert (tmp_path / "moved" / "copies" / "link").read_bytes() == b"written"
    assert pinned.names() == ["copies", "link", "log", "pipe"]
    assert [file.read_text() for file in outside.iterdir()] == ["secret"]


NO_HOME = """
import os, sys
os.geteuid = lambda: 61235
for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "NARROWS_STATE"):
    os.environ.pop(name, None)
os.environ["USER"] = "nobody-of-that-name"
import pwd
pwd.getpwuid = lambda user: {}[user]
from testbed import cli
cli.main(sys.argv[1:])
"""
"""A command of a user without a home, as containers of any user number have it."""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("clean",), "testbed: this user has no home in which journals of runs could be kept. Set HOME"),
        (("exec", "none.yaml", "--", "true"), "testbed: none.yaml: no such file"),
    ],
)  # fmt: skip
def test_a_user_without_a_home_is_told_so_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    command = [sys.executable, "-P", "-c", NO_HOME, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(), cwd=tmp_path
    )
    assert done.stderr.startswith(sentence) and "Traceback" not in done.stderr
    assert done.returncode in (2, 3)


def test_of_a_file_that_could_not_be_written_nothing_is_left(tmp_path: Path) -> None:
    """What had its name stays."""
    folder = PinnedFolder(tmp_path)
    folder.write("kept", b"as it was")

    class Failing(BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        folder.write("kept", Failing())
    assert folder.names() == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"as it was"


def below(folder: Path, **bounds: int) -> dict[str, tarfile.TarInfo]:
    """The archive's entries of what everybody may read, but for the folder ``runs``."""
    with chdir(folder):
        archive = archive_of(
            PinnedFolder(folder),
            lambda state: state.st_mode & 0o004 != 0,
            {folder / "runs"},
            **bounds,
        )
    with tarfile.open(fileobj=BytesIO(archive)) as opened:
        return {entry.name: entry for entry in opened}


def test_a_working_folder_is_copied_without_what_its_reader_may_not_read(tmp_path: Path) -> None:
    for name in ("src", "src/.git", "runs", "src/runs", "closed"):
        (tmp_path / name).mkdir()
    for name in (
        "src/job.py",
        "src/.git/config",
        "runs/log",
        "src/runs/kept",
        "closed/open",
        "own",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "src" / "job.py").chmod(0o755)
    (tmp_path / "own").chmod(0o600)
    (tmp_path / "closed").chmod(0o700)
    (tmp_path / "link").symlink_to("/etc/shadow")
    (tmp_path / "folder").symlink_to("src")
    os.mkfifo(tmp_path / "pipe")
    entries = below(tmp_path)
    assert set(entries) == {"src", "src/job.py", "src/runs", "src/runs/kept", "link", "folder"}
    assert (entries["src/job.py"].mode, entries["src/job.py"].size) == (0o755, len("src/job.py"))
    assert (entries["link"].linkname, entries["folder"].linkname) == ("/etc/shadow", "src")
    assert stat.S_IMODE(entries["src"].mode) & 0o700 == 0o700


def test_a_working_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(3 << 20))
    assert below(tmp_path, most_bytes=4 << 20)["data"].size == 3 << 20
    with pytest.raises(InputError, match=r"more than 2 MiB.*--read"):
        below(tmp_path, most_bytes=2 << 20)


def test_of_a_file_that_is_too_large_no_more_is_read_than_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    os.truncate(tmp_path / "data", 1 << 42)
    with pytest.raises(InputError, match="more than 64 MiB"):
        below(tmp_path)
