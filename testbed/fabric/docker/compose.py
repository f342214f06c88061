"""Calling Compose on the file of one run."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import MachineError
from testbed.fabric.docker.render import project
from testbed.setup import engine
from testbed.setup.command import CommandFailed, run

FILE = "compose.yaml"


class SubnetTaken(MachineError):
    """The engine refused a subnet: another run was quicker."""


class Compose:
    """Compose for one run, whose file is ``directory/compose.yaml``."""

    def __init__(self, run: str, directory: Path, token: str) -> None:
        self.project, self.file, self._token = project(run), directory / FILE, token

    def write(self, text: str) -> None:
        """Write the file."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)

    def create(self) -> None:
        """Make networks and containers, start nothing. Raises SubnetTaken, MachineError."""
        try:
            self._call("up", "--no-start")
        except CommandFailed as error:
            if "overlap" in error.output.lower():
                raise SubnetTaken(error.message) from None
            raise

    def start(self, *services: str) -> None:
        """Start these services; all of them when none is named."""
        self._call("start", *services)

    def down(self) -> None:
        """Stop and remove everything of the project."""
        self._call("down", "--volumes", "--remove-orphans", "--timeout", "1")

    def _call(self, *arguments: str) -> str:
        program = engine.compose_command()
        if program is None:
            raise MachineError("Docker Compose is missing", fix="Run `make setup`")
        which = ["--project-name", self.project, "--file", str(self.file)]
        environment = {"NARROWS_TOKEN": self._token, "COMPOSE_IGNORE_ORPHANS": "true"}
        return run([*program, *which, *arguments], env=environment)
