"""``testbed plan``: what links, nodes and messages would be, as tables or JSON. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from math import isfinite
from typing import Annotated, Any, TypeVar

import typer

from testbed.cli import options
from testbed.cli.options import in_words
from testbed.cli.validate import notes
from testbed.compatibility import resolve
from testbed.fabric.base import fabrics
from testbed.runner.exec.launch_spec import check_fabric, check_nodes
from testbed.runner.manifest_writer import (
    check_fits,
    in_a_sentence,
    overlaps,
    pacing,
    slowest_pace_s,
)
from testbed.scenario.expand import end_settings, expand, racks
from testbed.scenario.link_model import TraceEvent
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState, wire_bytes
from testbed.scenario.load import Loaded, load
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import Flow, flows, node_changes
from testbed.scenario.timeline import Timeline
from testbed.scenario.validate import longest_round_trip
from testbed.scenario.validate_links import kernel_needs
from testbed.topology import Cable, Interface
from testbed.training.membership import multicasts
from testbed.units import Duration, Size

T = TypeVar("T")
_HALVINGS = 10
"""How often the bounds are halved between which a run's length is."""


def dense_step(loaded: Loaded, timeline: Timeline) -> dict[str, Any] | None:
    """Return the cost of an uncompressed step at mean rates, in model time; None without torch to
    count, or a server.

    In either phase the slowest link direction counts: a server's carries every worker's message.
    Times are None where its mean rate is 0. Rates are means over ``over_s``: the run, where its
    steps are known and take no longer than ``_horizon_s``.
    """
    try:
        from testbed.compress.payload import payload_bytes
        from testbed.training.models.base import parameter_count
    except ImportError:
        return None
    from testbed.transport.frame import HEADER_BYTES

    if not any(group.role == "server" for group in loaded.scenario.nodes.values()):
        return None
    train = loaded.scenario.train
    parameters = parameter_count(train.model, train.task, train.width)
    frame = HEADER_BYTES + payload_bytes(parameters, parameters)
    bits, dilation = wire_bytes(frame) * 8, loaded.scenario.dilation
    pace, trip = slowest_pace_s(loaded), longest_round_trip(loaded.scenario, timeline).time_s
    trip /= dilation
    over, least = _horizon_s(loaded), 0.0
    slowest = _slowest_s(loaded, timeline, bits, over)

    def length_s(slowest: dict[str, float]) -> float:
        steps = train.stop.steps or float("inf")
        return steps * (pace + trip + sum(slowest.values())) * dilation

    for _ in range(_HALVINGS if length_s(slowest) < over else 0):
        tried = _slowest_s(loaded, timeline, bits, middle := (least + over) / 2)
        if length_s(tried) > middle:
            least = middle
        else:
            over, slowest = middle, tried
    step = pace + trip + sum(slowest.values())
    return {
        "parameters": parameters,
        "frame_bytes": frame,
        "up_s": _finite(slowest["up"]),
        "down_s": _finite(slowest["down"]),
        "trip_s": trip,
        "pace_s": pace,
        "over_s": over / dilation,
        "step_s": _finite(step),
        "communicating": 1 - pace / step if isfinite(step) else None,
    }


def _slowest_s(loaded: Loaded, timeline: Timeline, bits: float, over_s: float) -> dict[str, float]:
    """Model seconds of a gradient of so many bits on the slowest link, by phase; ``over_s``: wall
    seconds of which rates are means."""
    slowest = {"up": 0.0, "down": 0.0}
    for phase, end, gradients in _carried(loaded.scenario):
        rate = timeline.bits(end, 0.0, over_s) / over_s
        seconds = gradients * bits / rate if rate else float("inf")
        slowest[phase] = max(slowest[phase], seconds / loaded.scenario.dilation)
    return slowest


def _finite(seconds: float) -> float | None:
    """``seconds``; None where there is no end, as JSON has no such number."""
    return seconds if isfinite(seconds) else None


def _carried(scenario: Scenario) -> Iterator[tuple[str, LinkDirection, float]]:
    """How many gradients each link direction carries when they go up, and when they come down.

    Each of several servers gets its share of every gradient. With ``participation``, no more go up
    than workers take part; every worker gets the reply.
    """
    specs = expand(scenario)
    workers = {spec.name for spec in specs if spec.role == "worker"}
    servers = {spec.name for spec in specs if spec.role == "server"}
    participation = scenario.train.participation
    most = len(workers) if participation is None else participation.many(len(workers))
    out = dict.fromkeys(workers, (1, 1.0))
    into = dict.fromkeys(servers, (len(workers), 1 / len(servers)))
    for rack in racks(scenario):
        inside = set(rack.members)
        shares = len(servers - inside) / len(servers), len(servers & inside) / len(servers)
        out[rack.name] = len(workers & inside), shares[0]
        into[rack.name] = len(workers - inside), shares[1]
    for link, (count, share) in out.items():
        if count * share:
            yield "up", LinkDirection(link, "up"), min(count, most) * share
            yield "down", LinkDirection(link, "down"), count * share
    for link, (count, share) in into.items():
        if count * share:
            yield "up", LinkDirection(link, "down"), min(count, most) * share
            yield "down", LinkDirection(link, "up"), count * share


def _horizon_s(loaded: Loaded) -> float:
    """The most wall seconds of which mean rates are taken: the first minute of model time or the
    longest trace, as long as it is stretched, whichever is longer."""
    lengths = (
        loaded.traces[event.key].duration_s * event.stretch
        for event in loaded.scenario.events
        if isinstance(event, TraceEvent)
    )
    return max([60.0, *lengths]) * loaded.scenario.dilation


MAX_CHANGES = 10_000
RUN_ID = "dry-run"


def describe(loaded: Loaded, fabric: str, seconds: float, *, trains: bool = True) -> dict[str, Any]:
    """The plan: times are wall times from t0, changes those of the first ``seconds``.

    Not ``trains``: it is for somebody's own job, whose steps and containers are not ours to tell.
    """
    if trains:
        check_fits(loaded)
    scenario, timeline = loaded.wall(), loaded.timeline()
    changes, left_out = _first(timeline.changes(0.0, seconds))
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
        "changes_left_out": left_out,
        "node_changes": [change._asdict() for change in node_changes(scenario)],
        "traffic": [_flow(flow, seconds) for flow in flows(scenario)],
        "lowest_rate_bits": timeline.lowest_rate(),
        "shortest_step_s": timeline.shortest_step_s(),
        "longest_outage_s": timeline.longest_outage_s()[0],
        "bundle_packets": _bundles(timeline),
        "needs": kernel_needs(scenario),
        "notes": notes(loaded, trains=trains, real=fabric != "sim"),
        "pacing": pacing(loaded, by_layer=overlaps(loaded), virtual=fabric == "sim")
        if trains
        else None,
        "dense_step": dense_step(loaded, timeline) if trains else None,
        "compose": compose(loaded) if trains and fabric == "docker" else None,
        **({"stack": stack(loaded)} if trains and fabric == "swarm" else {}),
    }


def _first(every: Iterable[T]) -> tuple[list[T], bool]:
    """Return the first of them, and whether that leaves any out."""
    items = list(islice(every, MAX_CHANGES + 1))
    return items[:MAX_CHANGES], len(items) > MAX_CHANGES


def _links(loaded: Loaded, timeline: Timeline) -> list[dict[str, Any]]:
    from testbed.cli.tc_commands import host_commands, link_commands
    from testbed.runner.session import link_settings

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
    from testbed.links.tc.parameters import FLOOR_BITS, bundle_sizes

    sizes = bundle_sizes(timeline)
    return sizes if sum(timeline.highest_rates().values()) > FLOOR_BITS else sizes[:1]


def _cables(timeline: Timeline) -> dict[str, Cable]:
    """Return the devices as the plan names them: each link's own ``nic``, and the ``port`` at the
    switch."""
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


def _shape(shape: LinkState) -> dict[str, Any]:
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
    bursts, left_out = _first(flow.bursts_until(seconds))
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
        "bursts_left_out": left_out,
    }


def compose(loaded: Loaded) -> str:
    """The Compose file as a run would write it, but for its id and subnets, which a run chooses."""
    from testbed.fabric.docker.compose_file import ComposePlan, load_templates, render, to_yaml
    from testbed.host import images
    from testbed.host.checks import free_subnets
    from testbed.host.paths import shipped

    specs = expand(loaded.scenario)
    data, control = free_subnets([], len(specs))
    plan = ComposePlan(id=RUN_ID, image=images.tags().node, data=data, control=control)
    return to_yaml(render(specs, plan, load_templates(shipped("compose"))))


def stack(loaded: Loaded) -> str:
    """The stack file as a run would write it, but for its id, its subnets, the image's digest and
    the controller's address, which a run finds. Raises InputError for what no swarm has."""
    from testbed.fabric.docker.compose_file import load_templates, to_yaml
    from testbed.fabric.swarm.engine import known_hosts
    from testbed.fabric.swarm.stack_file import StackPlan, assign, refuse, render
    from testbed.host import images
    from testbed.host.checks import free_subnets
    from testbed.host.paths import shipped

    if multicasts(map(resolve, loaded.scenario.algorithms)):
        refuse("multicasts")
    specs, swarm = expand(loaded.scenario), loaded.scenario.swarm
    known = known_hosts(swarm.placement.values())
    hosts = assign(specs, known, swarm.placement, racks(loaded.scenario))
    data, control = free_subnets([], len(specs))
    manager = next((host.id for host in known if host.manager), "")
    plan = StackPlan(RUN_ID, images.tags().node, data, control, hosts, manager)
    return to_yaml(render(specs, plan, load_templates(shipped("compose"))))


SHOWN = 20
"""Changes and links shown to people; JSON has them all."""

Horizon = Annotated[
    float,
    typer.Option(
        "--seconds",
        help="How far to look into the history.",
        min=0,
        max=1e9,
        metavar="N",
        callback=options.finite,
    ),
]


def plan(
    scenario: options.Scenario,
    fabric: options.FabricName = "netns",
    seconds: Horizon = 60.0,
    for_exec: options.ForExec = False,
    as_json: options.Json = False,
) -> None:
    """Show what a run of SCENARIO would do; nothing is started."""
    fabrics.get(fabric, where="--fabric")
    loaded = load(scenario, trains=not for_exec)
    if for_exec:
        check_nodes(loaded)
        check_fabric(loaded, fabric)
    described = describe(loaded, fabric, seconds, trains=not for_exec)
    if as_json:
        options.print_json(described)
    else:
        _show(described)


def _show(described: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    names = [node["name"] for node in described["nodes"]]
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    console.print(
        f"{described['scenario']}: {len(names)} nodes ({listed}) on {described['fabric']}"
    )
    if described["dilation"] != 1:
        console.print(f"dilation {described['dilation']:g}: times and rates below are wall clock")
    seconds, changes = described["seconds"], described["changes"]
    console.print("Links", style="table.title")
    console.print(_link_table(described))
    count = _number(changes, left_out=described["changes_left_out"])
    console.print(f"Changes in the first {seconds:g} s: {count}", style="table.title")
    console.print(_changes(changes))
    for line in (*_racks(described), *_nodes(described), *_traffic(described)):
        console.print(line)
    for line in _facts(described):
        console.print(line)
    console.print("\n# the same by hand, at t0")
    for link in described["links"][:SHOWN]:
        for command in link["tc"]:
            console.print(command, markup=False)
    if described["compose"]:
        console.print("\n# compose.yaml (a run has its own id and subnets)")
        console.print(described["compose"], markup=False)
    if "stack" in described:
        console.print("\n# stack.yaml (a run has its own id, subnets and addresses)")
        console.print(described["stack"], markup=False)


def _number(listed: Sized, *, left_out: bool) -> str:
    return f"more than {len(listed)}" if left_out else f"{len(listed)}"


def _link_table(described: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("link", "direction", "rate at t0", "queue", "at", "besides", box=None)
    for link in described["links"][:SHOWN]:
        rate, queue = _rate(link["rate_bits"]), str(Size(link["queue_bytes"]))
        at = link["at"] or "switch"
        table.add_row(link["link"], link["direction"], rate, queue, at, link["in_words"])
    if len(described["links"]) > SHOWN:
        table.add_row(f"… {len(described['links']) - SHOWN} more", "", "", "", "", "")
    return table


def _changes(changes: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("after", "link", "direction", "rate", "besides", box=None)
    for change in changes[:SHOWN]:
        rate = _rate(change["rate_bits"]) + (", packets dropped" if change["drop"] else "")
        after = f"{change['time_s']:.3f} s"
        table.add_row(after, change["link"], change["direction"], rate, change["in_words"])
    if len(changes) > SHOWN:
        table.add_row("…", "", "", "", "")
    return table


def _racks(described: dict[str, Any]) -> list[str]:
    return [
        f"rack {name}: {', '.join(members[:SHOWN])}{', …' if len(members) > SHOWN else ''}"
        for name, members in described["racks"].items()
    ]


def _nodes(described: dict[str, Any]) -> list[str]:
    changes = described["node_changes"]
    shown = [f"after {c['time_s']:.3f} s: {c['action']} {c['node']}" for c in changes[:SHOWN]]
    return [*shown, f"… {len(changes) - SHOWN} more"] if len(changes) > SHOWN else shown


def _traffic(described: dict[str, Any]) -> list[str]:
    """A line a flow."""
    lines = []
    for flow in described["traffic"]:
        how = f" at {_rate(flow['rate_bits'])}" if flow["rate_bits"] else ""
        until = "the end" if flow["stop_s"] is None else f"{flow['stop_s']:.3f} s"
        count = _number(flow["bursts"], left_out=flow["bursts_left_out"])
        pauses = f", {count} bursts in {described['seconds']:g} s"
        lines.append(
            f"traffic {flow['name']}: {flow['kind']}{how} from {flow['from']} to {flow['to']}, "
            f"{flow['start_s']:.3f} s to {until}{pauses if len(flow['bursts']) > 1 else ''}"
        )
    return lines


def _rate(bits: int) -> str:
    return f"{bits / 1e6:.3f} Mbit/s" if bits else "outage"


def _facts(described: dict[str, Any]) -> list[str]:
    """Sentences about the whole history and an uncompressed step."""
    facts = [f"\nlowest rate {_rate(described['lowest_rate_bits'])}"]
    if described["shortest_step_s"] is not None:
        facts.append(f"shortest time between two changes {Duration(described['shortest_step_s'])}")
    if described["longest_outage_s"]:
        facts.append(f"longest outage {Duration(described['longest_outage_s'])}")
    if len(bundles := described["bundle_packets"]) > 1:
        facts.append(
            f"gso_max_segs {bundles[0]}; up to {bundles[-1]} where the machine is measured "
            "and needs longer bundles"
        )
    if sentence := in_a_sentence(described["pacing"]):
        facts.append(sentence)
    if step := described["dense_step"]:
        facts.append(
            f"uncompressed: {step['parameters']} parameters, {step['frame_bytes']} B a message; "
            + _at_mean_rates(step)
        )
    facts += [f"needs {need}" for need in described["needs"]]
    return facts + [f"note: {note}" for note in described["notes"]]


def _at_mean_rates(step: dict[str, Any]) -> str:
    if step["step_s"] is None:
        return (
            "no step at mean rates: a link carries nothing in the first minute, and in the time of "
            "the longest trace"
        )
    trip = f"{1e3 * step['trip_s']:.1f} ms on the way, " if step["trip_s"] else ""
    return (
        f"at the mean rates of the first {step['over_s']:.3g} s {1e3 * step['up_s']:.1f} ms up, "
        f"{1e3 * step['down_s']:.1f} ms down, {trip}{1e3 * step['step_s']:.1f} ms a step, "
        f"{step['communicating']:.0%} of it communicating"
    )
