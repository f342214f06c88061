"""Which build of PyTorch: without a GPU the CPU build, ten times smaller than the CUDA one.

Asked for in this order, and the first that pip can satisfy is taken: the CPU build where pip looks anyway,
the CPU build from PyTorch's own index, the CUDA build. With a GPU, the CUDA build, if there is one. The version is that of
``constraints.txt`` in every case, and the files are those whose hashes are in ``locks/``.
"""

from __future__ import annotations

from pathlib import Path

from testbed.errors import MachineError
from testbed.setup.command import CommandFailed, log, run
from testbed.setup.locks import EXACTLY, TORCH_CPU, TORCH_GPU
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


def attempts(*, gpu: bool) -> list[tuple[Path, list[str]]]:
    """Lock files, best first, each with further arguments for pip."""
    if gpu:
        return [(TORCH_GPU, []), (TORCH_CPU, [])]
    return [(TORCH_CPU, []), (TORCH_CPU, ["--extra-index-url", CPU_INDEX]), (TORCH_GPU, [])]


def install_torch(pip: list[str]) -> Path:
    """Run ``pip`` (``… pip install`` or ``… pip download``) with the first attempt that works; returns its lock file."""
    tries = attempts(gpu=has_gpu())
    for number, (lock, more) in enumerate(tries, start=1):
        try:
            run([*pip, "-q", *EXACTLY, "-r", str(lock), *more])
            break
        except CommandFailed:
            if number == len(tries):
                raise
            log.info("  not found with `%s`, trying the next source", " ".join([lock.name, *more]))
    return lock
