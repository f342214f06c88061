"""The replay of a trace of messages in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.fabric.sim.costs import costs_of
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.node import VirtualNode
from testbed.messages.player import Player
from testbed.record.directory import RunDirectory
from testbed.record.verdict import Verdict
from testbed.session.ensemble import Ensemble
from testbed.session.play import Play, summed_up
from testbed.session.progress import Progress
from testbed.session.virtual import VirtualTrial


class Players(Ensemble):
    """Nodes that play parts of a trace."""

    def __init__(
        self, play: Play, network: VirtualNetwork, directory: RunDirectory, progress: Progress
    ) -> None:
        super().__init__(play.experiment.specs, network, directory, progress)
        self._play = play

    def roles(self) -> Mapping[str, Player]:
        """See ``Ensemble``."""
        parts = self._play.parts(1)
        found = {}
        for spec in self.specs:
            endpoint = VirtualEndpoint(self._network, spec.peer, spec.name)
            self._endpoints[spec.name] = endpoint
            node = VirtualNode(endpoint, self._play.seed, self._recorder(spec))
            found[spec.name] = Player(node, parts[spec.name])
        return found


class VirtualPlay(VirtualTrial):
    """A trial in virtual time whose nodes play parts of a trace."""

    def __init__(self, play: Play, directory: RunDirectory, progress: Progress) -> None:
        self._play = play
        row, costs = Algorithm(play.label), costs_of(play.experiment.scenario.sim)
        super().__init__(play.experiment, row, play.seed, directory, progress, costs)

    def row(self) -> dict[str, Any]:
        """See ``VirtualTrial``."""
        return self._play.row()

    def _make_cast(self) -> Ensemble:
        return Players(self._play, self._network, self.directory, self.progress)

    def _summarise(self, path: Path, verdict: Verdict) -> dict[str, Any]:
        return summed_up(path, verdict, self._done)
