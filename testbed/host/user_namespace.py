"""The netns fabric without root: a process that becomes root in a world of its own, and only there.

A user without CAP_NET_ADMIN and CAP_SYS_ADMIN moves this process into a new user, network and mount
namespace before anything else is done. Inside it is root over what it makes; outside it stays the
user it was, and so do the files that it writes. No namespace of it outlives its last process;
journals are the user's, as those of other runs are.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from testbed.errors import InputError, MachineError
from testbed.journal import folder
from testbed.process import (
    BIND,
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_USERS,
    RECURSIVE,
    effective_capabilities,
    environment,
    make_private,
    module_command,
    mount,
    set_default,
    unshare,
)

if TYPE_CHECKING:
    from testbed.links.capabilities import Capabilities


FABRIC = "netns"
"""The only fabric that makes namespaces itself."""

_NET_ADMIN, _SYS_ADMIN = 12, 21
_OWN = Path("/proc/self")
_SETTINGS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "15000"),
    "user.max_net_namespaces": ("0", "15000"),
    "user.max_mnt_namespaces": ("0", "15000"),
}
"""Host settings by name: the value that forbids user namespaces, and one that allows them."""

_NO_SUID, _NO_DEVICES = 2, 4
_OWN_TO_THE_RUN = {"netns", "narrows"}
"""Folders under ``/run`` of namespaces and journals: every user namespace has its own."""

OTHERWISE = (
    "Or: run with sudo; or with --fabric docker as a member of the group docker; or with --guest, "
    "in a kernel of your own."
)


def privileged() -> bool:
    """Return whether this process may make namespaces and change the network where it is."""
    capabilities = effective_capabilities()
    return all(capabilities >> capability & 1 for capability in (_NET_ADMIN, _SYS_ADMIN))


def become_able(fabric: str, *, keep: bool = False) -> bool:
    """Have the privileges that ``fabric`` needs; returns whether that took a world of our own.

    To be called before any thread is started. Raises InputError for what cannot be had there, and
    MachineError, with the setting to change, where the host forbids it.
    """
    if fabric != FABRIC or privileged():
        return False
    if os.geteuid() == 0:
        raise MachineError(
            "root without CAP_NET_ADMIN and CAP_SYS_ADMIN, as in a container, cannot make other "
            "users for nodes: they would run as root",
            fix="Run as an ordinary user, or give root these capabilities (`--privileged`)",
        )
    if keep:
        raise InputError(
            "without root a failed run cannot be left standing: its namespaces end with it",
            where="--keep",
            hint="Run as root (sudo), or leave --keep out: the records are kept in any case",
        )
    enter_own_world()
    return True


def enter_own_world() -> None:
    """Become root in new user, network and mount namespaces. Raises MachineError."""
    user, group = os.geteuid(), os.getegid()
    with suppress(MachineError):  # without a folder for them journals are as short-lived as /run
        set_default("NARROWS_STATE", str(folder()))
    try:
        unshare(NEW_USERS | NEW_NETWORK | NEW_MOUNTS)
        (_OWN / "setgroups").write_text("deny")
        (_OWN / "uid_map").write_text(f"0 {user} 1")
        (_OWN / "gid_map").write_text(f"0 {group} 1")
        _private_run()
        _loopback_up()
    except OSError as error:
        raise forbidden(error) from error


def forbidden(error: OSError, setting: Callable[[str], str | None] | None = None) -> MachineError:
    """Return the error for a user who may have no user namespace. ``setting`` reads one."""
    read = setting or _setting
    guilty = [
        f"{name}={allows}" for name, (forbids, allows) in _SETTINGS.items() if read(name) == forbids
    ]
    if not guilty and error.errno in (errno.ENOSPC, errno.EUSERS):
        guilty = [f"user.max_user_namespaces={_more(read('user.max_user_namespaces'))}"]
    if guilty:
        change = f"Have an administrator allow it: `sysctl -w {' '.join(guilty)}`."
    else:
        change = "A container's seccomp profile, or a security module, can forbid it, too."
    return MachineError(
        "the netns fabric needs root, or a user namespace, which this host forbids "
        f"({error.strerror})",
        fix=f"{change} {OTHERWISE}",
    )


def _more(limit: str | None) -> int:
    return max(15000, 2 * int(limit or 0))


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def _loopback_up() -> None:
    from testbed.links.network import devices
    from testbed.links.tc.netlink import NetlinkChannel

    with NetlinkChannel() as channel:
        devices.set_up(channel, 1)


def try_out() -> Capabilities:
    """Return what the kernel lets this user do in a user namespace, tried by another process.

    Raises MachineError where the host forbids it, or the kernel lacks what every link needs.
    """
    from testbed.links.capabilities import REQUIRED, Capabilities

    command = module_command("testbed.host.user_namespace")
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise MachineError(
            f"a user namespace could not be tried out: {done.stderr[-500:]}"
        ) from None
    if "refused" in answer:
        raise MachineError(answer["refused"], fix=answer["fix"])
    kinds, known = frozenset(answer.pop("kinds")), tuple(answer.pop("congestion"))
    capabilities = Capabilities(kinds=kinds, congestion=known, **answer)
    if missing := capabilities.missing(REQUIRED):
        raise missing
    return capabilities


def elsewhere(work: Callable[[], int]) -> int | None:
    """Do ``work`` as root of a world of its own, in a child process that ends with it.

    Returns what ``work`` found; None, and nothing was done, where the host forbids that. Raises the
    MachineError of ``work``.
    """
    folder()  # what it finds out is for the next time, too
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, work)
    os.close(writing)
    with os.fdopen(reading) as answers:
        said = answers.read()
    os.waitpid(child, 0)
    try:
        answer = json.loads(said)
    except ValueError:
        raise MachineError("what this machine can do could not be tried out") from None
    if "refused" in answer:
        raise MachineError(answer["refused"], fix=answer["fix"])
    result: int | None = answer["found"]
    return result


def _answer(writing: int, work: Callable[[], int]) -> NoReturn:
    """In the child, of which nothing but the answer may be seen: it shares its parent's files."""
    able, answer = False, dict[str, object](found=None)
    try:
        with suppress(MachineError):
            enter_own_world()
            able = True
        if able:
            answer["found"] = work()
    except MachineError as refusal:
        answer = {"refused": refusal.message, "fix": refusal.fix}
    except BaseException as error:  # it must not go on as a second parent, whatever it is
        answer = {
            "refused": f"what this machine can do could not be tried out: {error}",
            "fix": None,
        }
    finally:
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)


def _private_run(run: Path = Path("/run")) -> None:
    """Lay an empty file system over ``/run``, in which the folders that were there show through.

    Only those of namespaces and journals do not. Raises OSError.
    """
    make_private()
    before = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = {entry.name for entry in run.iterdir() if entry.is_dir() and not entry.is_symlink()}
        links = {entry.name: entry.readlink() for entry in run.iterdir() if entry.is_symlink()}
        mount("tmpfs", run, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=16m")
        for name in names - _OWN_TO_THE_RUN:
            (run / name).mkdir()
            _show(f"/proc/self/fd/{before}/{name}", run / name)
        for name, target in links.items():
            (run / name).symlink_to(target)
    finally:
        os.close(before)


def _show(source: str, target: Path) -> None:
    """Show the folder ``source`` at ``target``, unless it may not be looked into."""
    try:
        mount(source, target, None, BIND | RECURSIVE)
    except PermissionError:
        target.rmdir()


def main() -> None:
    """``python -m testbed.host.user_namespace``: try it, in a process that ends with it."""
    from testbed.links.capabilities import probe

    try:
        enter_own_world()
        capabilities = probe()
        answer: dict[str, object] = {**asdict(capabilities), "kinds": sorted(capabilities.kinds)}
    except MachineError as refusal:
        answer = {"refused": refusal.message, "fix": refusal.fix}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
