"""What ``testbed plan`` tells: a scenario's history, commands and arithmetic as plain data. Starts nothing."""

from __future__ import annotations

from itertools import islice
from math import isfinite
from typing import Any

from testbed.cli.dense_step import dense_step
from testbed.cli.words import in_words
from testbed.fabric.base import Cable, Interface
from testbed.scenario.expand import end_settings, expand, racks
from testbed.scenario.load import Loaded
from testbed.scenario.needs import kernel_needs
from testbed.scenario.node_events import node_changes
from testbed.scenario.shape import LinkChange, Shape
from testbed.scenario.timeline import Timeline
from testbed.scenario.traffic import Flow, flows
from testbed.session.profiled import check_fits, overlaps, pacing

MAX_CHANGES = 10_000
RUN_ID = "dry-run"


def describe(loaded: Loaded, fabric: str, seconds: float, *, trains: bool = True) -> dict[str, Any]:
    """The plan: times are wall times from t0, changes those of the first ``seconds``.

    Not ``trains``: it is for somebody's own job, whose steps and containers are not ours to tell.
    """
    if trains:
        check_fits(loaded)
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
        "racks": {rack.name: rack.members for rack in racks(scenario)},
        "links": _links(loaded, timeline),
        "seconds": seconds,
        "changes": [_change(change) for change in changes],
        "changes_left_out": len(changes) == MAX_CHANGES,
        "node_changes": [change._asdict() for change in node_changes(scenario)],
        "traffic": [_flow(flow, seconds) for flow in flows(scenario)],
        "lowest_rate_bits": timeline.lowest_rate(),
        "shortest_step_s": timeline.shortest_step_s(),
        "longest_outage_s": timeline.longest_outage_s()[0],
        "bundle_packets": _bundles(timeline),
        "needs": kernel_needs(scenario),
        "pacing": pacing(loaded, by_layer=overlaps(loaded), virtual=fabric == "sim")
        if trains
        else None,
        "dense_step": dense_step(loaded, timeline) if trains else None,
        "compose": compose(loaded) if trains and fabric == "docker" else None,
    }


def _links(loaded: Loaded, timeline: Timeline) -> list[dict[str, Any]]:
    from testbed.cli.tc_commands import host_commands, link_commands
    from testbed.session.conditions import link_settings

    whole, racks = link_settings(loaded, timeline), loaded.scenario.racks
    settings = end_settings(loaded.scenario)
    cables = _cables(timeline)
    return [
        {
            "link": end.link,
            "direction": end.direction,
            **_shape(shape),
            "at": settings[end].at,
            "tc": [
                *(
                    host_commands(cables[end.link], whole)
                    if end.direction == "up" and end.link not in racks
                    else ()
                ),
                *link_commands(
                    end, shape, cables[end.link], settings[end].at or "nic", timeline.impaired(end)
                ),
            ],
        }
        for end, shape in timeline.initial.items()
    ]


def _bundles(timeline: Timeline) -> list[int]:
    """Packets in an offload bundle: the first, or a later one where a measured machine needs it."""
    from testbed.links.capacity import FLOOR_BITS
    from testbed.links.plan import bundle_sizes

    sizes = bundle_sizes(timeline)
    return sizes if sum(timeline.highest_rates().values()) > FLOOR_BITS else sizes[:1]


def _cables(timeline: Timeline) -> dict[str, Cable]:
    """What the plan calls devices: each link's own ``nic``, and the ``port`` at the switch."""
    links = dict.fromkeys(end.link for end in timeline.ends)
    return {
        link: Cable(
            Interface(None, 2 * number, f"{link}-nic"),
            Interface(None, 2 * number + 1, f"{link}-port"),
        )
        for number, link in enumerate(links, start=1)
    }


def _change(change: LinkChange) -> dict[str, Any]:
    return {
        "time_s": change.time_s,
        "link": change.end.link,
        "direction": change.end.direction,
        **_shape(change.shape),
    }


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "rate_bits": shape.rate_bits,
        "queue_bytes": shape.queue_bytes,
        "drop": shape.drop,
        "overhead_bytes": shape.overhead_bytes,
        "impairments": shape.impairments.to_json(),
        "in_words": in_words(shape.impairments, shape.overhead_bytes),
    }


def _flow(flow: Flow, seconds: float) -> dict[str, Any]:
    """A flow, and when it sends in the first ``seconds``."""
    bursts = islice(flow.bursts_until(seconds), MAX_CHANGES)
    return {
        "name": flow.name,
        "from": flow.source,
        "to": flow.sink,
        "kind": flow.kind,
        "rate_bits": flow.rate_bits,
        "congestion": flow.congestion,
        "streams": flow.streams,
        "start_s": flow.start_s,
        "stop_s": flow.stop_s if isfinite(flow.stop_s) else None,
        "bursts": [list(burst) for burst in bursts],
    }


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
