"""Whether this machine can do what a scenario asks for: found out before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.fabric.base import RunContext
from testbed.fabric.builtin import fabrics
from testbed.links.capacity import busy_at_once, check_capacity
from testbed.links.plan import bundle_segments
from testbed.links.probe import probe
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.scenario.needs import kernel_needs
from testbed.scenario.shape import End
from testbed.scenario.timeline import Timeline
from testbed.scenario.traffic import flows
from testbed.session import traffic


def check(loaded: Loaded, fabric: str, *, filled: bool = False) -> None:
    """Raises MachineError for what is missing and how to get it, InputError for an unknown fabric.

    ``filled``: every link direction is filled by itself, as in a replay; else training shares them.
    """
    # Made for nothing but its complaints, which come before any directory, and before waiting for other runs.
    fabrics.get(fabric, where="--fabric")(RunContext("preflight", Path(), "")).destroy()
    scenario, timeline = loaded.wall(), loaded.timeline()
    needs = kernel_needs(scenario)
    # Without root's rights the kernel cannot be tried out from here: preparing the links will tell.
    able = os.geteuid() == 0
    if needs and able and (missing := probe().missing(needs)):
        raise missing
    if able:
        _check_rates(scenario, timeline, filled)
    traffic.check(flows(scenario), fabric, scenario.congestion)


def _check_rates(scenario: Scenario, timeline: Timeline, filled: bool) -> None:
    """Only what nodes themselves can have under way counts: a rack passes on what they send."""
    roles = {spec.name: spec.role for spec in expand(scenario)}
    highest: dict[End, int] = {
        end: rate for end, rate in timeline.highest_rates().items() if end.link in roles
    }
    servers = [name for name, role in roles.items() if role == "server"]
    others = [name for name, role in roles.items() if role == "host"]
    check_capacity(
        highest,
        sum(highest.values()) if filled else busy_at_once(highest, servers, others),
        lambda slower: _segments(timeline, slower),
        dilation=scenario.dilation,
    )


def _segments(timeline: Timeline, slower: float) -> int:
    """The run's ``gso_max_segs`` if it were dilated by that factor more."""
    step = timeline.shortest_step_s()
    return bundle_segments(
        round(timeline.lowest_rate() / slower),
        None if step is None else step * slower,
        timeline.per_packet(),
    )
