"""The images, each named by the content it was made from: what is there need not be made again.

``base`` (Debian and Python) ◀ ``runtime`` (what a node imports) ◀ ``node`` (the package itself). A change of the
code remakes the last one only. The shaper's service is the ``node`` image run as another user.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError
from testbed.setup import base_image, content, engine, wheels
from testbed.setup.command import answer, run, step
from testbed.setup.paths import ROOT, in_checkout

_PREFIX = "narrows/"
_KINDS = ("base", "runtime", "node")
_BUILD = ("docker", "build", "-q", "--force-rm", "--network", "none")
"""Everything comes with the context."""
_CHECKOUT, _MADE_FROM = "narrows.checkout", "narrows.from"
"""Labels: which checkout made an image, and the name of the image it was made from."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Names of the three images as this checkout would make them."""

    base: str
    runtime: str
    node: str


def tags() -> Tags:
    """What the images of this checkout are called; reads files, asks nobody."""
    base = content.of(in_checkout("images", "base"))
    recipe = base_image.recipe()
    runtime = content.of(base, wheels.made_from(recipe), in_checkout("images", "runtime"))
    node = content.of(runtime, in_checkout("testbed"), in_checkout("images", "node"))
    return Tags(
        *(
            f"{_PREFIX}{kind}:{made}"
            for kind, made in zip(_KINDS, (base, runtime, node), strict=True)
        )
    )


def exists(tag: str) -> bool:
    """Whether the engine holds an image of that name."""
    return answer(["docker", "image", "inspect", "--format", "{{.Id}}", tag]) is not None


def require() -> str:
    """The current node image's name. Raises MachineError when it has not been made."""
    engine.require()
    tag = tags().node
    if not exists(tag):
        raise MachineError(f"the image {tag} has not been made", fix="Run `make images`")
    return tag


def ensure() -> str:
    """Make what is missing, remove what is outdated, and return the node image's name."""
    wanted = tags()
    if exists(wanted.node):
        return wanted.node
    if not exists(wanted.runtime):
        if not exists(wanted.base):
            with step("making the base image (about a minute)"):
                base_image.make(wanted.base)
        with step("fetching wheels for the image"):
            folder = wheels.fetch(base_image.recipe())
        with step("building the runtime image (about two minutes)"):
            _build("runtime", wanted.runtime, {"BASE": wanted.base}, {"wheels": folder})
    with step("building the node image"):
        package = in_checkout("testbed")
        _build("node", wanted.node, {"RUNTIME": wanted.runtime}, {"testbed": package})
    remove_outdated(wanted)
    return wanted.node


def _build(kind: str, tag: str, arguments: dict[str, str], folders: dict[str, Path]) -> None:
    """Build from a context given as an archive: nothing is staged, nothing else gets in."""
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    options += [f"--label={_MADE_FROM}={next(iter(arguments.values()))}"]
    options += [f"--label={checkout_label()}"]
    context = _archive(in_checkout("images", kind, "Dockerfile"), folders)
    try:
        run([*_BUILD, *options, "-t", tag, "-"], data=context)
    finally:
        answer(["docker", "image", "prune", "-f", "--filter", "label=narrows.image"], timeout=60)


def _archive(dockerfile: Path, folders: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(dockerfile, "Dockerfile")
        for name, folder in folders.items():
            for path in content.files(folder):
                archive.add(path, f"{name}/{path.relative_to(folder)}")
    return buffer.getvalue()


def remove_outdated(wanted: Tags) -> None:
    """Remove this checkout's older node images, and what no node image of any checkout stands on.

    The engine keeps what containers still use. What was made just now may be another checkout's, at work as well.
    """
    for node in _listed("node", f"--filter=label={checkout_label()}"):
        if node != wanted.node:
            answer(["docker", "image", "rm", node])
    for kind, over in (("runtime", "node"), ("base", "runtime")):
        used = {_stands_on(tag) for tag in _listed(over)} | {wanted.runtime, wanted.base}
        recent = set(_listed(kind, f"--filter=since={wanted.runtime}"))
        for tag in set(_listed(kind)) - used - recent:
            answer(["docker", "image", "rm", tag])


def _listed(kind: str, *filters: str) -> list[str]:
    """The names of the images of a kind."""
    command = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", *filters, _PREFIX + kind]
    return (answer(command) or "").split()


def _stands_on(tag: str) -> str:
    """The image that this one was made from."""
    label = f'{{{{index .Config.Labels "{_MADE_FROM}"}}}}'
    return answer(["docker", "image", "inspect", "--format", label, tag]) or ""


def checkout_label() -> str:
    """The label of what this checkout made, among those on this machine that share its engine."""
    return f"{_CHECKOUT}={content.of(str(ROOT))}"
