"""Cross traffic of one run on real links, from its nodes' parts to its last test's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.scenario.model import Scenario
from testbed.scenario.node_events import node_changes
from testbed.scenario.timeline import Timeline
from testbed.scenario.traffic import flows
from testbed.session.session import Session
from testbed.session.traffic import CrossTraffic, crossed_links, failure

END_S = 20.0
"""How long nodes may take to end their cross traffic."""

Take = Callable[[str, dict[str, Any]], None]


class Crossing:
    """All flows of ``scenario``, whose links follow ``timeline``. ``write`` gets their records."""

    def __init__(
        self,
        session: Session,
        scenario: Scenario,
        timeline: Timeline,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._session, self._timeline = session, timeline
        self._flows, self._changes = flows(scenario), node_changes(scenario)
        self._racks = {rack.name: rack.members for rack in session.racks}
        self._traffic = CrossTraffic(self._flows, session.places, scenario.congestion, write)

    @property
    def links(self) -> set[str]:
        """Names of the links that the flows may be on."""
        return crossed_links(self._flows, self._racks)

    def part(self, node: str) -> dict[str, Any]:
        """What ``node`` is told of the traffic before it is ready."""
        return self._traffic.part(node)

    def take(self, record: dict[str, Any]) -> None:
        """A burst. Raises ExperimentError when it came to nothing and the scenario is not the reason."""
        self._traffic.take(record)
        ends = self._traffic.ends(record["flow"])
        if error := failure(record, ends, self._racks, self._timeline, self._changes):
            raise error

    def end(self, take: Take) -> None:
        """Sources first: a sink has something to say of a test only when that has been ended.

        ``take`` gets what nodes say meanwhile.
        """
        for part in ("sources", "sinks"):
            here = self._traffic.nodes & set(self._session.switchboard.connected())
            for node in here:
                self._session.tell(node, "end", part=part, tests=self._traffic.tests())
            self._session.await_all("ended", here, END_S, take)
