"""The images, each named by the content it was made from: what is there need not be made again.

``base`` (Debian and Python) ◀ ``runtime`` (what a node imports) ◀ ``node`` (the package itself). A
change of the code remakes the last one only. The shaper's service is the ``node`` image run as
another user.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError
from testbed.host import docker_engine, packages, paths
from testbed.host.packages import CommandFailed, answer, log, run, side_by_side, step
from testbed.host.paths import (
    EXACTLY,
    IMAGE,
    MODULE,
    ROOT,
    TORCH_CPU,
    TORCH_GPU,
    entries,
    has_gpu,
    install_torch,
    name_of,
    project,
    shipped,
)
from testbed.process import PACKAGE

DEFAULT_MIRROR = "http://deb.debian.org/debian"
_PULL_SECONDS = 240.0
ARCHIVE = "narrows.archive"
"""A label of images made here: the state of the archive that they are from."""


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """``images/base/base.toml``."""

    image: str
    suite: str
    python: str
    glibc: str
    packages: list[str]
    programs: list[str]
    leave_out: list[str]


def base_image_recipe() -> ImageRecipe:
    """Read the recipe."""
    return ImageRecipe(**tomllib.loads(shipped("images", "base", "base.toml").read_text()))


def make(tag: str) -> None:
    """Make the base image as ``tag``. Raises MachineError when neither way works here."""
    wanted = base_image_recipe()
    if not _pull(wanted, tag):
        _debootstrap(wanted, tag)


def _pull(wanted: ImageRecipe, tag: str) -> bool:
    """Pull an image unless it is here; return whether a registry gave it."""
    try:
        if answer(["docker", "image", "inspect", "--format", "{{.Id}}", wanted.image]) is None:
            run(["docker", "pull", "-q", wanted.image], timeout=_PULL_SECONDS)
        _add_programs(wanted, tag)
    except CommandFailed as error:
        log.info("  no registry gives %s with what it needs: %s", wanted.image, error)
        log.info("  making Debian %s by debootstrap", wanted.suite)
        return False
    return True


def _add_programs(wanted: ImageRecipe, tag: str) -> None:
    """Lay the programs that nodes start over the registry's image."""
    arguments = {"IMAGE": wanted.image, "PROGRAMS": " ".join(wanted.programs)}
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    dockerfile = shipped("images", "base", "Dockerfile").read_bytes()
    # The host's network: an engine of ours has no other with a way out.
    command = ["docker", "build", "-q", "--force-rm", "--network", "host", *options, "-t", tag, "-"]
    run(command, data=dockerfile, timeout=_PULL_SECONDS)


def _debootstrap(wanted: ImageRecipe, tag: str) -> None:
    if os.geteuid() != 0:
        raise MachineError(
            "no image registry answers, and making a base image needs root",
            fix=f"Run `sudo {sys.executable} -P -m testbed setup images` once",
        )
    packages.install(packages.BASE_IMAGE)
    with tempfile.TemporaryDirectory(prefix="narrows-base-") as root:
        include = f"--include={','.join([*wanted.packages, *wanted.programs])}"
        # without these two an archive is taken that nobody has signed
        signed = [f"--keyring={packages.DEBIAN_KEYS}", "--force-check-gpg"]
        command = ["debootstrap", "--variant=minbase", include, *signed]
        run([*command, wanted.suite, root, mirror()])
        _import(Path(root), wanted, tag)


def _import(root: Path, wanted: ImageRecipe, tag: str) -> None:
    """Turn a directory into an image of one layer."""
    exclude = [f"--exclude={pattern}" for pattern in wanted.leave_out]
    labels = {"narrows.image": "base", ARCHIVE: archive(root)}
    changes = [f"--change=LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
    with subprocess.Popen(
        ["tar", "-C", str(root), "--numeric-owner", *exclude, "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        done = subprocess.run(
            ["docker", "import", *changes, "-", tag],
            check=False,
            stdin=tar.stdout,
            capture_output=True,
        )
    if tar.returncode or done.returncode:
        raise CommandFailed(["docker", "import"], done.stderr.decode(errors="replace"))


def archive(root: Path) -> str:
    """State of Debian's archive that a system is from: its list's date and SHA-256."""
    lists = sorted((root / "var/lib/apt/lists").glob("*_Release"))
    text = lists[0].read_bytes() if lists else b""
    date = re.search(r"^Date: *(.*)$", text.decode(errors="replace"), re.MULTILINE)
    return f"{date[1] if date else '?'} sha256:{hashlib.sha256(text).hexdigest()}"


def mirror() -> str:
    """The Debian mirror that this host's apt uses, or Debian's own."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    for path in files:
        if path.is_file() and (address := debian_mirror(path.read_text(errors="replace"))):
            return address
    return DEFAULT_MIRROR


def debian_mirror(sources: str) -> str | None:
    """The first archive of Debian proper in a sources file, one-line or deb822 style."""
    for line in sources.splitlines():
        if re.match(r"\s*(deb|URIs:)\s", line):
            for address in re.findall(r"\bhttps?://[^\s\]]+", line):
                if address.rstrip("/").endswith("/debian"):
                    return str(address).rstrip("/")
    return None


_HOST_ONLY = {"protobuf"}
"""Dependencies that no node imports: for traces of other programs."""


def requirements() -> list[str]:
    """Return what nodes need of the project's dependencies: those of links and of training."""
    described = project()["project"]
    listed = [*described["dependencies"], *described["optional-dependencies"]["sim"]]
    return [line for line in listed if name_of(line) not in _HOST_ONLY]


def made_from(recipe: ImageRecipe) -> str:
    """Content hash of everything that decides which wheels are fetched."""
    target = f"{recipe.python} {recipe.glibc} {platform.machine()} gpu={has_gpu()}"
    return paths.of(IMAGE, TORCH_CPU, TORCH_GPU, target)


def fetch(recipe: ImageRecipe) -> Path:
    """Fill the cache's ``wheels/`` and return it; ``requirements.txt`` for the image is in it."""
    wheels = paths.cache("wheels")
    stamp = paths.Stamp(wheels / ".made-from", made_from(recipe))
    if stamp.fresh():
        return wheels
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [*MODULE, "pip", "download", "--dest", str(wheels), *_target(recipe)]
    with step("fetching wheels for the image"):
        torch = install_torch(pip)
        run([*pip, "-q", *EXACTLY, "-r", str(IMAGE)])
    # With their hashes: what is installed in the image is compared with them once more.
    listed = [*entries(torch.read_text()), *entries(IMAGE.read_text())]
    kept = [entry for entry in listed if name_of(entry) != "pip"]  # it runs from its archive
    (wheels / "requirements.txt").write_text("\n".join([*kept, ""]))
    stamp.write()
    return wheels


def _target(recipe: ImageRecipe) -> list[str]:
    """The image's Python and C library for pip, whatever the host's are."""
    machine = platform.machine()
    newest = int(recipe.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(5, newest + 1)]
    tags += [f"manylinux2014_{machine}", f"linux_{machine}"]
    platforms = [argument for tag in tags for argument in ("--platform", tag)]
    python = ["--implementation", "cp", "--python-version", recipe.python]
    return ["--only-binary=:all:", *python, *platforms]


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
    """Return the names of this checkout's images; reads files, asks nobody."""
    base = paths.of(shipped("images", "base"))
    recipe = base_image_recipe()
    runtime = paths.of(base, made_from(recipe), shipped("images", "runtime"))
    node = paths.of(runtime, PACKAGE, shipped("images", "node"))
    return Tags(
        *(
            f"{_PREFIX}{kind}:{digest}"
            for kind, digest in zip(_KINDS, (base, runtime, node), strict=True)
        )
    )


def exists(tag: str) -> bool:
    """Return whether the engine has an image of that name."""
    return answer(["docker", "image", "inspect", "--format", "{{.Id}}", tag]) is not None


def require() -> str:
    """The current node image's name. Raises MachineError when it has not been made."""
    docker_engine.require()
    tag = tags().node
    if not exists(tag):
        raise MachineError(f"the image {tag} has not been made", fix="Run `testbed setup`")
    return tag


def ensure() -> str:
    """Make what is missing, remove what is outdated, and return the node image's name."""
    wanted = tags()
    if exists(wanted.node):
        return wanted.node
    if not exists(wanted.runtime):
        side_by_side(lambda: _ensure_base(wanted.base), lambda: fetch(base_image_recipe()))
        wheels = {"wheels": fetch(base_image_recipe())}
        with step("building the runtime image (about a minute)"):
            _build("runtime", wanted.runtime, {"BASE": wanted.base}, wheels)
    with step("building the node image"):
        package = PACKAGE
        _build("node", wanted.node, {"RUNTIME": wanted.runtime}, {"testbed": package})
    remove_outdated(wanted)
    return wanted.node


def _ensure_base(tag: str) -> None:
    if not exists(tag):
        with step("making the base image (about a minute)"):
            make(tag)


def _build(kind: str, tag: str, arguments: dict[str, str], folders: dict[str, Path]) -> None:
    """Build from a context given as an archive: nothing is staged, nothing else gets in."""
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    options += [f"--label={_MADE_FROM}={next(iter(arguments.values()))}"]
    options += [f"--label={checkout_label()}"]
    context = _archive(shipped("images", kind, "Dockerfile"), folders)
    try:
        run([*_BUILD, *options, "-t", tag, "-"], data=context)
    finally:
        answer(["docker", "image", "prune", "-f", "--filter", "label=narrows.image"], timeout=60)


def _archive(dockerfile: Path, folders: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(dockerfile, "Dockerfile")
        for name, folder in folders.items():
            for path in paths.files(folder):
                archive.add(path, f"{name}/{path.relative_to(folder)}")
    return buffer.getvalue()


def remove_outdated(wanted: Tags) -> None:
    """Remove this checkout's older node images, and what no node image of any checkout stands on.

    The engine keeps what containers still use. What was made just now may be another checkout's, at
    work as well.
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
    return f"{_CHECKOUT}={paths.of(str(ROOT))}"


def require_user_images(images: Iterable[str], *, pull: bool = False) -> None:
    """Have the engine hold ``images``, pulled if ``pull``. Raises MachineError."""
    docker_engine.require()
    for image in dict.fromkeys(images):
        if answer(["docker", "image", "inspect", "--format", "{{.Id}}", "--", image]) is not None:
            continue
        if not pull:
            raise MachineError(
                f"the image {image} is not on this machine, and none is fetched unasked",
                fix=f"Run `docker pull {image}`, or give --pull",
            )
        with step(f"pulling {image}"):
            _pull_user_image(image)


def _pull_user_image(image: str) -> None:
    try:
        run(["docker", "pull", "--quiet", "--", image])
    except CommandFailed as error:
        raise MachineError(
            f"{image} could not be pulled: {error.output.strip()}",
            fix="Build it, or load it with `docker load`",
        ) from None
