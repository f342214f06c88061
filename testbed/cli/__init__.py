"""The ``testbed`` command: one module per verb, errors as sentences, exit codes 0, 1, 2, 3."""

from __future__ import annotations

import ast
import errno
import io
import logging
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from testbed import __version__
from testbed.errors import InputError, MachineError, NarrowsError, missing, printable, shortage
from testbed.process import guard, set_default

# numpy's algebra would start threads as it is loaded, and a process with threads cannot enter a
# user namespace.
set_default("OPENBLAS_NUM_THREADS", "1")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATHS = {errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
"""Error numbers of a path that a user gave, or of what somebody has put there."""

_SHOWN = 200
"""Characters of such a path."""

VERBS = {
    "init": "testbed.cli.validate:init",
    "setup": "testbed.cli.doctor:setup",
    "doctor": "testbed.cli.doctor:doctor",
    "validate": "testbed.cli.validate:validate",
    "plan": "testbed.cli.plan:plan",
    "run": "testbed.cli.run:run",
    "exec": "testbed.cli.exec:execute",
    "replay": "testbed.cli.replay:replay",
    "compare": "testbed.cli.run:compare",
    "report": "testbed.cli.report:report",
    "export": "testbed.cli.report:export",
    "timeline": "testbed.cli.report:timeline",
    "algorithms": "testbed.cli.algorithms:algorithms",
    "data": "testbed.cli.algorithms:data_app",
    "replay-controller": "testbed.cli.replay:replay_controller",
    "profile": "testbed.cli.profile:profile",
    "clean": "testbed.cli.doctor:clean",
    "trace": "testbed.cli.trace:trace_app",
    "messages": "testbed.cli.messages:app",
    "bench": "testbed.bench.cli:app",
}
"""Every verb and the function that carries it out, or the application of its own sub-verbs."""


class Verb(TyperCommand):
    """A verb whose module is imported when the verb is called, not when it is listed."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Make the context of the real command, which then runs in place of this one."""
        module, _, name = VERBS[str(self.name)].partition(":")
        target = getattr(import_module(module), name)
        app = _application(add_completion=False)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=self.name)
        else:
            app.command(self.name)(target)
        return (
            get_group(app).commands[str(self.name)].make_context(info_name, args, parent, **extra)
        )


class Verbs(TyperGroup):
    """All verbs, in the order of ``VERBS``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": {verb: Verb(verb) for verb in VERBS}})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb with its description, or None if there is none of this name."""
        verb = super().get_command(ctx, cmd_name)
        if verb is not None:
            verb.help = _description(VERBS[cmd_name])
        return verb


def _description(target: str) -> str | None:
    """The docstring of a verb's function or the help of its application, read from the source:
    importing all verbs takes a second."""
    module, _, name = target.partition(":")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            assert isinstance(node.value, ast.Call)
            return str(
                next(ast.literal_eval(k.value) for k in node.value.keywords if k.arg == "help")
            )
    raise AttributeError(target)


def _application(**options: Any) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False, **options)
    app.callback()(_options)
    return app


def application() -> typer.Typer:
    """The command with all its verbs."""
    return _application(
        add_completion=True,
        name="testbed",
        cls=Verbs,
        no_args_is_help=True,
        help="Train over links that follow a scenario, and compare what that costs.",
    )


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
    guard()
    _open_standard_files()
    _print_anything()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _carried_out(arguments)
    except NarrowsError as error:
        leave(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        sys.exit(missing(error))
    except (OSError, RuntimeError, MemoryError) as error:
        if (sentence := _of_the_system(error)) is None:
            raise
        leave(*sentence)


def _carried_out(arguments: list[str] | None) -> Any:
    """Run a verb, and see to it that all it printed has left this process."""
    try:
        return application()(args=arguments, standalone_mode=True)
    except SystemExit:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _let_go(sys.stdout)
            sys.exit(NarrowsError.exit_code)
        except OSError as error:
            raise NarrowsError(_full(error)) from None
        raise


def leave(text: str, code: int) -> NoReturn:
    """End with a sentence and an exit code, whatever standard output and standard error lead to."""
    for file, last in ((sys.stdout, ""), (sys.stderr, f"testbed: {text}\n")):
        try:
            print(end=last, file=file, flush=True)
        except OSError:
            _let_go(file)
    sys.exit(code)


def _let_go(file: IO[str]) -> None:
    """Have what a file does not take go nowhere: at the end Python would try again."""
    with suppress(OSError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), file.fileno())


def _open_standard_files() -> None:
    """Have standard input, output and error lead nowhere where whoever called has closed them.

    The next file that is opened would have their numbers, and what is printed would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: that one
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, mode, closefd=False))  # noqa: SIM115


def _print_anything() -> None:
    """A character that the terminal's encoding lacks, or half a pair in a file's name, is printed
    as ``?``."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or out.encoding != "utf-8"):
        out.reconfigure(errors="replace")


def _of_the_system(error: Exception) -> tuple[str, int] | None:
    """A sentence and an exit code for what the system refuses; None: it is an error of ours."""
    if (lack := shortage(error)) is not None:
        return str(lack), lack.exit_code
    if not isinstance(error, OSError):
        return None
    if error.errno in _PATHS and error.filename is not None:
        name = printable(os.fsdecode(error.filename)[:_SHOWN])
        return f"{name}: cannot be used: {error.strerror}", InputError.exit_code
    if error.errno in _FULL:
        return _full(error), NarrowsError.exit_code
    if error.errno == errno.ENOENT and not _has_working_directory():
        gone = "the working directory is not there any more. Start the command in one that is"
        return gone, InputError.exit_code
    if error.errno == errno.ENOENT and error.filename is None:  # tempfile's
        return f"{error.strerror}", MachineError.exit_code
    return None


def _has_working_directory() -> bool:
    """Return whether nobody has removed it."""
    try:
        os.getcwd()  # noqa: PTH109 - the same, without a path
    except OSError:
        return False
    return True


def _full(error: OSError) -> str:
    """A sentence for a disk, a user's share of one, or a file that takes no more."""
    where = f" in {Path(error.filename).parent}" if error.filename else ""
    return f"nothing more can be written{where}: {error.strerror}. What was recorded before is kept"
