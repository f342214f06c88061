"""Which build of PyTorch: without a GPU the CPU build, ten times smaller than the CUDA one.

Asked for in this order, and the first that pip can satisfy is taken: the CPU build where pip looks anyway,
the CPU build from PyTorch's own index, whatever build pip finds. With a GPU, any build but the CPU one, if there
is any. The pinned version is that of ``constraints.txt`` in every case.
"""

from __future__ import annotations

from pathlib import Path

from testbed.errors import MachineError
from testbed.setup.command import CommandFailed, log, run
from testbed.setup.paths import ROOT

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def has_gpu() -> bool:
    """Whether the kernel drives an NVIDIA device."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def pinned_version() -> str:
    """The version in ``constraints.txt``, e.g. ``2.13.0``."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name.strip() == "torch":
            return version.strip()
    raise MachineError("constraints.txt pins no version of torch", fix="Add `torch==<version>`")


def attempts(version: str, *, gpu: bool) -> list[list[str]]:
    """Arguments for pip, best first."""
    plain = [f"torch=={version}"]
    if gpu:
        return [[*plain, f"torch!={version}+cpu"], plain]
    cpu = [f"torch=={version}+cpu"]
    return [cpu, [*cpu, "--extra-index-url", CPU_INDEX], plain]


def install_torch(pip: list[str]) -> None:
    """Run ``pip`` (``… pip install`` or ``… pip download``) with the first attempt that works."""
    tries = attempts(pinned_version(), gpu=has_gpu())
    for number, arguments in enumerate(tries, start=1):
        try:
            run([*pip, "-q", *arguments])
            return
        except CommandFailed:
            if number == len(tries):
                raise
            log.info("  not found with `%s`, trying the next source", " ".join(arguments))
