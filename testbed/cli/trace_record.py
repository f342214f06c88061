"""``testbed trace record``: a trace of one's own path, measured with iperf3."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Annotated, Any

import typer

from testbed.cli import options
from testbed.cli.trace_output import Out, put
from testbed.errors import ExperimentError, InputError, MachineError
from testbed.traces.read import parse
from testbed.traces.trace import RateTrace
from testbed.traces.write import write_csv

Host = Annotated[
    str, typer.Argument(metavar="HOST", help="Where `iperf3 -s` listens.", show_default=False)
]
Seconds = Annotated[
    int, typer.Option("--seconds", help="How long.", min=1, max=86_400, metavar="N")
]
Reverse = Annotated[
    bool, typer.Option("--reverse", help="From HOST to here; counted where it arrives.")
]
Port = Annotated[int, typer.Option("--port", help="The server's port.", min=1, max=65_535)]
Interval = Annotated[
    float, typer.Option("--interval", help="Length of a step in s.", min=0.1, max=60.0, metavar="N")
]
CONNECT_MS = 5000
GRACE_S = 20.0
"""What iperf3 may take longer than its test."""


def record(
    host: Host,
    out: Out,
    seconds: Seconds = 60,
    reverse: Reverse = False,
    port: Port = 5201,
    interval: Interval = 1.0,
    as_json: options.Json = False,
) -> None:
    """Fill the path to HOST with one TCP flow and write down what it carried, as rates of its frames."""
    from testbed.session.interrupt import interruptible

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
    found = shutil.which("iperf3")
    if found is None:
        raise MachineError(
            "iperf3 is not installed", fix="Install it, on Debian or Ubuntu: apt-get install iperf3"
        )
    command = [
        found, "--client", host, "--port", str(port), "--time", str(seconds),
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
    from testbed.scenario.shape import SEGMENT_HEADER_BYTES

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
