"""What ``testbed plan`` tells: a scenario's history, commands and arithmetic as plain data. Starts nothing."""

from __future__ import annotations

from itertools import islice
from typing import Any

from testbed.scenario.expand import end_settings, expand
from testbed.scenario.load import Loaded
from testbed.scenario.needs import kernel_needs
from testbed.scenario.shape import End, LinkChange
from testbed.scenario.timeline import Timeline

MAX_CHANGES = 10_000
RUN_ID = "dry-run"


def describe(loaded: Loaded, fabric: str, seconds: float) -> dict[str, Any]:
    """The plan: times are wall times from t0, changes those of the first ``seconds``."""
    scenario, timeline = loaded.wall(), loaded.timeline()
    changes = list(islice(timeline.changes(0.0, seconds), MAX_CHANGES))
    return {
        "scenario": scenario.name,
        "hash": loaded.hash,
        "fabric": fabric,
        "dilation": scenario.dilation,
        "nodes": [
            {"name": s.name, "role": s.role, "rank": s.rank, "peer": s.peer, "device": s.device}
            for s in expand(scenario)
        ],
        "links": _links(loaded, timeline),
        "seconds": seconds,
        "changes": [_change(change) for change in changes],
        "changes_left_out": len(changes) == MAX_CHANGES,
        "lowest_rate_bits": timeline.lowest_rate(),
        "shortest_step_s": timeline.shortest_step_s(),
        "longest_outage_s": timeline.longest_outage_s()[0],
        "needs": kernel_needs(scenario),
        "dense_step": dense_step(loaded, timeline),
        "compose": compose(loaded) if fabric == "docker" else None,
    }


def _links(loaded: Loaded, timeline: Timeline) -> list[dict[str, Any]]:
    from testbed.links.plan import tc_commands

    settings = end_settings(loaded.scenario)
    return [
        {
            "link": end.link,
            "direction": end.direction,
            "rate_bits": shape.rate_bits,
            "queue_bytes": shape.queue_bytes,
            "at": settings[end].at,
            "tc": tc_commands(end, shape, device(end)),
        }
        for end, shape in timeline.initial.items()
    ]


def device(end: End) -> str:
    """What the plan calls a device: the node's own for ``up``, the switch's port to it for ``down``."""
    return f"{end.link}-nic" if end.direction == "up" else f"{end.link}-port"


def _change(change: LinkChange) -> dict[str, Any]:
    return {
        "time_s": change.time_s,
        "link": change.end.link,
        "direction": change.end.direction,
        "rate_bits": change.shape.rate_bits,
        "drop": change.shape.drop,
    }


def dense_step(loaded: Loaded, timeline: Timeline) -> dict[str, Any] | None:
    """What an uncompressed step costs at mean rates, in model time; None without torch to count.

    In either phase the slowest link direction counts: the server's carries every worker's message.
    """
    try:
        from testbed.compress.wire import payload_bytes
        from testbed.train.models import parameter_count
    except ImportError:
        return None
    from testbed.exchange.frame import HEADER_BYTES
    from testbed.scenario.shape import wire_bytes

    train, specs = loaded.scenario.train, expand(loaded.scenario)
    parameters = parameter_count(train.model, train.task, train.width)
    frame = HEADER_BYTES + payload_bytes(parameters, parameters)
    messages = {s.name: len(specs) - 1 if s.role == "server" else 1 for s in specs}
    away = {"worker": "up", "server": "down"}
    slowest = {"up": 0.0, "down": 0.0}
    for spec in specs:
        for direction in ("up", "down"):
            phase = "up" if direction == away[spec.role] else "down"
            rate = _mean_rate(timeline, End(spec.name, direction), loaded)
            seconds = messages[spec.name] * wire_bytes(frame) * 8 / rate if rate else float("inf")
            slowest[phase] = max(slowest[phase], seconds / loaded.scenario.dilation)
    pace = float(train.pace or 0.0)
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


def _mean_rate(timeline: Timeline, end: End, loaded: Loaded) -> float:
    """Over the first minute of model time or the longest trace, whichever is longer; bit/s, wall."""
    longest = max((trace.duration_s for trace in loaded.traces.values()), default=0.0)
    horizon = max(60.0, longest) * loaded.scenario.dilation
    return timeline.bits(end, 0.0, horizon) / horizon


def compose(loaded: Loaded) -> str:
    """The Compose file as a run would write it, but for its id and subnets, which a run chooses."""
    from testbed.fabric.docker.render import Plan, load_templates, render, to_yaml
    from testbed.fabric.docker.subnets import free_subnets
    from testbed.setup import images
    from testbed.setup.paths import in_checkout

    specs = expand(loaded.scenario)
    data, control = free_subnets([], len(specs))
    plan = Plan(id=RUN_ID, image=images.tags().node, data=data, control=control)
    return to_yaml(render(specs, plan, load_templates(in_checkout("compose"))))
