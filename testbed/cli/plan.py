"""``testbed plan``: the dry run. What links, nodes and messages would be, as tables or JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from testbed.cli import options
from testbed.cli.dry_run import describe
from testbed.fabric.builtin import fabrics
from testbed.job.fit import check_fabric, check_nodes
from testbed.scenario.load import load
from testbed.session.profiled import in_a_sentence
from testbed.units import Duration, Size

SHOWN = 20
"""Changes and links shown to people; JSON has them all."""

Horizon = Annotated[
    float, typer.Option("--seconds", help="How far to look into the history.", min=0, metavar="N")
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
    found = describe(loaded, fabric, seconds, trains=not for_exec)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    names = [node["name"] for node in found["nodes"]]
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    console.print(f"{found['scenario']}: {len(names)} nodes ({listed}) on {found['fabric']}")
    if found["dilation"] != 1:
        console.print(f"dilation {found['dilation']:g}: times and rates below are wall clock")
    console.print(_links(found))
    console.print(_changes(found))
    for line in (*_racks(found), *_nodes(found), *_traffic(found)):
        console.print(line)
    for line in _facts(found):
        console.print(line)
    console.print("\n# the same by hand, at t0")
    for link in found["links"][:SHOWN]:
        for command in link["tc"]:
            console.print(command, markup=False)
    if found["compose"]:
        console.print("\n# compose.yaml (a run has its own id and subnets)")
        console.print(found["compose"], markup=False)


def _links(found: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        "link", "direction", "rate at t0", "queue", "at", "besides", title="Links", box=None
    )
    for link in found["links"][:SHOWN]:
        rate, queue = _rate(link["rate_bits"]), str(Size(link["queue_bytes"]))
        place = link["at"] or "switch"
        table.add_row(link["link"], link["direction"], rate, queue, place, link["in_words"])
    if len(found["links"]) > SHOWN:
        table.add_row(f"… {len(found['links']) - SHOWN} more", "", "", "", "", "")
    return table


def _changes(found: dict[str, Any]) -> Any:
    from rich.table import Table

    changes = found["changes"]
    title = f"Changes in the first {found['seconds']:g} s: {len(changes)}"
    table = Table("after", "link", "direction", "rate", "besides", title=title, box=None)
    for change in changes[:SHOWN]:
        rate = _rate(change["rate_bits"]) + (", packets dropped" if change["drop"] else "")
        after = f"{change['time_s']:.3f} s"
        table.add_row(after, change["link"], change["direction"], rate, change["in_words"])
    if len(changes) > SHOWN:
        table.add_row("…", "", "", "", "")
    return table


def _racks(found: dict[str, Any]) -> list[str]:
    return [
        f"rack {name}: {', '.join(members[:SHOWN])}{', …' if len(members) > SHOWN else ''}"
        for name, members in found["racks"].items()
    ]


def _nodes(found: dict[str, Any]) -> list[str]:
    changes = found["node_changes"]
    shown = [f"after {c['time_s']:.3f} s: {c['action']} {c['node']}" for c in changes[:SHOWN]]
    return [*shown, f"… {len(changes) - SHOWN} more"] if len(changes) > SHOWN else shown


def _traffic(found: dict[str, Any]) -> list[str]:
    """A line a flow."""
    lines = []
    for flow in found["traffic"]:
        how = f" at {_rate(flow['rate_bits'])}" if flow["rate_bits"] else ""
        until = "the end" if flow["stop_s"] is None else f"{flow['stop_s']:.3f} s"
        pauses = f", {len(flow['bursts'])} bursts in {found['seconds']:g} s"
        lines.append(
            f"traffic {flow['name']}: {flow['kind']}{how} from {flow['from']} to {flow['to']}, "
            f"{flow['start_s']:.3f} s to {until}{pauses if len(flow['bursts']) > 1 else ''}"
        )
    return lines


def _rate(bits: int) -> str:
    return f"{bits / 1e6:.3f} Mbit/s" if bits else "outage"


def _facts(found: dict[str, Any]) -> list[str]:
    """Sentences about the whole history and an uncompressed step."""
    facts = [f"\nlowest rate {_rate(found['lowest_rate_bits'])}"]
    if found["shortest_step_s"] is not None:
        facts.append(f"shortest time between two changes {Duration(found['shortest_step_s'])}")
    if found["longest_outage_s"]:
        facts.append(f"longest outage {Duration(found['longest_outage_s'])}")
    if len(bundles := found["bundle_packets"]) > 1:
        facts.append(
            f"gso_max_segs {bundles[0]}; up to {bundles[-1]} where the machine is measured "
            "and needs longer bundles"
        )
    if held := in_a_sentence(found["pacing"]):
        facts.append(held)
    if step := found["dense_step"]:
        facts.append(
            f"uncompressed: {step['parameters']} parameters, {step['frame_bytes']} B a message; at "
            f"mean rates {1e3 * step['up_s']:.1f} ms up, {1e3 * step['down_s']:.1f} ms down, "
            f"{1e3 * step['step_s']:.1f} ms a step, {step['communicating']:.0%} of it communicating"
        )
    return facts + [f"needs {need}" for need in found["needs"]]
