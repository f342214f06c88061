"""What passes between the host and its guest, as files in a folder that both see."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from testbed.process import SET_BY_US

ORDER, OUTCOME = "order.json", "outcome.json"
OUTPUT, ERRORS = "output", "errors"
"""What the command writes to its standard output and to its standard error, as it comes."""
STOP = "stop-"
"""``stop-15`` asks that the command be sent signal 15."""

_OWN_TO_THE_HOST = {"DOCKER_HOST", "LD_PRELOAD", "NARROWS_STATE", "XDG_RUNTIME_DIR"}
"""Variables that name what only the host has."""


INSIDE = "NARROWS_GUEST"
"""Set for a ``testbed`` that runs in a guest."""
_START_S = 600.0
"""How long a run's nodes may take to start: its only processor is slower, and imports torch once for each."""


def environment() -> dict[str, str]:
    """This process's variables, but for those that name what only the host has, or that no user has set."""
    without = _OWN_TO_THE_HOST | SET_BY_US
    return {name: value for name, value in os.environ.items() if name not in without}


def slower() -> dict[str, str]:
    """The same, for a ``testbed`` that is to be patient."""
    return environment() | {"NARROWS_START_S": f"{_START_S:g}", INSIDE: "1"}


@dataclass(frozen=True, slots=True)
class Order:
    """A command for the guest. Everything but ``writable`` folders is read from the host and kept in memory."""

    command: list[str]
    writable: list[Path] = field(default_factory=list)
    """Folders of the host in which what the command writes stays; absolute, and there already."""
    docker: bool = False
    """Whether a Docker engine is to run in the guest."""
    cwd: Path = field(default_factory=Path.cwd)
    environment: dict[str, str] = field(default_factory=environment)

    def write(self, folder: Path) -> None:
        """Leave it for the guest."""
        paths = {"cwd": str(self.cwd), "writable": [str(path) for path in self.writable]}
        (folder / ORDER).write_text(json.dumps(asdict(self) | paths))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Take what the host left."""
        values = json.loads((folder / ORDER).read_text())
        writable = [Path(path) for path in values.pop("writable")]
        return cls(**{**values, "writable": writable, "cwd": Path(values["cwd"])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended: the command's exit status (128 + n: killed by signal n), or why there was none."""

    status: int
    problem: str = ""

    def write(self, folder: Path) -> None:
        """Leave it for the host; all of it or nothing."""
        draft = folder / f"{OUTCOME}.draft"
        draft.write_text(json.dumps(asdict(self)))
        draft.rename(folder / OUTCOME)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """None where the guest left nothing."""
        path = folder / OUTCOME
        return cls(**json.loads(path.read_text())) if path.exists() else None
