"""Checks that this machine can do what a scenario asks for, before anything is made."""

from __future__ import annotations

import os
import platform
import resource
from functools import partial
from pathlib import Path

from testbed.errors import MachineError
from testbed.fabric.base import RunContext, fabrics
from testbed.host import user_namespace
from testbed.links.capabilities import busy_at_once, check_capacity, probe
from testbed.links.network.namespaces import require_congestion
from testbed.links.tc.parameters import bundle_sizes
from testbed.runner import cross_traffic
from testbed.scenario.expand import expand
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import flows
from testbed.scenario.timeline import Timeline
from testbed.scenario.validate_links import kernel_needs

FILES, FILES_OF_NODE, FILES_OF_PROCESS = 64, 6, 3
"""Open files that a process of ours has in any case; the agent for every node, whose connections it
follows; and this one for every node and every process of a job, which it hears and watches."""


def check(loaded: Loaded, fabric: str, *, filled: bool = False, processes: int = 0) -> int:
    """Packets that the run's offload bundles must have at least for this machine to move it.

    Raises MachineError for what is missing and how to get it, InputError for an unknown fabric.

    ``filled``: every link direction is filled by itself, as in a replay, which has no cross
    traffic; else training shares them. ``processes``: of a job, in every node.
    """
    # Made for nothing but its complaints, which come before any directory, and before waiting for
    # other runs.
    fabrics.get(fabric, where="--fabric")(RunContext("preflight", Path(), "")).destroy()
    _check_open_files(len(expand(loaded.scenario)), processes)
    scenario, timeline = loaded.wall(), loaded.timeline()

    def try_out() -> int:
        needs = [*kernel_needs(scenario), *_needs_of_outages(timeline)]
        if needs and (missing := probe().missing(needs)):
            raise missing
        return _check_rates(scenario, timeline, filled)

    # Where not even that is permitted, the agent will tell of the kernel, and nobody of rates.
    needed = try_out() if os.geteuid() == 0 else user_namespace.elsewhere(try_out)
    _check_congestion(scenario.congestion)
    if not filled:
        cross_traffic.check(flows(scenario), fabric, scenario.congestion)
    return needed or 1


def _check_open_files(nodes: int, processes: int) -> None:
    """Agent and this process open files for every node; the kernel allows so many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = max(FILES_OF_NODE, FILES_OF_PROCESS * (1 + processes))
    needed = FILES + each * nodes
    if most != resource.RLIM_INFINITY and needed > most:
        raise MachineError(
            f"{nodes} nodes need some {needed} open files, and a process may have {most} here",
            fix=f"Use at most {max(0, most - FILES) // each} nodes or --fabric sim, or have the "
            "hard limit raised (`ulimit -Hn`; `nofile` in limits.conf)",
        )


def _needs_of_outages(timeline: Timeline) -> list[str]:
    longest_s, end = timeline.longest_outage_s()
    return [f"charge (for outages such as that of {end})"] if longest_s else []


def _check_congestion(wanted: str | None) -> None:
    """The kernel loads one for root's own processes only; the agent may be one of them."""
    if wanted is None or (os.geteuid() != 0 and _can_be_loaded(wanted)):
        return
    require_congestion(wanted)


def _can_be_loaded(congestion: str) -> bool:
    modules = Path("/lib/modules", platform.release(), "kernel/net/ipv4")
    return any(modules.glob(f"tcp_{congestion}.ko*"))


def _check_rates(scenario: Scenario, timeline: Timeline, filled: bool) -> int:
    """Only what nodes themselves can have under way counts: a rack passes on what they send."""
    roles = {spec.name: spec.role for spec in expand(scenario)}
    highest: dict[LinkDirection, int] = {
        end: rate for end, rate in timeline.highest_rates().items() if end.link in roles
    }
    servers = [name for name, role in roles.items() if role == "server"]
    others = [name for name, role in roles.items() if role == "host"]
    return check_capacity(
        highest,
        sum(highest.values()) if filled else busy_at_once(highest, servers, others),
        partial(bundle_sizes, timeline),
        dilation=scenario.dilation,
    )
