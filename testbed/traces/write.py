"""Writing a trace in the project's own format."""

from __future__ import annotations

from testbed.traces.trace import RateTrace


def write_csv(trace: RateTrace, *, comment: str | None = None) -> str:
    """The trace as CSV text with units in the header; read back, it is the same trace.

    ``comment`` (default: the trace's name) goes in front.
    """
    said = trace.name if comment is None else comment
    head = [f"# {line}" for line in said.splitlines()]
    head += [f"# duration_s: {trace.duration_s!r}", "time_s,rate_mbit_s"]
    pairs = zip(trace.times_s, trace.rates_bits, strict=True)
    rows = [f"{_short(time)},{rate // 10**6}{_fraction(rate)}" for time, rate in pairs]
    return "\n".join([*head, *rows]) + "\n"


def _short(time: float) -> str:
    return repr(time).removesuffix(".0")


def _fraction(rate: int) -> str:
    """The digits behind the point of ``rate`` in Mbit/s, without zeros at the end."""
    return f".{rate % 10**6:06d}".rstrip("0").rstrip(".")
