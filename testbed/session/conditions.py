"""The conditions of a run on real links: what is asked of the agent, and links brought to their state at t0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.links.client import LinkSettings
from testbed.links.plan import segments
from testbed.scenario.load import Loaded
from testbed.scenario.timeline import Timeline
from testbed.session.experiment import up_places
from testbed.session.session import Session

RTO_MIN_MS = 200
"""Linux's least retransmission time-out: with dilation it is made that much longer."""

LEAD_S = 0.5
"""From telling the agent of t0 to t0, at least: nodes and hosts are told in between."""
CHANGE_S = 30e-6
"""What telling the agent of one change takes."""

OnSample = Callable[[list[dict[str, Any]]], None]


def link_settings(
    loaded: Loaded, timeline: Timeline, *, least: int = 1, gapped: bool = False
) -> LinkSettings:
    """What holds for all links of a run of ``loaded``.

    ``least``: packets in a bundle that the machine needs (``preflight.check``). ``gapped``: nobody
    knows how long its messages are.
    """
    scenario = loaded.wall()
    return LinkSettings(
        segments=segments(timeline, least),
        at=up_places(scenario),
        congestion=scenario.congestion,
        rto_min_ms=None if loaded.scenario.dilation == 1 else round(RTO_MIN_MS * scenario.dilation),
        ecn=timeline.marks(),
        gapped=gapped,
    )


def shape(
    session: Session,
    loaded: Loaded,
    timeline: Timeline,
    on_sample: OnSample,
    *,
    gapped: bool = False,
) -> dict[str, Any]:
    """Bring every link to its state at t0. Returns what the kernel holds, read back."""
    session.fabric.agent.on_sample = on_sample
    settings = link_settings(loaded, timeline, least=session.least, gapped=gapped)
    impaired = [end for end in timeline.ends if timeline.impaired(end)]
    return session.fabric.agent.prepare(session.cables, timeline.initial, settings, impaired)


def lead_s(timeline: Timeline) -> float:
    """Before t0 the agent is told of all changes of the first minute, and then the nodes of t0."""
    return LEAD_S + CHANGE_S * sum(1 for _ in timeline.changes(0.0, 60.0))


def backlog_drops() -> int:
    """Packets that this host has dropped because a processor's receive backlog was full."""
    lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines)
