"""The host's files as a node of ``netns`` sees them: all read-only, and its own working folder to
write to.

In a mount namespace of its own ``/tmp``, ``/var/tmp``, ``/run`` and ``/dev/shm`` are empty and
private, ``/proc`` is that of its processes, and folders are shown that its user could not reach
otherwise: the interpreter, the package, data. What a shown folder's owner has looks there as if it
were the node's (an id-mapped mount); on the disk it stays the owner's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from testbed.errors import MachineError
from testbed.process import (
    BIND,
    NEW_USERS,
    PACKAGE,
    is_mapped,
    is_root_outside,
    is_trusted,
    make_private,
    mount,
    unshare,
)
from testbed.topology import Limits
from testbed.user_files import home, package_paths

NODE_USER = 61_007
"""The user id of nodes: systems give it to no user and no service by themselves, so that usually no
file of the host belongs to it. Nodes of all of root's runs share it, in namespaces of their own."""

_OPEN_TREE, _MOVE_MOUNT, _SET_ATTRIBUTES = 428, 429, 442
"""Numbers of system calls, the same on every machine (Linux 5.12)."""
_CLONE, _CLOSE_ON_EXEC, _FROM_DESCRIPTOR, _RECURSIVE, _EMPTY_PATH = 1, 0o2000000, 4, 0x8000, 0x1000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _ID_MAPPED = 1, 2, 4, 0x0010_0000
_HERE = -100
_IDS = 2**32 - 1
_OLD_NO_SUID, _OLD_NO_DEVICES, _OLD_NO_EXEC = 2, 4, 8
_PRIVATE = {
    "/tmp": "mode=1777,size=50%",
    "/var/tmp": "mode=1777,size=50%",
    "/dev/shm": "mode=1777",
    "/dev/mqueue": "mode=755",
    "/run": "mode=755",
}
"""Folders that begin empty, each with how: where programs that share no network meet otherwise."""

_TERMINALS = "newinstance,ptmxmode=0666,mode=0620"
"""Terminals of a node's own: those of other nodes would belong to the same user."""
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
_LONGEST = 4096
_LEAST_RUN_BYTES = 16 << 20
"""The least size of ``/run`` in bytes: it has files of ours, too."""

_libc = ctypes.CDLL(None, use_errno=True)


class Shown(NamedTuple):
    """A folder or file of the host's that nodes have at its own path.

    ``pin``: device and inode number of what is meant. Whoever owns a folder above may put something
    else, or a link, in its place before it is shown; that is refused then.
    """

    path: str
    writable: bool = False
    pin: Sequence[int] | None = None


def pinned(path: Path, *, writable: bool = False) -> Shown:
    """Return what has this path now, and nothing that has it later. Raises OSError."""
    state = path.stat()
    return Shown(str(path), writable, (state.st_dev, state.st_ino))


class Account(NamedTuple):
    """The user and the group that a node's processes have."""

    user: int
    group: int


def account() -> Account | None:
    """The account of this process's nodes; None: they stay this process's own user. Raises
    MachineError where that would be root of the host."""
    if os.geteuid() != 0:
        return None
    if is_mapped(NODE_USER):
        return Account(NODE_USER, NODE_USER)
    if is_root_outside():
        raise MachineError(
            f"nodes would run as root: this user namespace has no user {NODE_USER}",
            fix="Run as an ordinary user, or as root outside of user namespaces",
        )
    return None


def account_for(shown: Iterable[Shown]) -> Account | None:
    """The account of a node that is shown this: of what it may write to the owner, where the file
    system cannot show that as somebody else's, and the owner is not root. Raises OSError."""
    whose = account()
    if whose is None:
        return None
    with _UserMappings(whose) as users:
        for each in shown:
            if each.writable:
                with _Tree(each.path, each, users) as tree:
                    if not tree.mapped and tree.owner.user not in (0, whose.user):
                        return tree.owner
    return whose


def programs(variables: Mapping[str, str]) -> list[Shown]:
    """The interpreter, the package, what the search paths lead to outside of ``/usr``, and modules
    elsewhere that have parts for the package.

    Of what a search path or such a module leads to, root's nodes are shown nothing that somebody
    else could change: they have it as its permissions say.
    """
    mine = account() is None
    libraries, places = (
        [entry for entry in variables.get(name, "").split(os.pathsep) if entry]
        for name in ("PYTHONPATH", "PATH")
    )
    folders = [Path(sys.base_prefix), Path(sys.prefix), PACKAGE]
    folders += [Path(entry) for entry in sys.path if entry and entry not in libraries]
    folders += [path for path in package_paths() if mine or is_trusted(str(path))]
    folders += [Path(entry) for entry in libraries if mine or is_trusted(entry)]
    for entry in places:
        if mine or is_trusted(entry):
            folders += _installation(Path(entry))
    own = home()
    whole = {Path("/"), own and own.resolve(), PACKAGE.parent}
    wanted = {folder.absolute() for folder in folders if _reachable(folder)}
    real = {path: path.resolve() for path in sorted(wanted)}
    return [
        Shown(str(path))
        for path, to in real.items()
        if not {path, to} & whole and not to.is_relative_to("/usr")
    ]


def named(command: Iterable[str], directory: Path) -> list[Shown]:
    """The folders of files in ``/tmp`` and ``/var/tmp`` that a command's arguments name: there
    nodes have files of their own. What root's nodes are shown they may read: there no link leads to
    it, and it is what was looked at."""
    by_path: dict[str, Shown] = {}
    for text in command:
        path = (directory / text.rpartition("=")[2]).absolute()
        temporary = next((folder for folder in _TEMPORARY if path.is_relative_to(folder)), None)
        if temporary is None or path == temporary or len(text) >= _LONGEST:
            continue
        if account() is not None:
            shown = _without_links(temporary, path)
        elif not _reachable(path):
            shown = None
        else:
            whole = path.is_dir() or path.parent == temporary
            shown = pinned(path if whole else path.parent)
        if shown is not None:
            by_path[shown.path] = shown
    return [by_path[path] for path in sorted(by_path)]


def _without_links(temporary: Path, path: Path) -> Shown | None:
    """A folder below ``temporary``, or that of a file; None where there is none, and where a link
    leads there."""
    names = path.relative_to(temporary).parts
    if ".." in names:
        return None
    states, at = [], os.open(temporary.resolve(), os.O_PATH | os.O_CLOEXEC)
    try:
        for name in names:
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
            states.append(os.fstat(at))
            if stat.S_ISLNK(states[-1].st_mode):
                return None
    except (OSError, ValueError):  # nothing is there, or it is no name
        return None
    finally:
        os.close(at)
    if len(states) > 1 and not stat.S_ISDIR(states[-1].st_mode):
        path, states = path.parent, states[:-1]
    return Shown(str(path), pin=(states[-1].st_dev, states[-1].st_ino))


def _reachable(path: Path) -> bool:
    """Return whether a path is there for this user; ``PATH`` may have others' folders."""
    try:
        return path.exists()
    except OSError:
        return False


_OF_PROGRAMS = ("bin", "lib", "lib64", "libexec", "include")
"""Folders beside ``bin`` that programs need: others, such as ``~/.local/share``, may have keys."""
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
"""The sign of a folder that has nothing but an installation in it, whole."""


def _installation(folder: Path) -> Iterator[Path]:
    """Yield the folders that programs in a folder need, that of their Python among them."""
    yield folder
    above = folder.parent
    if folder.name != "bin" or above in (Path("/"), Path("/usr"), home()):
        return
    whole = any(_reachable(above / name) for name in _ENVIRONMENT)
    yield from (above,) if whole else (above / name for name in _OF_PROGRAMS)
    if _reachable(python := folder / "python") and python.resolve().parent.name == "bin":
        yield python.resolve().parent.parent


def sizes_in_memory(bounds: Limits) -> dict[str, int]:
    """How much a node's own folders may hold, in bytes by path."""
    sizes = dict.fromkeys(_PRIVATE, bounds.tmp_bytes)
    run = max(bounds.tmp_bytes, _LEAST_RUN_BYTES)
    return {**sizes, "/run": run, "/dev/shm": bounds.memory_bytes}


def lay(
    shown: Sequence[Shown],
    whose: Account | None,
    *,
    processes: bool = False,
    files: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Lay the view out in this process's mount namespace, which must be its own. Raises OSError and
    MachineError.

    ``whose``: the user that will look at it, and may reach what is shown. ``processes``: mount
    ``/proc`` anew. ``files``: texts to be found in place of the host's, by path. ``sizes``: of
    folders that begin empty, in bytes.
    """
    make_private()
    private = {
        path: f"{options},size={sizes[path]}" if sizes and path in sizes else options
        for path, options in _PRIVATE.items()
    }
    blocked = {} if whose is None else _blocked(shown, whose)
    with ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o022))
        users = None if whose is None else stack.enter_context(_UserMappings(whose))
        trees = [
            (path, each, stack.enter_context(_Tree(path, each, users)))
            for path, each in _targets(shown)
        ]
        _set_attributes(_HERE, b"/", _READ_ONLY | _NO_SUID)
        for path, options in {**blocked, **private}.items():
            if Path(path).is_dir() and not Path(path).is_symlink():
                flags = _OLD_NO_SUID | _OLD_NO_DEVICES
                mount("tmpfs", path, "tmpfs", flags, options)
        if Path("/dev/pts").is_dir():
            mount("devpts", "/dev/pts", "devpts", _OLD_NO_SUID | _OLD_NO_EXEC, _TERMINALS)
        for path, _, tree in trees:
            _hold(path, {shown_at: each.writable for shown_at, each, _ in trees})
            tree.attach(path)
    if processes:
        mount("proc", "/proc", "proc", _OLD_NO_SUID | _OLD_NO_DEVICES | _OLD_NO_EXEC)
    for path, text in (files or {}).items():
        _replace(path, text)


def check(shown: Iterable[Shown]) -> None:
    """Raises MachineError where this process, without privileges, may not use what it is shown."""
    for path, writable, _ in shown:
        needed = os.R_OK | (os.X_OK if Path(path).is_dir() else 0) | (os.W_OK if writable else 0)
        if not os.access(path, needed):
            raise MachineError(
                "nodes run as an unprivileged user, who may not "
                f"{'write to' if writable else 'read'} {path}, and its file system cannot show it "
                "as that user's",
                fix=f"Move it to another file system, or `chmod -R o+{'rwX' if writable else 'rX'} "
                f"{path}`",
            )


def _targets(shown: Sequence[Shown]) -> list[tuple[str, Shown]]:
    """Return what is shown at each path and where links lead. Writable beats read-only."""
    targets: dict[str, Shown] = {}
    for each in shown:
        for path in dict.fromkeys((os.path.realpath(each.path), str(Path(each.path).absolute()))):
            if path not in targets or each.writable:
                targets[path] = each
    return [(path, targets[path]) for path in sorted(targets) if not _has(targets, path)]


def between(above: str | Path, below: str | Path) -> list[Path]:
    """The folders that are below one folder and above another, outermost first."""
    return [folder for folder in reversed(Path(below).parents) if Path(above) in folder.parents]


def _hold(path: str, writable: Mapping[str, bool]) -> None:
    """Make mounts of the folders between a writable folder and a path in it: they cannot be renamed
    then, and nothing else can be put in the place of what is shown there."""
    above = next((str(parent) for parent in Path(path).parents if str(parent) in writable), None)
    if above is None or not writable[above]:
        return
    for folder in between(above, path):
        if not os.path.ismount(folder) and folder.resolve() == folder:
            mount(str(folder), folder, None, BIND)


def _has(targets: Mapping[str, Shown], path: str) -> bool:
    """Return whether the nearest shown folder above ``path`` is writable where ``path`` is, and
    read-only where it is.

    Otherwise ``path`` is shown by itself: a package in a working folder stays read-only.
    """
    above = (str(parent) for parent in Path(path).parents)
    nearest = next((targets[parent] for parent in above if parent in targets), None)
    return nearest is not None and nearest.writable == targets[path].writable


def _blocked(shown: Iterable[Shown], whose: Account) -> dict[str, str]:
    """Folders above what is shown that ``whose`` may not enter: they begin empty."""
    blocked: dict[str, str] = {}
    for path, _ in _targets(list(shown)):
        for parent in reversed(Path(path).parents):
            if not _may_enter(parent.stat(), whose):
                blocked[str(parent)] = "mode=755"
                break
    return {path: options for path, options in blocked.items() if path != "/"}


def _may_enter(folder: os.stat_result, whose: Account) -> bool:
    if folder.st_uid == whose.user:
        return bool(folder.st_mode & stat.S_IXUSR)
    if folder.st_gid == whose.group:
        return bool(folder.st_mode & stat.S_IXGRP)
    return bool(folder.st_mode & stat.S_IXOTH)


class _Tree:
    """A copy of the mounts below a path, to be attached elsewhere; a context manager."""

    def __init__(self, path: str, shown: Shown, users: _UserMappings | None) -> None:
        flags = _CLONE | _CLOSE_ON_EXEC | _RECURSIVE
        self._descriptor = _call(_OPEN_TREE, _HERE, os.fsencode(path), flags)
        try:
            self._prepare(shown, users)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _prepare(self, shown: Shown, users: _UserMappings | None) -> None:
        # Of what was opened: by its path, others may have changed what is there.
        owner = os.fstat(self._descriptor)
        if shown.pin is not None and (owner.st_dev, owner.st_ino) != tuple(shown.pin):
            raise OSError(errno.ESTALE, f"{shown.path} is another folder than the run began with")
        self.owner = Account(owner.st_uid, owner.st_gid)
        self._is_folder = stat.S_ISDIR(owner.st_mode)
        attributes = _NO_SUID | _NO_DEVICES | (0 if shown.writable else _READ_ONLY)
        _set_attributes(self._descriptor, b"", attributes)
        self.mapped = users is None or not users.change(self.owner)
        """True if it is shown as that account's, where it was not made for it."""
        if users is not None and not self.mapped:
            # Not every file system can; ``check`` tells whether that matters.
            with suppress(OSError):
                _set_attributes(self._descriptor, b"", _ID_MAPPED, users.of(self.owner))
                self.mapped = True

    def __enter__(self) -> _Tree:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def attach(self, path: str) -> None:
        """At ``path``, which is made if a folder above it has become empty."""
        if os.path.realpath(path) != path:
            return  # a link that is still there leads to where it is attached as well
        if self._is_folder:
            Path(path).mkdir(parents=True, exist_ok=True)
        elif not Path(path).exists():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
        _call(_MOVE_MOUNT, self._descriptor, b"", _HERE, os.fsencode(path), _FROM_DESCRIPTOR)


class _UserMappings:
    """User namespaces in which an owner and a group are ``whose``, and everybody else is who he is:
    one for each owner, since making it takes a process and some 20 ms; a context manager."""

    def __init__(self, whose: Account) -> None:
        self._whose = whose
        self._descriptors: dict[Account, int] = {}

    def change(self, owner: Account) -> bool:
        """Return whether an owner's files would be somebody else's for ``whose``."""
        return owner.user != self._whose.user and owner.group != self._whose.group

    def of(self, owner: Account) -> int:
        """A descriptor of the namespace for an owner's files. Raises OSError."""
        if owner not in self._descriptors:
            self._descriptors[owner] = _user_namespace(owner, self._whose)
        return self._descriptors[owner]

    def __enter__(self) -> _UserMappings:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def _user_namespace(owner: Account, whose: Account) -> int:
    """A descriptor of a new user namespace in which ``owner`` is ``whose``. Raises OSError."""
    ready_in, ready_out = os.pipe()
    end_in, end_out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(end_out)
            unshare(NEW_USERS)
            os.write(ready_out, os.fsencode(Path("/proc/self").readlink()))
            os.read(end_in, 1)
        finally:
            os._exit(0)
    os.close(ready_out)
    try:
        number = os.read(ready_in, 20)  # as ``/proc`` has it, which need not be of this namespace
        if not number:
            raise OSError(0, "no user namespace")
        own = Path("/proc") / number.decode()
        (own / "uid_map").write_text(_rows(owner.user, whose.user))
        (own / "gid_map").write_text(_rows(owner.group, whose.group))
        return os.open(own / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_in, end_in, end_out):
            os.close(descriptor)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _rows(disk: int, shown: int) -> str:
    """Rows of a ``uid_map``: ``disk`` on the disk is ``shown``; all others are themselves."""
    rows, first = [f"{disk} {shown} 1"], 0
    for left_out in sorted({disk, shown}):
        rows += [f"{first} {first} {left_out - first}"] if left_out > first else []
        first = left_out + 1
    return "\n".join([*rows, f"{first} {first} {_IDS - first}"]) + "\n"


def _replace(path: str, text: str) -> None:
    """Have ``text`` in place of a file of the host's, where there is one."""
    if not Path(path).is_file():
        return
    own = Path("/run") / f"own-{Path(path).name}"
    own.write_text(text)
    own.chmod(0o444)
    mount(str(own), path, None, BIND)


def _set_attributes(folder: int, path: bytes, attributes: int, users: int = 0) -> None:
    """mount_setattr(2), for all mounts below, too. Raises OSError; MachineError where the kernel
    has no such call."""
    what = struct.pack("@QQQQ", attributes, 0, 0, users)
    room = ctypes.create_string_buffer(what, len(what))
    flags = _RECURSIVE | (0 if path else _EMPTY_PATH)
    try:
        _call(_SET_ATTRIBUTES, folder, path, flags, room, len(what))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        raise MachineError(
            "nodes of netns need Linux 5.12 or newer: this kernel cannot make all mounts below a "
            "folder read-only",
            fix="Use `--fabric docker` or `--fabric sim`",
        ) from None


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
