"""What an uncompressed step would cost on the links of a scenario: arithmetic, nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.scenario.expand import expand, racks
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.scenario.shape import End, wire_bytes
from testbed.scenario.timeline import Timeline
from testbed.session.paces import slowest_pace_s


def dense_step(loaded: Loaded, timeline: Timeline) -> dict[str, Any] | None:
    """What an uncompressed step costs at mean rates, in model time; None without torch to count, or a server.

    In either phase the slowest link direction counts: a server's carries every worker's message.
    """
    try:
        from testbed.compress.wire import payload_bytes
        from testbed.train.models import parameter_count
    except ImportError:
        return None
    from testbed.exchange.frame import HEADER_BYTES

    if not any(group.role == "server" for group in loaded.scenario.nodes.values()):
        return None
    train = loaded.scenario.train
    parameters = parameter_count(train.model, train.task, train.width)
    frame = HEADER_BYTES + payload_bytes(parameters, parameters)
    slowest = {"up": 0.0, "down": 0.0}
    for phase, end, gradients in _carried(loaded.scenario):
        rate = _mean_rate(timeline, end, loaded)
        seconds = gradients * wire_bytes(frame) * 8 / rate if rate else float("inf")
        slowest[phase] = max(slowest[phase], seconds / loaded.scenario.dilation)
    pace = slowest_pace_s(loaded)
    step = pace + slowest["up"] + slowest["down"]
    return {
        "parameters": parameters,
        "frame_bytes": frame,
        "up_s": slowest["up"],
        "down_s": slowest["down"],
        "pace_s": pace,
        "step_s": step,
        "communicating": 1 - pace / step,
    }


def _carried(scenario: Scenario) -> Iterator[tuple[str, End, float]]:
    """How many gradients each link direction carries when they go up, and when they come down.

    Each of several servers gets its share of every gradient.
    """
    specs = expand(scenario)
    workers = {spec.name for spec in specs if spec.role == "worker"}
    servers = {spec.name for spec in specs if spec.role == "server"}
    out = dict.fromkeys(workers, 1.0)
    into = dict.fromkeys(servers, len(workers) / len(servers))
    for rack in racks(scenario):
        inside = set(rack.members)
        shares = len(servers - inside) / len(servers), len(servers & inside) / len(servers)
        out[rack.name] = len(workers & inside) * shares[0]
        into[rack.name] = len(workers - inside) * shares[1]
    for link, many in out.items():
        if many:
            yield "up", End(link, "up"), many
            yield "down", End(link, "down"), many
    for link, many in into.items():
        if many:
            yield "up", End(link, "down"), many
            yield "down", End(link, "up"), many


def _mean_rate(timeline: Timeline, end: End, loaded: Loaded) -> float:
    """Over the first minute of model time or the longest trace, whichever is longer; bit/s, wall."""
    longest = max((trace.duration_s for trace in loaded.traces.values()), default=0.0)
    horizon = max(60.0, longest) * loaded.scenario.dilation
    return timeline.bits(end, 0.0, horizon) / horizon
