"""Whether User-mode Linux and what it needs are on this machine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError
from testbed.guest import xstate
from testbed.setup import packages
from testbed.setup.command import have
from testbed.setup.packages import Need

MODULES = Path("/usr/lib/uml/modules")
_PROGRAM = "linux.uml"
_OVERLAY = "kernel/fs/overlayfs/overlay.ko"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A User-mode Linux: the program, and which release its modules are."""

    program: str
    release: str


def find() -> Kernel | None:
    """The newest kernel whose modules are there, or None."""
    program = shutil.which(_PROGRAM)
    releases = sorted(path.parents[3].name for path in MODULES.glob(f"*/{_OVERLAY}"))
    return Kernel(program, releases[-1]) if program and releases else None


def _compiler() -> bool:
    return not xstate.needed() or (
        shutil.which("cc") is not None and Path("/usr/include/elf.h").exists()
    )


GUEST = (
    Need("User-mode Linux", lambda: find() is not None, ("user-mode-linux",)),
    Need("programs for kernel modules", lambda: have("modprobe"), ("kmod",)),
    Need("e2fsprogs", lambda: have("mkfs.ext4"), ("e2fsprogs",)),
    Need("iproute2", lambda: have("ip"), ("iproute2",)),
    Need("C compiler (this processor is newer than User-mode Linux)", _compiler, ("gcc",)),
    Need("C headers", _compiler, ("libc6-dev",)),
)
"""What ``make setup`` installs."""


def require() -> Kernel:
    """The kernel. Raises MachineError with the command that installs what is missing."""
    lacking = packages.missing(GUEST)
    kernel = find()
    if lacking or kernel is None:
        names = ", ".join(need.name for need in lacking)
        wanted = " ".join(dict.fromkeys(need.packages[0] for need in lacking))
        raise MachineError(
            f"the guest kernel needs what is not installed: {names}",
            fix=f"Run `make setup` as root, or: apt-get install {wanted}",
        )
    return kernel
