"""``testbed trace``: look at bandwidth traces, convert, make and record them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli import options, trace_make, trace_record
from testbed.cli.trace_output import Out, headline, put, rate_text
from testbed.errors import InputError
from testbed.traces.read import HINT, MAX_BYTES, detect, parse
from testbed.traces.summary import Summary, summary
from testbed.traces.trace import RateTrace
from testbed.traces.write import WRITERS
from testbed.units import Duration
from testbed.user_files import text_of

app = typer.Typer(
    no_args_is_help=True, help="Look at bandwidth traces, convert them, make and record them."
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace.", show_default=False)]
Figure = Annotated[
    Path | None,
    typer.Option("--out", help="Figure to draw (.png, .pdf, .svg).", metavar="FILE"),
]
Target = Annotated[str, typer.Option("--to", help=f"{', '.join(WRITERS)}.", metavar="FORMAT")]
FIGURES = (".png", ".pdf", ".svg")


def _factor(flag: str, effect: str) -> Any:
    return typer.Option(flag, help=effect, metavar="FACTOR")


def _instant(flag: str, effect: str) -> Any:
    return typer.Option(flag, help=effect, metavar="DURATION")


@app.command("show")
def show(
    file: File,
    out: Figure = None,
    form: options.TraceFormat = None,
    column: options.TraceColumn = None,
    as_json: options.Json = False,
) -> None:
    """Print what FILE is like and draw it: rate over time, and how often it is which."""
    target = Path(f"{file.stem}.png") if out is None else out
    if target.suffix not in FIGURES:
        hint = f"Name a file that ends in {', '.join(FIGURES)}"
        raise InputError(f"no kind of figure ends in {target.suffix!r}", where="--out", hint=hint)
    form, trace = _read(file, form, column)
    found = summary(trace)
    from analysis.figures.trace import save_trace

    save_trace(trace, target, file.name)
    if as_json:
        shown = {"file": str(file), "format": form, "figure": str(target), **found.to_json()}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(_described(file, form, found)))
        print(f"figure   {target}")


@app.command("convert")
def convert(
    file: File,
    out: Out,
    to: Target = "csv",
    form: options.TraceFormat = None,
    column: options.TraceColumn = None,
    begin: Annotated[str | None, _instant("--from", "Cut off what lies before.")] = None,
    end: Annotated[str | None, _instant("--until", "Cut off what lies after.")] = None,
    shift: Annotated[str | None, _instant("--shift", "Begin its loop so far in.")] = None,
    stretch: Annotated[float, _factor("--stretch", "Every time times this.")] = 1.0,
    scale: Annotated[float, _factor("--scale", "Every rate times this.")] = 1.0,
    repeat: Annotated[int, typer.Option("--repeat", help="So often in a row.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Write FILE in another format; cut, shifted, stretched, scaled and repeated, in this order."""
    if to not in WRITERS:
        raise InputError(
            f"unknown format {to!r}", where="--to", hint=f"Known: {', '.join(WRITERS)}"
        )
    if out.exists() and file.exists() and out.samefile(file):
        raise InputError("this is the trace itself", where="--out", hint="Name another file")
    _, trace = _read(file, form, column)
    try:
        if begin is not None or end is not None:
            trace = trace.cut(
                _seconds("--from", begin or "0 s"),
                trace.duration_s if end is None else _seconds("--until", end),
            )
        if shift is not None:
            trace = trace.shifted(_seconds("--shift", shift))
        _check_factors(stretch, scale)
        trace = trace.stretched(stretch).scaled(scale).repeated(repeat)
        text = WRITERS[to](trace)
    except (ValueError, OverflowError) as error:
        raise InputError(str(error), where=str(file)) from None
    put(out, text, trace, as_json, format=to)


app.add_typer(trace_make.app, name="make")
app.command("record")(trace_record.record)


def _read(file: Path, form: str | None, column: str | None) -> tuple[str, RateTrace]:
    text = text_of(file, MAX_BYTES, HINT)
    form = form or detect(text, str(file))
    return form, parse(text, str(file), format=form, column=column)


def _seconds(flag: str, text: str) -> float:
    try:
        return float(Duration.parse(text))
    except ValueError as error:
        raise InputError(str(error), where=flag) from None


def _check_factors(stretch: float, scale: float) -> None:
    for flag, factor, least in (("--stretch", stretch, 1e-6), ("--scale", scale, 0.0)):
        if not least <= factor <= 1e6:
            raise InputError(
                f"{factor:g} is no factor", where=flag, hint=f"{least:g} to 1000000 is possible"
            )


def _described(file: Path, form: str, found: Summary) -> list[str]:
    spread = ", ".join(f"p{n} {rate_text(rate)}" for n, rate in found.percentiles_bits.items())
    outage = "none"
    if found.outage_share:
        longest = f"the longest {found.longest_outage_s:.4g} s"
        outage = f"{found.outage_share:.2%} of the time, {longest}"
    return [
        f"{file}: {form}, {headline(found)}",
        f"rate     {rate_text(found.min_bits)} to {rate_text(found.max_bits)}",
        f"in time  {spread}",
        f"steps    the shortest {found.shortest_step_s:.4g} s",
        f"outages  {outage}",
    ]
