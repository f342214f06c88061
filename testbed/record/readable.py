"""Records of somebody else's, or changed by hand: what cannot be made of them is said in a sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError, NarrowsError

_ROOT, _OURS = Path(__file__).parents[2], ("testbed", "analysis")
"""Where our code is: its packages, and the folder that has them."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST = 200
"""Characters of what an error says of itself."""


@contextmanager
def readable(paths: Iterable[Path]) -> Iterator[None]:
    """Raise InputError in place of any error that comes of using the records in ``paths``.

    The sentence names the line of code that could not use them, so that a fault of the code can be told from theirs.
    A full disk, or a library that is missing, stays what it is.
    """
    try:
        yield
    except (NarrowsError, ImportError):
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise
        where = ascii(error.filename or ", ".join(map(str, paths)))[1:-1][:_LONGEST]
        raise InputError(str(error.strerror), where=where) from error
    except Exception as error:
        said = ascii(str(error))[1:-1][:_LONGEST]
        raise InputError(
            f"the records cannot be used: {type(error).__name__}: {said} ({_place(error)})",
            where=", ".join(map(str, paths)),
            hint="Give directories as 'testbed run' or 'testbed exec' wrote them, with nothing changed",
        ) from error


def equal_parts(start_s: float, stop_s: float, width_s: float, most: int) -> NDArray[np.float64]:
    """Edges of parts of a time, as ``numpy.arange`` has them. Raises InputError where they are more than ``most``:
    records of a few lines may speak of any time."""
    count = (stop_s - start_s) / width_s
    if not count <= most:
        raise InputError(
            f"records from {start_s:g} to {stop_s:g} s are longer than can be looked at: "
            f"at most {most * width_s:g} s"
        )
    return np.arange(start_s, stop_s, width_s)


def _place(error: BaseException) -> str:
    """The last line of our own code that it went through."""
    frames = extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_ROOT)]
    ours = [frame for frame in ours if Path(frame.filename).relative_to(_ROOT).parts[0] in _OURS]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno}"
