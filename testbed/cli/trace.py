"""``testbed trace``: look at bandwidth traces, convert, make and record them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli import options
from testbed.errors import ExperimentError, InputError, MachineError
from testbed.traces import generate
from testbed.traces.generate import WRITERS, write_csv
from testbed.traces.rate_trace import RateTrace, TraceSummary, summary
from testbed.traces.readers import HINT, MAX_BYTES, detect, parse
from testbed.units import Duration, Rate
from testbed.user_files import text_of

Out = Annotated[Path, typer.Option("--out", help="The file to write.", metavar="FILE")]

_UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))


def put(out: Path, text: str, trace: RateTrace, as_json: bool, **more: Any) -> None:
    """Write ``text``, which holds ``trace``, to ``out`` and say what was written."""
    options.write_text(out, text)
    facts = summary(trace)
    if as_json:
        options.print_json({"file": str(out), **more, **facts.to_json()})
    else:
        print(f"{out}: {headline(facts)}")


def headline(facts: TraceSummary) -> str:
    """A trace in half a line."""
    points = f"{facts.points} point{'s' * (facts.points > 1)}"
    return f"{facts.duration_s:g} s, {points}, mean {rate_text(facts.mean_bits)}"


def rate_text(bits: float) -> str:
    """A rate in four digits and the unit that suits it."""
    factor, unit = next((pair for pair in _UNITS if bits >= pair[0]), _UNITS[-1])
    return f"{bits / factor:.4g} {unit}"


app = typer.Typer(
    no_args_is_help=True,
    help="Make a synthetic trace. The same options and seed give the same file, everywhere.",
)


def _quantity(
    flag: str, effect: str, metavar: str, value: Callable[[str], float], default: str | bool = True
) -> Any:
    """An option whose value is written with its unit; ``default`` is how help writes its
    default."""

    def parsed(text: str | float) -> float:
        if not isinstance(text, str):
            return text  # the default
        try:
            number = value(text)
        except ValueError as error:
            raise InputError(str(error), where=flag) from None
        return int(number) if number == int(number) else number

    return typer.Option(flag, help=effect, metavar=metavar, parser=parsed, show_default=default)


def _rate(flag: str, effect: str) -> Any:
    return _quantity(flag, effect, "RATE", lambda text: Rate.parse(text) / 1e6)


def _time(flag: str, effect: str, default: str | bool = True) -> Any:
    return _quantity(flag, effect, "DURATION", Duration.parse, default)


def _share(flag: str, effect: str) -> Any:
    return typer.Option(flag, help=effect, min=0.0, max=1.0, metavar="SHARE")


PARAMETERS: dict[str, Any] = {
    "low": Annotated[float, _rate("--low", "Lowest rate, such as '20 Mbit/s'.")],
    "high": Annotated[float, _rate("--high", "Highest rate.")],
    "before": Annotated[float, _rate("--before", "Rate at first.")],
    "after": Annotated[float, _rate("--after", "Rate from then on.")],
    "at_s": Annotated[float, _time("--at", "When it jumps.")],
    "start": Annotated[float, _rate("--start", "Rate at first.")],
    "end": Annotated[float, _rate("--end", "Rate at last.")],
    "deviation": Annotated[float, _rate("--deviation", "Standard deviation of a step.")],
    "levels": Annotated[list[float], _rate("--level", "A rate; give it once for each level.")],
    "stay": Annotated[float, _share("--stay", "Probability to stay for another step.")],
    "peak": Annotated[float, _rate("--peak", "Rate while there are tokens.")],
    "base": Annotated[float, _rate("--base", "Rate when they are spent.")],
    "budget_s": Annotated[float, _time("--budget", "How long a full bucket lasts at the peak.")],
    "busy": Annotated[float, _share("--busy", "Share of steps in which the tenant sends.")],
    "seconds": Annotated[
        float,
        typer.Option(
            "--seconds", help="How long.", min=1e-3, max=1e9, metavar="N", callback=options.finite
        ),
    ],
    "every_s": Annotated[float, _time("--every", "Length of a step, such as '500 ms'.")],
    "period_s": Annotated[float, _time("--period", "Length of a period.")],
    "noise": Annotated[float, _share("--noise", "Relative spread around it.")],
    "persistence": Annotated[float, _share("--persistence", "Share of the noise that lasts.")],
    "seed": Annotated[int, typer.Option("--seed", help="Another seed, another trace.")],
}
"""The option for each parameter of a generator."""

_DAY = {
    "period_s": Annotated[float, _time("--period", "Length of a day.", "24 h")],
    "busiest_s": Annotated[float, _time("--busiest", "When in a day the rate is lowest.", "20 h")],
}
"""Those of ``diurnal`` alone."""


def _verb(generator: Callable[..., RateTrace], description: str, **defaults: Any) -> None:
    """Add a sub-verb of ``make`` whose options are the generator's parameters, those with
    ``defaults`` last."""

    def make(out: Path, as_json: bool, **values: Any) -> None:
        if "seconds" in values:
            values["seconds"] = _tidy(values["seconds"])
        try:
            trace = generator(**values)
            text = write_csv(trace, comment=f"made by testbed.traces.generate.{trace.name}")
        except ValueError as error:
            raise InputError(f"no such trace can be made: {error}") from None
        put(out, text, trace, as_json, made_by=trace.name)

    known = PARAMETERS | (_DAY if generator is generate.diurnal else {})
    names = sorted(signature(generator).parameters, key=lambda name: name in defaults)
    hints = {"out": Out, **{name: known[name] for name in names}, "as_json": options.Json}
    defaults["as_json"] = False
    make.__annotations__ = {}
    make.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=defaults.get(name, Parameter.empty),
                annotation=hint,
            )
            for name, hint in hints.items()
        ]
    )
    app.command(generator.__name__.replace("_", "-"), help=description)(make)


def _tidy(seconds: float) -> float:
    """60.0 as 60: the trace's name is the call that made it."""
    return int(seconds) if seconds == int(seconds) else seconds


_verb(generate.step, "One jump: how a controller reacts, and how fast.")
_verb(generate.square, "One period of high and low, meant to be looped.")
_verb(generate.ramp, "A straight line in equal steps.")
_verb(generate.sawtooth, "Down in a straight line and back at once, meant to be looped.")
_verb(generate.random_walk, "Normal steps between two bounds: a path whose load drifts.", seed=1)
_verb(
    generate.markov,
    "A chain over some levels: a radio link that changes its cell or coding.",
    seed=1,
)
_verb(
    generate.token_bucket,
    "A cloud instance's link: fast until its credits are spent.",
    noise=0.0,
    seed=1,
)
_verb(
    generate.diurnal,
    "A day's tide of a shared path, with noise on it.",
    period_s=86_400,
    busiest_s=72_000,
    noise=0.1,
    persistence=0.9,
    seed=1,
)


Host = Annotated[
    str, typer.Argument(metavar="HOST", help="Where `iperf3 -s` listens.", show_default=False)
]
RecordingSeconds = Annotated[
    int, typer.Option("--seconds", help="How long.", min=1, max=86_400, metavar="N")
]
Reverse = Annotated[
    bool, typer.Option("--reverse", help="From HOST to here; counted where it arrives.")
]
Port = Annotated[int, typer.Option("--port", help="The server's port.", min=1, max=65_535)]
Interval = Annotated[
    float,
    typer.Option(
        "--interval",
        help="Length of a step in s.",
        min=0.1,
        max=60.0,
        metavar="N",
        callback=options.finite,
    ),
]
CONNECT_MS = 5000
GRACE_S = 20.0
"""Seconds that iperf3 may take longer than its test."""


def record(
    host: Host,
    out: Out,
    seconds: RecordingSeconds = 60,
    reverse: Reverse = False,
    port: Port = 5201,
    interval: Interval = 1.0,
    as_json: options.Json = False,
) -> None:
    """Fill the path to HOST with one TCP flow and write down what it carried, as rates of its
    frames."""
    from testbed.runner.signals import interruptible

    if interval > seconds:
        raise InputError(f"{interval:g} s is longer than the record", where="--interval")
    if not out.parent.is_dir():
        raise InputError("there is no such folder", where=str(out.parent))
    command = _command(host, port, seconds, reverse, interval)
    direction = f"from {host} to here" if reverse else f"from here to {host}"
    print(f"recording {seconds} s {direction}, port {port}", file=sys.stderr)
    with interruptible():
        report = _measured(host, port, command, seconds)
    trace, overhead = _trace(report)
    version = str(report.get("start", {}).get("version", "iperf3"))
    comment = f"recorded with {version}, {direction}; {overhead}"
    put(out, write_csv(trace, comment=comment), trace, as_json, recorded=direction)


def _command(host: str, port: int, seconds: int, reverse: bool, interval: float) -> list[str]:
    program = shutil.which("iperf3")
    if program is None:
        raise MachineError(
            "iperf3 is not installed", fix="Install it, on Debian or Ubuntu: apt-get install iperf3"
        )
    command = [
        program, "--client", host, "--port", str(port), "--time", str(seconds),
        "--interval", f"{interval:g}", "--connect-timeout", str(CONNECT_MS), "--json",
    ]  # fmt: skip
    return [*command, "--reverse"] if reverse else command


def _measured(host: str, port: int, command: list[str], seconds: int) -> dict[str, Any]:
    """iperf3's report. Raises ExperimentError when it has none."""
    failed = f"cannot record the path to {host} port {port}"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ExperimentError(f"{failed}: the server fell silent") from None
    try:
        report = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise ExperimentError(f"{failed}: {said or 'iperf3 said nothing'}") from None
    if report.get("error"):
        hint = f"Is `iperf3 -s -p {port}` running there, and may it be reached?"
        raise ExperimentError(f"{failed}: {report['error']}. {hint}")
    return dict(report)


def _trace(report: dict[str, Any]) -> tuple[RateTrace, str]:
    """The trace, and how frames were reckoned from what iperf3 counts, which is TCP's payload."""
    from testbed.scenario.link_state import SEGMENT_HEADER_BYTES

    try:
        trace = parse(json.dumps(report), "iperf3's report", format="iperf3")
    except InputError as error:
        raise ExperimentError(f"iperf3 measured nothing that makes a trace: {error}") from None
    segment = report.get("start", {}).get("tcp_mss_default")
    if not isinstance(segment, int) or segment <= 0:
        return trace, "TCP payload, without headers"
    frames = (segment + SEGMENT_HEADER_BYTES) / segment
    return trace.scaled(
        frames
    ), f"frames of {segment} bytes of payload and {SEGMENT_HEADER_BYTES} of headers"


trace_app = typer.Typer(
    no_args_is_help=True, help="Look at bandwidth traces, convert them, make and record them."
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace.", show_default=False)]
Figure = Annotated[
    Path | None,
    typer.Option("--out", help="Figure to draw (.png, .pdf, .svg).", metavar="FILE"),
]
Target = Annotated[str, typer.Option("--to", help=f"{', '.join(WRITERS)}.", metavar="FORMAT")]


def _factor(flag: str, effect: str) -> Any:
    return typer.Option(flag, help=effect, metavar="FACTOR")


def _instant(flag: str, effect: str) -> Any:
    return typer.Option(flag, help=effect, metavar="DURATION")


@trace_app.command("show")
def show(
    file: File,
    out: Figure = None,
    form: options.TraceFormat = None,
    column: options.TraceColumn = None,
    as_json: options.Json = False,
) -> None:
    """Print what FILE is like and draw it: rate over time, and how often it is which."""
    target = Path(f"{file.stem}.png") if out is None else out
    options.check_figure(target, "--out")
    form, trace = _read(file, form, column)
    facts = summary(trace)
    drawn = out is not None or options.can_draw()
    if drawn:
        from analysis.figures.trace import save_trace

        save_trace(trace, target, file.name)
    figure = str(target) if drawn else None
    if as_json:
        options.print_json({"file": str(file), "format": form, "figure": figure, **facts.to_json()})
    else:
        print("\n".join(_described(file, form, facts)))
        print(f"figure   {figure}" if drawn else "no figure")


@trace_app.command("convert")
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


trace_app.add_typer(app, name="make")
trace_app.command("record")(record)


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


def _described(file: Path, form: str, facts: TraceSummary) -> list[str]:
    spread = ", ".join(f"p{n} {rate_text(rate)}" for n, rate in facts.percentiles_bits.items())
    outage = "none"
    if facts.outage_share:
        longest = f"the longest {facts.longest_outage_s:.4g} s"
        outage = f"{facts.outage_share:.2%} of the time, {longest}"
    return [
        f"{file}: {form}, {headline(facts)}",
        f"rate     {rate_text(facts.min_bits)} to {rate_text(facts.max_bits)}",
        f"in time  {spread}",
        f"steps    the shortest {facts.shortest_step_s:.4g} s",
        f"outages  {outage}",
    ]
