"""The ``testbed`` command: one module per verb, errors as sentences, exit codes 0, 1, 2, 3."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from testbed import __version__
from testbed.errors import InputError, NarrowsError, missing, printable
from testbed.process import set_default

# numpy's algebra would start threads as it is loaded, and a process with threads cannot enter a
# user namespace.
set_default("OPENBLAS_NUM_THREADS", "1")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PATHS = {errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
"""Error numbers of a path that a user gave, or of what somebody has put there."""

_SHOWN = 200
"""Characters of such a path."""

VERBS = {
    "init": "testbed.cli.validate:init",
    "doctor": "testbed.cli.doctor:doctor",
    "validate": "testbed.cli.validate:validate",
    "plan": "testbed.cli.plan:plan",
    "run": "testbed.cli.run:run",
    "exec": "testbed.cli.exec:execute",
    "replay": "testbed.cli.replay:replay",
    "compare": "testbed.cli.report:compare",
    "report": "testbed.cli.report:report",
    "timeline": "testbed.cli.timeline:timeline",
    "algorithms": "testbed.cli.algorithms:algorithms",
    "replay-controller": "testbed.cli.replay:replay_controller",
    "profile": "testbed.cli.profile:profile",
    "trace": "testbed.cli.trace:trace_app",
    "messages": "testbed.cli.messages:app",
    "bench": "testbed.bench.cli:app",
    "clean": "testbed.cli.doctor:clean",
}
"""Every verb and the function that carries it out, or the application of its own sub-verbs."""


def application(verbs: dict[str, str] = VERBS) -> typer.Typer:
    """The command with all its verbs."""
    app = typer.Typer(
        name="testbed",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train over links that follow a scenario, and compare what that costs.",
    )
    for verb, target in verbs.items():
        module, _, function = target.partition(":")
        carried_out_by = getattr(import_module(module), function)
        if isinstance(carried_out_by, typer.Typer):
            app.add_typer(carried_out_by, name=verb)
        else:
            app.command(verb)(carried_out_by)
    app.callback()(_options)
    return app


def _asked(arguments: list[str] | None) -> dict[str, str]:
    """The verb that a command line begins with, so that only its modules are imported; all verbs
    where it is none."""
    given = sys.argv[1:] if arguments is None else arguments
    return {given[0]: VERBS[given[0]]} if given and given[0] in VERBS else VERBS


def _version(wanted: bool) -> None:
    if wanted:
        print(f"narrows {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    """Train over links that follow a scenario, and compare what that costs."""


def main(arguments: list[str] | None = None) -> Any:
    """Entry point: run a verb; print an error of ours as a sentence and leave with its code."""
    _print_anything()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        return application(_asked(arguments))(args=arguments, standalone_mode=True)
    except NarrowsError as error:
        print(f"testbed: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("testbed: interrupted before anything was started", file=sys.stderr)
        sys.exit(NarrowsError.exit_code)
    except ModuleNotFoundError as error:
        sys.exit(missing(error))
    except OSError as error:
        if error.errno in _PATHS and error.filename is not None:
            name = printable(os.fsdecode(error.filename)[:_SHOWN])
            print(f"testbed: {name}: cannot be used: {error.strerror}", file=sys.stderr)
            sys.exit(InputError.exit_code)
        if error.errno not in _FULL:
            raise
        print(f"testbed: {_full(error)}", file=sys.stderr)
        sys.exit(NarrowsError.exit_code)


def _print_anything() -> None:
    """A character that the terminal's encoding lacks, or half a pair in a file's name, is printed
    as ``?``."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or out.encoding != "utf-8"):
        out.reconfigure(errors="replace")


def _full(error: OSError) -> str:
    """A sentence for a disk, or a user's share of one, that takes no more."""
    where = f" in {Path(error.filename).parent}" if error.filename else ""
    return f"nothing more can be written{where}: {error.strerror}. What was recorded before is kept"
