"""Who works in a folder on behalf of whom: never root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.runner.exec.launch_spec import (
    NOBODY,
    Tenant,
    drop_if_empty,
    make_home_of_root,
    make_output,
    tenant,
)
from testbed.user_files import PinnedFolder

ROOT = pytest.mark.root


@ROOT
@pytest.mark.parametrize(
    ("owner", "environ", "is_then"),
    [
        ((4711, 4712), {"SUDO_UID": "99"}, "4711:4712"),
        ((4711, 0), {}, "4711:4711"),
        ((0, 0), {"SUDO_UID": "4713", "SUDO_GID": "0"}, "4713:4713"),
        ((0, 0), {"SUDO_UID": "0"}, f"{NOBODY}:{NOBODY}"),
        ((0, 0), {"SUDO_UID": "not a number"}, f"{NOBODY}:{NOBODY}"),
        ((0, 0), {"SUDO_UID": "9" * 5000}, f"{NOBODY}:{NOBODY}"),
        ((0, 0), {"SUDO_UID": "4294967295"}, f"{NOBODY}:{NOBODY}"),
        ((0, 0), {"SUDO_UID": "-1"}, f"{NOBODY}:{NOBODY}"),
        ((0, 4712), {}, f"{NOBODY}:{NOBODY}"),
    ],
)
def test_who_it_is_where_root_calls(
    tmp_path: Path, owner: tuple[int, int], environ: dict[str, str], is_then: str
) -> None:
    tmp_path.chmod(0o755)
    os.chown(tmp_path, *owner)
    assert str(tenant(tmp_path, environ)) == is_then


@ROOT
def test_a_folder_that_it_may_not_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(InputError, match=rf"chown -R {NOBODY}:{NOBODY} \."):
        tenant(tmp_path, {})


@ROOT
@pytest.mark.parametrize(
    ("mode", "owner", "writes"),
    [(0o755, (0, 0), False), (0o777, (0, 0), True), (0o775, (0, 5), True), (0o700, (5, 0), True)],
)
def test_whether_it_writes_there(
    tmp_path: Path, mode: int, owner: tuple[int, int], writes: bool
) -> None:
    os.chown(tmp_path, *owner)
    tmp_path.chmod(mode)
    assert Tenant(5, 5).writes(tmp_path) == writes


@ROOT
def test_the_output_is_its_own_and_no_link_is_followed(tmp_path: Path) -> None:
    made = make_output(tmp_path, PinnedFolder(tmp_path), Tenant(4711, 4712))
    assert (made.stat().st_uid, made.stat().st_gid) == (4711, 4712)
    drop_if_empty(PinnedFolder(tmp_path))
    assert not made.exists()
    drop_if_empty(PinnedFolder(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    made.symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        make_output(tmp_path, PinnedFolder(tmp_path), Tenant(4711, 4712))
    assert elsewhere.stat().st_uid == 0


def test_what_was_made_is_kept(tmp_path: Path) -> None:
    made = make_output(tmp_path, PinnedFolder(tmp_path), Tenant(os.getuid(), os.getgid()))
    (made / "model").write_text("")
    drop_if_empty(PinnedFolder(tmp_path))
    assert made.is_dir()


def test_a_way_below_roots_home_that_all_may_go(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        home = make_home_of_root(Path("/root/a/b"), tmp_path)
    finally:
        os.umask(before)
    assert home == tmp_path / "root"
    assert [folder.stat().st_mode & 0o777 for folder in (home, home / "a", home / "a/b")] == [
        0o755
    ] * 3
    assert make_home_of_root(Path("/srv/a"), tmp_path) is None
    assert make_home_of_root(Path("/root"), tmp_path) is None
