"""Write ``locks/``: the exact versions of every package that `make setup` installs, with the hashes
of their files.

``make lock``. Versions stay as they are where pyproject.toml and constraints.txt allow it;
``--upgrade`` takes the newest. PyTorch's CPU builds are in an index of its own: where that does not
answer, their hashes stay as they are.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.host.images import base_image_recipe as recipe
from testbed.host.images import requirements
from testbed.host.paths import (
    CPU_INDEX,
    IMAGE,
    PACKAGES,
    TORCH_CPU,
    TORCH_GPU,
    entries,
    name_of,
    pinned_version,
    project,
)

ROOT = Path(__file__).parents[1]
PYPI = "https://pypi.org/simple"
WITH_TORCH = re.compile(r"torch|triton|(nvidia|cuda)-.+")
"""What differs between builds of PyTorch: itself, and what only those for GPUs need."""
BUILDING = ["hatchling", "editables"]
"""Of the environment: what installs this package itself."""


def main() -> int:
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv else []
    described = project()
    tools = [*described["dependency-groups"]["dev"], *BUILDING]
    extras = described["project"]["optional-dependencies"]
    everything = [*described["project"]["dependencies"], *tools]
    everything += [line for extra in ("sim", "docker", "report") for line in extras[extra]]
    every_python = ["--universal", "--python-version", "3.11", *upgrade]
    packages = compiled(everything, every_python, PACKAGES, TORCH_GPU)
    write(PACKAGES, [entry for entry in packages if not WITH_TORCH.fullmatch(name_of(entry))])
    write(TORCH_GPU, [entry for entry in packages if WITH_TORCH.fullmatch(name_of(entry))])
    # Without conditions: pip asks those of the host's Python, not of the image's.
    images = ["--python-version", recipe().python, "--python-platform", "linux"]
    image = compiled([*requirements(), "pip"], [*images, "-c", str(PACKAGES)])
    write(IMAGE, [entry for entry in image if not WITH_TORCH.fullmatch(name_of(entry))])
    cpu = [f"torch=={pinned_version()}+cpu"]
    if cpu[0] not in TORCH_CPU.read_text() or upgrade:
        index = ["--universal", "--python-version", "3.11", "--no-deps", "--index", CPU_INDEX]
        write(TORCH_CPU, compiled(cpu, index))
    return 0


def compiled(wanted: list[str], options: list[str], *before: Path) -> list[str]:
    """Entries of a lock for ``wanted``; ``before``: locks whose versions are preferred."""
    with tempfile.TemporaryDirectory() as folder:
        asked, output = Path(folder, "asked.in"), Path(folder, "lock.txt")
        asked.write_text("\n".join(wanted))
        output.write_text("".join(path.read_text() for path in before if path.exists()))
        uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes"]
        uv += ["--no-annotate", "--no-header", "--default-index", PYPI]
        uv += ["--constraints", str(ROOT / "constraints.txt"), *options]
        subprocess.run([*uv, str(asked), "--output-file", str(output)], check=True)
        return entries(output.read_text())


def write(path: Path, lock: list[str]) -> None:
    path.write_text("\n".join(["# Written by `make lock`.", *lock, ""]))
    print(f"{path.relative_to(ROOT)}: {len(lock)} packages")


if __name__ == "__main__":
    sys.exit(main())
