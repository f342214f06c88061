"""``--guest``: the same command again, in a kernel of its own that has every impairment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import typer

from testbed.errors import InputError

FLAG = "--guest"


def rerun(context: typer.Context) -> NoReturn:
    """Carry a run out in the guest and leave with its exit status. What it writes below ``--out`` stays.

    Raises InputError with ``--keep``: a guest ends with its command.
    """
    from testbed.guest import disk
    from testbed.session.lock import machine

    given = context.params
    if given["keep"]:
        raise _pointless(
            "--keep", "a guest ends with its run; records and logs are kept in any case"
        )
    image = disk.ensure() if given["fabric"] == "docker" else None
    with machine(lambda text: print(text, file=sys.stderr)):
        _leave(arguments(context), [given["out"].resolve()], image)


def look(verb: str, *options: str, fix: bool) -> NoReturn:
    """Have the guest's kernel judged instead of this machine's."""
    if fix:
        raise _pointless("--fix", "what would be mended is gone when the guest ends")
    _leave([verb, *options], [], None)


def _leave(command: list[str], writable: list[Path], disk: Path | None) -> NoReturn:
    from testbed.guest.boot import run
    from testbed.guest.order import Order, slower
    from testbed.process import module_command

    for folder in writable:
        folder.mkdir(parents=True, exist_ok=True)
    whole = module_command("testbed", *command)
    raise typer.Exit(run(Order(whole, writable, disk is not None, environment=slower()), disk=disk))


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
