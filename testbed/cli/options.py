"""Flags that mean the same on every verb, impairments in words, and ``--guest``: the same command
again in a kernel of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from testbed.errors import InputError, brief, install_command
from testbed.scenario.link_state import FourState, GilbertElliott, Impairments
from testbed.units import Duration, Size


def _scenario_files(incomplete: str) -> list[str]:
    """Return scenario files and folders whose path begins with ``incomplete``."""
    given = Path(incomplete)
    folder = given if incomplete.endswith("/") else given.parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    names = [str(path) + "/" * path.is_dir() for path in entries]
    return [name for name in names if name.endswith(("/", ".yaml", ".yml"))]


def _algorithm_names() -> list[str]:
    """Return the names of all algorithms, those of other packages among them."""
    from testbed.compatibility import known

    return [row.name for row in known()]


def _fabric_names() -> list[str]:
    """Return the names of all fabrics."""
    from testbed.fabric.base import fabrics

    return fabrics.names()


def beginning(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return the completion that shells ask for: those of ``names()`` that begin as typed."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def share(flag: str, such_as: str) -> Callable[[Any], float]:
    """Return what reads a share that is given with a flag. It raises InputError."""

    def read(given: Any) -> float:
        try:
            return float(given)
        except ValueError:
            hint = f"Write a share such as {such_as}"
            raise InputError(f"{brief(given)} is no number", where=flag, hint=hint) from None

    return read


Scenario = Annotated[
    Path,
    typer.Argument(
        help="Scenario file (YAML).", show_default=False, autocompletion=_scenario_files
    ),
]
FabricName = Annotated[
    str,
    typer.Option(
        "--fabric",
        help="Where nodes run: docker, netns, sim, swarm.",
        metavar="NAME",
        autocompletion=beginning(_fabric_names),
    ),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algo",
        help="Run this algorithm instead of the file's; may be repeated.",
        metavar="NAME",
        autocompletion=beginning(_algorithm_names),
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seed", help="Seeds instead of the file's: 3, 1-5 or 1,4.", metavar="SEEDS"),
]
ForExec = Annotated[
    bool,
    typer.Option(
        "--exec", help="SCENARIO is for `testbed exec`: algorithms and training do not matter."
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Where runs/ and comparisons/ go.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave a failed run standing for inspection.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
NoFigures = Annotated[
    bool,
    typer.Option("--no-figures", help="Draw nothing; `testbed report` can do so at any time."),
]
Parallel = Annotated[
    int,
    typer.Option("--parallel", help="Runs at a time (--fabric sim only).", min=1, metavar="N"),
]
Guest = Annotated[
    bool,
    typer.Option("--guest", help="In a kernel of its own, which has netem (docs/how-to/guest.md)."),
]
Observe = Annotated[
    bool,
    typer.Option(
        "--observe", help="Prometheus beside the run, files for Grafana (docs/how-to/observe.md)."
    ),
]
TraceFormat = Annotated[
    str | None,
    typer.Option("--format", help="Its format, if it is not told rightly.", metavar="NAME"),
]
TraceColumn = Annotated[
    str | None,
    typer.Option("--column", help="The column of the rate: NAME or NAME:UNIT.", metavar="NAME"),
]


def finite(parameter: typer.CallbackParam, value: Any) -> Any:
    """Raises InputError for what is not a number: of some versions of click it is in any range."""
    if value is not None and not isfinite(value):
        raise InputError(f"{value} is no number to go by", where=str(parameter.opts[0]))
    return value


Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", help="How long.", min=1.0, max=86_400.0, metavar="N", callback=finite
    ),
]


def can_draw() -> bool:
    """Return whether figures can be drawn here; where not, say on standard error what is
    missing."""
    if find_spec("matplotlib") is not None:
        return True
    command = install_command(["report"])
    print(
        f"no figures: they need `{command}`; `testbed report` then draws them from the records",
        file=sys.stderr,
    )
    return False


def table_width() -> int | None:
    """Off a terminal, tables are as wide as they need: nothing is cut off in a file or a pipe."""
    return None if sys.stdout.isatty() else 160


def say_unless(quiet: bool) -> Callable[[str], None]:
    """Return what prints progress on standard error, or does nothing."""

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return say


def print_json(content: Any) -> None:
    """Print ``content`` on standard output."""
    print(json.dumps(content, indent=2))


def write_text(path: Path, text: str, *, folders: bool = False) -> None:
    """Write a file that the user named, and its ``folders`` if need be. Raises InputError where
    that cannot be."""
    try:
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


FIGURES = (".png", ".pdf", ".svg")


def check_figure(path: Path, flag: str) -> None:
    """Raises InputError for a file whose ending names no kind of figure."""
    if path.suffix not in FIGURES:
        hint = f"Name a file that ends in {', '.join(FIGURES)}"
        raise InputError(f"no kind of figure ends in {path.suffix!r}", where=flag, hint=hint)


def in_words(impairments: Impairments, overhead_bytes: int = 0) -> str:
    """Such as ``delay 10 ms ± 1 ms normal, loss 1 %``; empty if nothing is asked for."""
    words = (
        [*_delay(impairments), *_packets(impairments), *_rest(impairments)] if impairments else []
    )
    words += [f"overhead {Size(overhead_bytes)}"] if overhead_bytes else []
    return ", ".join(words)


def _delay(impairments: Impairments) -> Iterator[str]:
    jitter = (
        f" ± {_time(impairments.jitter_ns)} {impairments.distribution}"
        if impairments.jitter_ns
        else ""
    )
    if impairments.delay_ns:
        yield f"delay {_time(impairments.delay_ns)}{jitter}"


def _packets(impairments: Impairments) -> Iterator[str]:
    loss = impairments.loss
    if isinstance(loss, GilbertElliott):
        mean, burst = 100 * loss.mean_loss, loss.mean_burst
        yield f"loss {mean:.3g} % in bursts of {burst:.3g} packets (Gilbert–Elliott)"
    elif isinstance(loss, FourState):
        yield "loss (four states)"
    elif loss:
        yield f"loss {100 * loss:.3g} %"
    for name in ("reorder", "duplicate", "corrupt"):
        if share := getattr(impairments, name):
            yield f"{name} {100 * share:.3g} %"


def _rest(impairments: Impairments) -> Iterator[str]:
    if slot := impairments.slot:
        yield f"slots of {_time(slot.shortest_ns)} to {_time(slot.longest_ns)}"
    if impairments.ecn:
        yield "ECN marks"
    if not impairments.ordered:
        yield "not kept in order"
    if impairments.seed is not None:
        yield f"seed {impairments.seed}"


def _time(ns: int) -> str:
    return str(Duration(ns / 1e9))


FLAG = "--guest"


def rerun(context: typer.Context) -> NoReturn:
    """Carry a run out in the guest and leave with its exit status. What it writes below ``--out``
    stays.

    Raises InputError with ``--keep``: a guest ends with its command.
    """
    from testbed.host.uml import docker_engine
    from testbed.runner.signals import machine

    given = context.params
    if given["keep"]:
        raise _pointless(
            "--keep", "a guest ends with its run; records and logs are kept in any case"
        )
    image = docker_engine.ensure() if given["fabric"] == "docker" else None
    with machine(lambda text: print(text, file=sys.stderr)):
        _leave(arguments(context), [given["out"].resolve()], image)


def look(verb: str, *options: str, fix: bool) -> NoReturn:
    """Have the guest's kernel judged instead of this machine's."""
    if fix:
        raise _pointless("--fix", "what would be mended is gone when the guest ends")
    _leave([verb, *options], [], None)


def _leave(command: list[str], writable: list[Path], disk: Path | None) -> NoReturn:
    from testbed.host.uml.guest import run
    from testbed.host.uml.inside import GuestOrder, slower
    from testbed.process import module_command

    for folder in writable:
        folder.mkdir(parents=True, exist_ok=True)
    whole = module_command("testbed", *command)
    raise typer.Exit(
        run(GuestOrder(whole, writable, disk is not None, environment=slower()), disk=disk)
    )


def _pointless(flag: str, why: str) -> InputError:
    return InputError(f"does not go together with {FLAG}: {why}", where=flag)


def arguments(context: typer.Context) -> list[str]:
    """The command line of a verb as it was understood, without the flag."""
    options, files = [], []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        name = parameter.opts[0]
        if parameter.param_type_name == "argument":
            files += [str(each) for each in value] if isinstance(value, list) else [str(value)]
        elif value is True and name != FLAG:
            options.append(name)
        elif value is not None and not isinstance(value, bool):
            several = value if isinstance(value, list | tuple) else [value]
            options += [part for each in several for part in (name, str(each))]
    return [*_verb(context), *options, "--", *files]


def _verb(context: typer.Context) -> list[str]:
    """A verb's words, as ``messages replay``: without what the program was called by."""
    words: list[str] = []
    here: Any = context
    while here.parent is not None:
        words.insert(0, str(here.info_name))
        here = here.parent
    return words
