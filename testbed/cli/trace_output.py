"""What the verbs under ``testbed trace`` share: writing a file, and saying what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.errors import InputError
from testbed.traces.summary import Summary, summary
from testbed.traces.trace import RateTrace

Out = Annotated[Path, typer.Option("--out", help="The file to write.", metavar="FILE")]

_UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))


def put(out: Path, text: str, trace: RateTrace, as_json: bool, **more: Any) -> None:
    """Write ``text``, which holds ``trace``, to ``out`` and say what was written."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(out)) from None
    found = summary(trace)
    if as_json:
        print(json.dumps({"file": str(out), **more, **found.to_json()}, indent=2))
    else:
        print(f"{out}: {headline(found)}")


def headline(found: Summary) -> str:
    """A trace in half a line."""
    points = f"{found.points} point{'s' * (found.points > 1)}"
    return f"{found.duration_s:g} s, {points}, mean {rate_text(found.mean_bits)}"


def rate_text(bits: float) -> str:
    """A rate in four digits and the unit that suits it."""
    factor, unit = next((pair for pair in _UNITS if bits >= pair[0]), _UNITS[-1])
    return f"{bits / factor:.4g} {unit}"
