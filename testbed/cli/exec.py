"""``testbed exec``: any command on the nodes of a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.cli.options import rerun
from testbed.errors import InputError, printable

if TYPE_CHECKING:
    from testbed.runner.exec.launch_spec import LaunchSpec
    from testbed.runner.exec.run import Executed
    from testbed.user_files import OpenedPath


Command = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND…",
        help="What to run, after `--`: torchrun train.py, python train.py, sh -c '…'.",
        show_default=False,
    ),
]
Processes = Annotated[
    int, typer.Option("--nproc", help="Processes in every node.", min=1, max=1024, metavar="N")
]
Label = Annotated[
    str, typer.Option("--name", help="What records and figures call it.", metavar="LABEL")
]
AwaitBegin = Annotated[
    bool,
    typer.Option(
        "--await-begin",
        help="The links' history starts when all processes have called testbed.mark.begin().",
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help=(
            "A variable for the command, or the name of one of your own environment; may be "
            "repeated."
        ),
        metavar="NAME[=VALUE]",
    ),
]
EnvFile = Annotated[
    list[Path] | None,
    typer.Option(
        "--env-file",
        help=(
            "A file of variables, NAME=VALUE in a line, which no command line or record shows; "
            "may be repeated."
        ),
        metavar="FILE",
    ),
]
Read = Annotated[
    list[Path] | None,
    typer.Option(
        "--read",
        help="A folder or file that nodes have under its own path, to read; may be repeated.",
        metavar="PATH",
    ),
]
Pull = Annotated[
    bool, typer.Option("--pull", help="Fetch images of the scenario that the engine lacks.")
]
WritableRoot = Annotated[
    bool,
    typer.Option(
        "--writable-root",
        help=(
            "Let containers of the scenario's own images write to their root, as far as their "
            "user may."
        ),
    ),
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="End it after so long.",
        min=1.0,
        max=86_400.0,
        metavar="N",
        callback=options.finite,
    ),
]


def execute(
    context: typer.Context,
    scenario: options.Scenario,
    command: Command,
    fabric: options.FabricName = "netns",
    nproc: Processes = 1,
    name: Label = "job",
    env: Variables = None,
    env_file: EnvFile = None,
    await_begin: AwaitBegin = False,
    seconds: Limit = None,
    read: Read = None,
    pull: Pull = False,
    writable_root: WritableRoot = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    keep: options.Keep = False,
    quiet: options.Quiet = False,
    guest: options.Guest = False,
) -> None:
    """Run COMMAND on every node of SCENARIO but its hosts, on links that follow it; certify and sum
    up."""
    from testbed.host.user_namespace import become_able
    from testbed.runner.exec.run import execute as carry_out
    from testbed.scenario.load import load

    if guest:
        rerun(context)
    become_able(fabric, keep=keep)
    loaded = load(scenario, trains=False)
    wall_s = None if seconds is None else seconds * loaded.scenario.dilation
    variables = _variables(env or [], env_file or [])
    order = _order(tuple(command), name, nproc, await_begin, wall_s, variables)
    executed = carry_out(
        loaded,
        order,
        fabric,
        out,
        shown=not as_json,
        quiet=quiet,
        keep_failed=keep,
        read=_readable(read or []),
        pull=pull,
        writable_root=writable_root,
    )
    _present(executed, as_json)
    if executed.summary["verdict"] == "invalid":
        raise typer.Exit(1)


def _readable(given: list[Path]) -> tuple[OpenedPath, ...]:
    return tuple(map(_opened, given))


def _opened(path: Path) -> OpenedPath:
    """Open a path for nodes to read, once: what its path leads to later is none."""
    from testbed.user_files import OpenedPath

    wrong = "everything"
    try:
        opened = OpenedPath(path)
        if opened.identity != OpenedPath(Path("/")).identity:
            return opened
    except (FileNotFoundError, NotADirectoryError):
        wrong = "not there"
    raise InputError(f"{path} is {wrong}", where="--read", hint="Name a folder or a file")


def _order(
    command: tuple[str, ...],
    name: str,
    processes: int,
    await_begin: bool,
    seconds: float | None,
    environment: tuple[tuple[str, str], ...],
) -> LaunchSpec:
    from testbed.runner.exec.launch_spec import LABEL, LaunchSpec

    if not LABEL.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be part of a directory's name",
            where="--name",
            hint="Use letters, digits, '.', '_' and '-', at most 41 of them",
        )
    if not command[0]:
        raise InputError("the command is empty", where="COMMAND", hint="Name a program after --")
    return LaunchSpec(command, name, processes, await_begin, seconds, environment)


def _variables(given: list[str], files: list[Path]) -> tuple[tuple[str, str], ...]:
    """Those of files first: what is given by itself has the last word."""
    from testbed.process import users_environment
    from testbed.runner.exec.launch_spec import check_size, named, read_env_file

    own = users_environment()
    read = [variable for path in files for variable in read_env_file(path, own)]
    variables = (*read, *(named(text, own) for text in given))
    check_size(variables)
    return variables


def _present(executed: Executed, as_json: bool) -> None:
    from rich.console import Console

    summary = executed.summary
    if as_json:
        options.print_json(summary)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for reason in summary["reasons"]:
        console.print(printable(reason), markup=False)
    if (step_s := summary["step_median_s"]) is not None:
        known = "marked" if summary["steps_by"] == "marks" else "told by the links' traffic"
        share = summary["communication_share"]
        busy = "" if share is None else f"; links busy for {share:.0%} of the time"
        console.print(f"{summary['steps']} steps ({known}), median {step_s:.3f} s{busy}")
    elif summary["steps_by"] is None:
        console.print(
            f"{summary['steps_said']} `mark.step()` after each step of the job would mark them",
            markup=False,
        )
    console.print(f"verdict: {summary['verdict']}; records in {executed.directory}", markup=False)
