"""``testbed trace make``: synthetic traces, one command per kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from testbed.cli import options
from testbed.cli.trace_output import Out, put
from testbed.errors import InputError
from testbed.traces import RateTrace, generate, write_csv
from testbed.units import Duration, Rate

app = typer.Typer(
    no_args_is_help=True,
    help="Make a synthetic trace. The same options and seed give the same file, everywhere.",
)


def _quantity(
    flag: str, effect: str, metavar: str, value: Callable[[str], float], default: str | bool = True
) -> Any:
    """An option whose value is written with its unit; ``default`` is how help writes its default."""

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


Low = Annotated[float, _rate("--low", "Lowest rate, such as '20 Mbit/s'.")]
High = Annotated[float, _rate("--high", "Highest rate.")]
Every = Annotated[float, _time("--every", "Length of a step, such as '500 ms'.")]
Period = Annotated[float, _time("--period", "Length of a period.")]
Noise = Annotated[float, _share("--noise", "Relative spread around it.")]
Seconds = Annotated[
    float, typer.Option("--seconds", help="How long.", min=1e-3, max=1e9, metavar="N")
]
Seed = Annotated[int, typer.Option("--seed", help="Another seed, another trace.")]
Json = options.Json


def _make(make: Callable[..., RateTrace], out: Out, as_json: bool, **arguments: Any) -> None:
    try:
        trace = make(**arguments)
        text = write_csv(trace, comment=f"made by testbed.traces.generate.{trace.name}")
    except ValueError as error:
        raise InputError(f"no such trace can be made: {error}") from None
    put(out, text, trace, as_json, made_by=trace.name)


@app.command("step")
def step(
    out: Out,
    before: Annotated[float, _rate("--before", "Rate at first.")],
    after: Annotated[float, _rate("--after", "Rate from then on.")],
    at: Annotated[float, _time("--at", "When it jumps.")],
    seconds: Seconds,
    as_json: Json = False,
) -> None:
    """One jump: how a controller reacts, and how fast."""
    _make(generate.step, out, as_json, before=before, after=after, at_s=at, seconds=_tidy(seconds))


@app.command("square")
def square(out: Out, low: Low, high: High, period: Period, as_json: Json = False) -> None:
    """One period of high and low, meant to be looped."""
    _make(generate.square, out, as_json, low=low, high=high, period_s=period)


@app.command("ramp")
def ramp(
    out: Out,
    start: Annotated[float, _rate("--start", "Rate at first.")],
    end: Annotated[float, _rate("--end", "Rate at last.")],
    seconds: Seconds,
    every: Every,
    as_json: Json = False,
) -> None:
    """A straight line in equal steps."""
    _make(generate.ramp, out, as_json, start=start, end=end, seconds=_tidy(seconds), every_s=every)


@app.command("sawtooth")
def sawtooth(
    out: Out, low: Low, high: High, seconds: Seconds, every: Every, as_json: Json = False
) -> None:
    """Down in a straight line and back at once, meant to be looped."""
    _make(
        generate.sawtooth, out, as_json, low=low, high=high, seconds=_tidy(seconds), every_s=every
    )


@app.command("random-walk")
def random_walk(
    out: Out,
    low: Low,
    high: High,
    deviation: Annotated[float, _rate("--deviation", "Standard deviation of a step.")],
    seconds: Seconds,
    every: Every,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Normal steps between two bounds: a path whose load drifts."""
    _make(
        generate.random_walk, out, as_json,
        low=low, high=high, deviation=deviation, seconds=_tidy(seconds), every_s=every, seed=seed,
    )  # fmt: skip


@app.command("markov")
def markov(
    out: Out,
    levels: Annotated[list[float], _rate("--level", "A rate; give it once for each level.")],
    stay: Annotated[float, _share("--stay", "Probability to stay for another step.")],
    seconds: Seconds,
    every: Every,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """A chain over some levels: a radio link that changes its cell or coding."""
    _make(
        generate.markov, out, as_json,
        levels=list(levels), stay=stay, seconds=_tidy(seconds), every_s=every, seed=seed,
    )  # fmt: skip


@app.command("token-bucket")
def token_bucket(
    out: Out,
    peak: Annotated[float, _rate("--peak", "Rate while there are tokens.")],
    base: Annotated[float, _rate("--base", "Rate when they are spent.")],
    budget: Annotated[float, _time("--budget", "How long a full bucket lasts at the peak.")],
    busy: Annotated[float, _share("--busy", "Share of steps in which the tenant sends.")],
    seconds: Seconds,
    every: Every,
    noise: Noise = 0.0,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """A cloud instance's link: fast until its credits are spent."""
    _make(
        generate.token_bucket, out, as_json, peak=peak, base=base, budget_s=budget, busy=busy,
        noise=noise, seconds=_tidy(seconds), every_s=every, seed=seed,
    )  # fmt: skip


@app.command("diurnal")
def diurnal(
    out: Out,
    low: Low,
    high: High,
    seconds: Seconds,
    every: Every,
    period: Annotated[float, _time("--period", "Length of a day.", "24 h")] = 86_400,
    busiest: Annotated[
        float, _time("--busiest", "When in a day the rate is lowest.", "20 h")
    ] = 72_000,
    noise: Noise = 0.1,
    persistence: Annotated[float, _share("--persistence", "Share of the noise that lasts.")] = 0.9,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """A day's tide of a shared path, with noise on it."""
    _make(
        generate.diurnal, out, as_json, low=low, high=high, period_s=period, busiest_s=busiest,
        noise=noise, persistence=persistence, seconds=_tidy(seconds), every_s=every, seed=seed,
    )  # fmt: skip


def _tidy(seconds: float) -> float:
    """60.0 as 60: the trace's name is the call that made it."""
    return int(seconds) if seconds == int(seconds) else seconds
