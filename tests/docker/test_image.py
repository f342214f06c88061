"""The node image: what is in it, and as whom it runs."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import __version__
from testbed.fabric.docker.compose_file import load_templates
from testbed.host import docker_engine, images
from testbed.host.paths import ROOT

pytestmark = pytest.mark.docker


AS_IN_A_RUN = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none"]
KERNELS = """
from numba.core import event
from testbed.compress.kernels import compilation as cache, compilation as warm
with event.install_recorder("numba:compile") as compiled:
    warm.all()
print(len(compiled.buffer), cache.directory())
"""


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    """One container for all that is looked at."""
    name = f"narrows-image-{secrets.token_hex(4)}"
    start = ["docker", "run", "--rm", "--detach", "--name", name, *AS_IN_A_RUN, image]
    subprocess.run([*start, "sleep", "infinity"], check=True, capture_output=True)
    yield name
    # waits until it is gone, which the next test counts on
    subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


def _run(container: str, *command: str) -> str:
    done = subprocess.run(
        ["docker", "exec", container, *command],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_image_is_named_by_its_content(image: str) -> None:
    assert image == images.tags().node
    assert images.exists(image) and images.ensure() == image


def test_user_is_not_root(container: str) -> None:
    assert _run(container, "id", "-u") == "10001"


def test_package_and_its_libraries_can_be_imported(container: str) -> None:
    code = "import numpy, pydantic, sklearn, torch, testbed; print(testbed.__version__)"
    assert _run(container, "python", "-c", code) == __version__


def test_byte_code_is_in_the_image(container: str) -> None:
    listed = _run(container, "find", "/opt/narrows/app/testbed", "-maxdepth", "2", "-name", "*.pyc")
    assert "__init__" in listed


def test_programs_that_nodes_start_are_in_the_image(container: str) -> None:
    assert _run(container, "iperf3", "--version").startswith("iperf 3")


def test_loops_are_compiled_in_the_image(container: str) -> None:
    """A container of a run reads them, and compiles none."""
    count, directory = _run(container, "python", "-c", KERNELS).split()
    assert int(count) == 0
    assert directory.startswith("/tmp/.cache/narrows/")


@pytest.fixture
def older(image: str) -> Iterator[tuple[str, str]]:
    """Two older node images: one that this checkout made, one that another made."""
    makers = (images.checkout_label(), "narrows.checkout=another")
    made = []
    for maker in makers:
        tag = f"narrows/node:older-{secrets.token_hex(4)}"
        command = ["docker", "build", "-q", f"--label={maker}", "-t", tag, "-"]
        subprocess.run(command, input=f"FROM {image}\n", check=True, text=True, capture_output=True)
        made.append(tag)
    yield made[0], made[1]
    for tag in filter(images.exists, made):
        subprocess.run(["docker", "image", "rm", tag], check=True, capture_output=True)


def test_only_this_checkouts_older_images_are_removed(image: str, older: tuple[str, str]) -> None:
    mine, anothers = older
    images.remove_outdated(images.tags())
    assert not images.exists(mine)
    assert images.exists(anothers) and images.exists(image)


@pytest.mark.parametrize("files", [["base.yaml"], ["base.yaml", "gpu.yaml"]])
def test_compose_reads_the_templates(files: list[str], tmp_path: Path) -> None:
    """They are templates, so an image is laid over them first."""
    overlay = tmp_path / "image.yaml"
    services = load_templates(ROOT / "compose").base["services"]
    overlay.write_text(json.dumps({"services": {name: {"image": "x"} for name in services}}))
    paths = [*(ROOT / "compose" / name for name in files), overlay]
    command = [
        *(docker_engine.compose_command() or ()),
        *(a for p in paths for a in ("-f", str(p))),
    ]
    done = subprocess.run([*command, "config", "-q"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
