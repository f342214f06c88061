"""The wheel, and environments with nothing but it and the libraries that it declares, away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from long_files import limit_s
from packaging.requirements import Requirement
from verdict_rig import accepted_run

ROOT = Path(__file__).parents[1]


def build(folder: Path, source: Path = ROOT) -> Path:
    """The wheel of a source tree, made by the build backend that is installed: nothing is fetched."""
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir"]
    _call([sys.executable, "-m", "pip", "wheel", *flags, str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def source_archive(folder: Path) -> Path:
    _call(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            "sdist",
            "--directory",
            str(folder),
        ]
    )
    (archive,) = folder.glob("*.tar.gz")
    return archive


class Installed:
    """The wheel in a new environment in ``folder``, with the libraries of ``extras``: links to those that run the tests."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        self.folder, self.home = folder / "work", folder / "home"
        for path in (self.folder, self.home):
            path.mkdir(parents=True)
        place = folder / "environment"
        _call([sys.executable, "-m", "venv", "--without-pip", str(place)])
        flags = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
        _call(
            [
                sys.executable,
                "-m",
                "pip",
                "--python",
                str(place / "bin" / "python"),
                "install",
                *flags,
                str(wheel),
            ]
        )
        self.programs = place / "bin"
        (self.site,) = place.glob("lib/python*/site-packages")
        (metadata,) = self.site.glob("narrows-*.dist-info/METADATA")
        wanted = _wanted(metadata.read_text(), extras)
        for name in _with_what_they_need(wanted):
            self._link(name)

    def _link(self, name: str) -> None:
        found = distribution(name)
        for part in {
            file.parts[0]
            for file in found.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (self.site / part).exists():
                (self.site / part).symlink_to(found.locate_file(part))

    def run(
        self, *words: str, code: int | None = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """What `testbed` answered, in an environment with few variables and a working directory of its own."""
        return self.call([str(self.programs / "testbed"), *words], code=code, **variables)

    def python(self, text: str) -> str:
        return self.call([str(self.programs / "python"), "-P", "-c", text]).stdout.strip()

    def call(
        self, command: list[str], *, code: int | None = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        plain = {
            "PATH": f"{self.programs}:{os.defpath}",
            "HOME": str(self.home),
            "COLUMNS": "200",
            **variables,
        }
        done = subprocess.run(
            command, cwd=self.folder, env=plain, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert code in (None, done.returncode), (
            f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done


def short_run(installed: Installed, fabric: str) -> Path:
    """The records of ten steps of training on a fabric, whose verdict is such as a run may have."""
    installed.run("init", "first")
    scenario = installed.folder / "first" / "scenario.yaml"
    text, changed = re.subn(r"steps: \d+", "steps: 10", scenario.read_text())
    assert changed == 1
    scenario.write_text(text.replace("model: cnn", "model: mlp"))
    options = ["--fabric", fabric, "--algo", "none", "--no-figures"]
    # no loop is compiled there yet, beside other tests that compute, too
    patience = f"{limit_s(90.0):g}"
    words = ["run", str(scenario), *options]
    done = installed.run(*words, code=None, NARROWS_START_S=patience)
    runs = [*installed.folder.glob("runs/*")]
    assert len(runs) == 1, done.stderr
    (records,) = runs
    if fabric == "sim":  # where there is no processor to blame
        assert done.returncode == 0, done.stderr
    else:
        accepted_run(records, done.returncode)
    return records


def _wanted(metadata: str, extras: tuple[str, ...]) -> list[Requirement]:
    """The requirements of a package's metadata that hold with these extras."""
    lines = [
        line.partition(": ")[2]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    return [each for each in map(Requirement, lines) if _holds(each, ("", *extras))]


def _holds(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    return requirement.marker is None or any(
        requirement.marker.evaluate({"extra": each}) for each in extras
    )


def _with_what_they_need(wanted: list[Requirement]) -> Iterator[str]:
    """The names of the distributions, and of those that they need in turn, each once."""
    names: set[str] = set()
    open_ = [(each.name, tuple(each.extras)) for each in wanted]
    while open_:
        name, extras = open_.pop()
        if name in names:
            continue
        names.add(name)
        yield name
        needed = [Requirement(line) for line in distribution(name).requires or ()]
        open_ += [(each.name, tuple(each.extras)) for each in needed if _holds(each, ("", *extras))]


def _call(command: list[str]) -> None:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
