"""``testbed`` in the process of the tests: as it is started in a folder, without what a start costs."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner, Result

from testbed.cli import application, main


class Ended(NamedTuple):
    """A command that has ended. Fields are named as those of ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


def carried_out_in(folder: Path, *arguments: str) -> Ended:
    """Carry out ``testbed arguments`` with ``folder`` as the working directory."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with chdir(folder), redirect_stdout(output), redirect_stderr(errors):
        try:
            main(list(arguments))
        except SystemExit as end:
            assert end.code is None or isinstance(end.code, int), end.code
            code = end.code or 0
    return Ended(code, output.getvalue(), errors.getvalue())


def call(*arguments: object) -> Result:
    """Carry out ``testbed arguments``; an error of it is in the result."""
    return CliRunner().invoke(application(), [*map(str, arguments)])
