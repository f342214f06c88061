"""Variables of a job that its user names, as Docker's ``--env`` and ``--env-file`` read them.

What a command line has everybody may read: secrets are given in a file, or by their names alone.

A line is ``NAME=VALUE``, the value taken as it is, or ``NAME`` for a variable that this process has; empty lines and
those that begin with ``#`` say nothing. No message shows what a line holds: it may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from testbed.errors import InputError
from testbed.user_files import text_of

MOST_BYTES = 1 << 16
"""Of all variables of a job together: the kernel takes no longer environment than twice that in one piece."""
_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[^\s=\0]+")


def read_env_file(path: Path, own: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """The variables that a file lists, in its order. ``own``: where those without a value are taken from, if there.

    Raises InputError with the line that is none.
    """
    text = text_of(path, _FILE_BYTES, "Write one NAME=VALUE in a line")
    return tuple(_variables(path, text, own))


def named(text: str, own: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The variable that ``NAME=VALUE`` is, or that ``NAME`` is in ``own``.

    Raises InputError where there is no name, or no variable of that name.
    """
    name, equals, value = text.partition("=")
    if not _NAME.fullmatch(name):
        raise InputError(
            "the name of a variable is missing, or has a space in it",
            where="--env",
            hint="Write NAME=VALUE",
        )
    if not equals and name not in own:
        raise InputError(
            f"{name!r} is not set where the command was started",
            where="--env",
            hint="Write NAME=VALUE, or name a file with it: --env-file FILE",
        )
    return name, value if equals else own[name]


def check_size(variables: tuple[tuple[str, str], ...]) -> None:
    """Raises InputError where variables are more than a process can be given."""
    size = sum(len(os.fsencode(f"{name}={value}")) for name, value in variables)
    if size > MOST_BYTES:
        raise InputError(
            f"the variables of the command have {size} bytes, of {MOST_BYTES} that can be given",
            where="--env, --env-file",
            hint="Put what is long into a file, and its name into a variable",
        )


def _variables(path: Path, text: str, own: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not _NAME.fullmatch(name):
            raise InputError(
                "the name of a variable is missing, or has a space in it",
                where=f"{path}:{number}",
                hint="Write NAME=VALUE",
            )
        if equals:
            yield name, value
        elif name in own:
            yield name, own[name]
