"""Run unit tests with the lowest versions that pyproject.toml allows, in an environment of its own.

``make lower-bounds``; further arguments are for pytest. PyTorch's CPU build is taken where its
index answers; else the build of the index of packages, with what it needs for GPUs.
"""

from __future__ import annotations

import subprocess
import sys

from lock import BUILDING, PYPI, ROOT

from testbed.host.paths import CPU_INDEX, project

PLACE = ROOT / "build" / "lower-bounds"
TESTS = ["tests/unit", "-m", "not timed and not nightly and not root and not docker"]
TESTS += ["-q", "-n", "auto"]  # a worker for each processor


def main(arguments: list[str]) -> int:
    python = PLACE / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(PLACE)], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    uv += ["--default-index", PYPI, "--index-strategy", "unsafe-best-match"]
    # What the tools brought in a newer version is lowered, too.
    lowest = ["--upgrade", "--resolution", "lowest-direct", "--no-build-isolation"]
    lowest += ["--editable", f"{ROOT}[all]"]
    tools = [line for line in project()["dependency-groups"]["dev"] if "flwr" not in line]
    subprocess.run([*uv, *BUILDING, *tools, "pip", "packaging"], check=True)
    for index in (["--index", CPU_INDEX], []):
        if subprocess.run([*uv, *lowest, *index], check=False).returncode == 0:
            break
    else:
        return 1
    command = [str(python), "-m", "pytest", *(arguments or TESTS)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
