"""The image that all others stand on: pulled, or made by debootstrap where no registry answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError
from testbed.setup import packages
from testbed.setup.command import CommandFailed, answer, log, run
from testbed.setup.paths import in_checkout

DEFAULT_MIRROR = "http://deb.debian.org/debian"
_PULL_SECONDS = 240.0
ARCHIVE = "narrows.archive"
"""A label of images made here: the state of the archive that they are from."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """``images/base/base.toml``."""

    image: str
    suite: str
    python: str
    glibc: str
    packages: list[str]
    programs: list[str]
    leave_out: list[str]


def recipe() -> Recipe:
    """Read the recipe."""
    return Recipe(**tomllib.loads(in_checkout("images", "base", "base.toml").read_text()))


def make(tag: str) -> None:
    """Make the base image as ``tag``. Raises MachineError when neither way works here."""
    wanted = recipe()
    if not _pull(wanted, tag):
        _debootstrap(wanted, tag)


def _pull(wanted: Recipe, tag: str) -> bool:
    """Whether a registry gave the image; one that is here already is taken as it is."""
    try:
        if answer(["docker", "image", "inspect", "--format", "{{.Id}}", wanted.image]) is None:
            run(["docker", "pull", "-q", wanted.image], timeout=_PULL_SECONDS)
        _add_programs(wanted, tag)
    except CommandFailed as error:
        log.info("  no registry gives %s with what it needs: %s", wanted.image, error)
        log.info("  making Debian %s by debootstrap", wanted.suite)
        return False
    return True


def _add_programs(wanted: Recipe, tag: str) -> None:
    """Lay the programs that nodes start over the registry's image."""
    arguments = {"IMAGE": wanted.image, "PROGRAMS": " ".join(wanted.programs)}
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    dockerfile = in_checkout("images", "base", "Dockerfile").read_bytes()
    # The host's network: an engine of ours has no other with a way out.
    command = ["docker", "build", "-q", "--force-rm", "--network", "host", *options, "-t", tag, "-"]
    run(command, data=dockerfile, timeout=_PULL_SECONDS)


def _debootstrap(wanted: Recipe, tag: str) -> None:
    if os.geteuid() != 0:
        raise MachineError(
            "no image registry answers, and making a base image needs root",
            fix="Run `sudo make images` once",
        )
    packages.install(packages.BASE_IMAGE)
    with tempfile.TemporaryDirectory(prefix="narrows-base-") as root:
        include = f"--include={','.join([*wanted.packages, *wanted.programs])}"
        # without these two an archive is taken that nobody has signed
        signed = [f"--keyring={packages.DEBIAN_KEYS}", "--force-check-gpg"]
        command = ["debootstrap", "--variant=minbase", include, *signed]
        run([*command, wanted.suite, root, mirror()])
        _import(Path(root), wanted, tag)


def _import(root: Path, wanted: Recipe, tag: str) -> None:
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
    """Which state of Debian's archive a new system is from: the date of its signed list, and that list's SHA-256."""
    lists = sorted((root / "var/lib/apt/lists").glob("*_Release"))
    text = lists[0].read_bytes() if lists else b""
    date = re.search(r"^Date: *(.*)$", text.decode(errors="replace"), re.MULTILINE)
    return f"{date[1] if date else '?'} sha256:{hashlib.sha256(text).hexdigest()}"


def mirror() -> str:
    """The Debian mirror that this host's apt uses, or Debian's own."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    for path in files:
        if path.is_file() and (found := debian_mirror(path.read_text(errors="replace"))):
            return found
    return DEFAULT_MIRROR


def debian_mirror(sources: str) -> str | None:
    """The first archive of Debian proper in a sources file, one-line or deb822 style."""
    for line in sources.splitlines():
        if re.match(r"\s*(deb|URIs:)\s", line):
            for address in re.findall(r"\bhttps?://[^\s\]]+", line):
                if address.rstrip("/").endswith("/debian"):
                    return str(address).rstrip("/")
    return None
