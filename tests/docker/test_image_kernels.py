"""The node image comes with its loops compiled: a container of a run reads them, and compiles none."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = pytest.mark.docker

AS_IN_A_RUN = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none"]
SCRIPT = """
from numba.core import event
from testbed.compress.kernels import cache, warm
with event.install_recorder("numba:compile") as compiled:
    warm.all()
print(len(compiled.buffer), cache.directory())
"""


def test_loops_are_in_the_image(image: str) -> None:
    done = subprocess.run(
        ["docker", "run", "--rm", *AS_IN_A_RUN, image, "python", "-c", SCRIPT],
        check=True,
        capture_output=True,
        text=True,
    )
    count, directory = done.stdout.split()
    assert int(count) == 0
    assert directory.startswith("/tmp/.cache/narrows/")
