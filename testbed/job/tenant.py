"""Whose the processes of a job's containers are, and a folder that this user can write to: never root, who may call us."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError

NOBODY = 10001
"""Who it is where nobody else is known: the user and the group of our own image."""
FOLDER = "output"
"""In a run's directory: what its job has made."""
_READ, _WRITE = 0o5, 0o2
_HOME_OF_ROOT = Path("/root")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user that is not root, with one group."""

    user: int
    group: int

    def __str__(self) -> str:
        return f"{self.user}:{self.group}"

    def may(self, folder: Path, bits: int) -> bool:
        """Whether the folder's mode permits it ``bits`` (as others' in a mode), wherever the folder is."""
        found = folder.stat()
        shift = 6 if found.st_uid == self.user else 3 if found.st_gid == self.group else 0
        return stat.S_IMODE(found.st_mode) >> shift & bits == bits

    def writes(self, folder: Path) -> bool:
        """Whether it can make files in a folder."""
        return self.may(folder, _READ | _WRITE)


def tenant(folder: Path, environ: Mapping[str, str] = os.environ) -> Tenant:
    """Who is to work in ``folder``: whoever calls us; instead of root the folder's owner, else who became root by sudo
    (``SUDO_UID``), else ``NOBODY``.

    Raises InputError where that user cannot read the folder.
    """
    found = _tenant(folder, os.getuid(), os.getgid(), environ)
    if not found.may(folder, _READ):
        raise InputError(
            f"containers never run as root, and {found}, as who they would, may not read this folder",
            where=str(folder),
            hint=f"Start the command in a folder of an ordinary user's (`chown -R {found} .` makes this one that), "
            "or have others read it (`chmod o+rx .`)",
        )
    return found


def make_output(run: Path, owner: Tenant) -> Path:
    """Make the folder for what a job makes, the tenant's own; returns its absolute path. Raises OSError."""
    above = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.mkdir(FOLDER, 0o755, dir_fd=above)
        if os.geteuid() == 0:
            made = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            try:
                os.fchown(made, owner.user, owner.group)
            finally:
                os.close(made)
    finally:
        os.close(above)
    return run.resolve() / FOLDER


def make_home_of_root(directory: Path, at: Path) -> Path | None:
    """Make a folder that can stand for ``/root`` where ``directory`` is below: empty but for the way there, which all may
    go. None where it is elsewhere. Raises OSError."""
    if _HOME_OF_ROOT not in directory.parents:
        return None
    folder = at / "root"
    for name in ("", *directory.relative_to(_HOME_OF_ROOT).parts):
        folder = folder / name
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask says
    return at / "root"


def drop_if_empty(run: Path) -> None:
    """Remove the folder again if there is one, and nothing was put into it."""
    with suppress(OSError):
        (run / FOLDER).rmdir()


def _tenant(folder: Path, user: int, group: int, environ: Mapping[str, str]) -> Tenant:
    if user != 0:
        return Tenant(user, group)
    found = folder.stat()
    if found.st_uid != 0:
        return Tenant(found.st_uid, found.st_gid or _group(found.st_uid))
    by_sudo = environ.get("SUDO_UID", "")
    if by_sudo.isdecimal() and int(by_sudo) != 0:
        return Tenant(int(by_sudo), _group(int(by_sudo)))
    return Tenant(NOBODY, NOBODY)


def _group(user: int) -> int:
    """A user's own group; not root's."""
    try:
        return pwd.getpwuid(user).pw_gid or user
    except KeyError:
        return user
