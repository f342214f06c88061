"""Calling Compose for one run. It reads its file from a pipe: who owns a folder could replace a file in it meanwhile."""

from __future__ import annotations

from testbed.errors import MachineError
from testbed.fabric.docker.render import project
from testbed.setup import engine
from testbed.setup.command import CommandFailed, run
from testbed.user_files import PinnedFolder

FILE = "compose.yaml"


class SubnetTaken(MachineError):
    """The engine refused a subnet: another run was quicker."""


class Compose:
    """Compose for one run."""

    def __init__(self, run: str, token: str) -> None:
        self.project, self._token = project(run), token
        self._text = ""

    def write(self, text: str, folder: PinnedFolder) -> None:
        """Take what is to be made; a copy for readers, which nothing reads again, goes into ``folder``."""
        self._text = text
        folder.write(FILE, text.encode())

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

    def _call(self, *arguments: str) -> str:
        program = engine.compose_command()
        if program is None:
            raise MachineError("Docker Compose is missing", fix="Run `make setup`")
        # The project's folder is where Compose looks for `.env`.
        which = ["--project-name", self.project, "--project-directory", "/", "--file", "-"]
        environment = {"NARROWS_TOKEN": self._token, "COMPOSE_IGNORE_ORPHANS": "true"}
        return run([*program, *which, *arguments], env=environment, data=self._text.encode())
