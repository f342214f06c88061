"""One replay of a trace of messages on a scenario's nodes and links, also in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.comm_trace.replay_role import NodeScript, ReplayRole, acts_of, mapped
from testbed.comm_trace.trace import MessageTrace
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import VirtualNetwork, costs_of
from testbed.fabric.sim.node import VirtualNode
from testbed.fidelity.service_curve import flights, group_by_common_end
from testbed.fidelity.summary import Events
from testbed.fidelity.verdict import Verdict
from testbed.records.intervals import IntervalSet
from testbed.records.run_directory import MANIFEST, RunDirectory, read_events, read_json
from testbed.runner.experiment import Experiment
from testbed.runner.judge import MessageActivity
from testbed.runner.progress import Progress
from testbed.runner.sim_trial import SimNodes, VirtualTrial
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded
from testbed.scenario.model import Train
from testbed.scenario.node_timeline import nobody_leaves


@dataclass(frozen=True)
class CommReplay:
    """``trace`` on the nodes of ``loaded``. ``timed``: what is sent begins when it did, whatever it
    waited for.

    Raises InputError where the trace does not fit.
    """

    loaded: Loaded
    trace: MessageTrace
    label: str = "messages"
    timed: bool = False

    def __post_init__(self) -> None:
        nobody_leaves(self.loaded)
        self.parts(0)

    @property
    def seed(self) -> int:
        """The seed of what chance decides on the links."""
        return next(iter(self.loaded.scenario.seeds), 0)

    @cached_property
    def experiment(self) -> Experiment:
        """The scenario made ready to run; what it says of training is left out."""
        scenario = self.loaded.wall().model_copy(update={"train": Train()})
        made = Experiment(
            self.loaded, scenario, expand(scenario), self.loaded.timeline(), [], [self.seed]
        )
        return made.for_seed(self.seed)

    def parts(self, run: int) -> dict[str, NodeScript]:
        """Return scripts, keyed by node; ``run`` marks the frames. Hosts, and nodes not in the
        trace, play nothing."""
        specs = sorted(self.experiment.specs, key=lambda spec: spec.peer)
        taking_part = [spec for spec in specs if spec.role != "host"]
        played = mapped(self.trace, [spec.name for spec in taking_part])
        numbers = {played[s.name]: s.peer for s in taking_part if s.name in played}
        scenario = self.experiment.scenario
        return {
            spec.name: NodeScript(
                run=run,
                node=spec.name,
                peer=spec.peer,
                seed=self.seed,
                names=tuple(one.name for one in taking_part),
                peer_timeout_s=float(scenario.peer_timeout),
                acts=()
                if spec.name not in played
                else acts_of(
                    self.trace,
                    played[spec.name],
                    numbers,
                    self.experiment.dilation,
                    timed=self.timed,
                ),
            )
            for spec in specs
        }

    def row(self) -> dict[str, Any]:
        """Return what the manifest says in place of an algorithm."""
        many = sum(1 for place in self.trace.places() if self.trace.of(place).kind == "send")
        return {
            "name": self.label,
            "messages": many,
            "source": self.trace.source,
            "timed": self.timed,
        }


def look(events: Events, names: Mapping[int, str], lockstep: bool) -> MessageActivity:  # noqa: ARG001
    """A replay's messages for its verdict (``testbed.runner.judge.Look``)."""
    under_way = flights(events.get("message", []))
    found, entangled = group_by_common_end(under_way)
    return MessageActivity(
        under_way=IntervalSet((one.sent_s, one.arrived_s) for one in under_way),
        seconds=max((one.arrived_s for one in under_way), default=0.0),
        groups=found,
        entangled=entangled,
    )


def summed_up(directory: Path, verdict: Verdict, done: Mapping[str, Any]) -> dict[str, Any]:
    """The object that becomes ``summary.json``; times in model time. ``done``: the nodes' last
    messages."""
    manifest = read_json(directory / MANIFEST)
    messages = read_events(directory).get("message", [])
    served = {name for name, node in manifest["nodes"].items() if node["role"] == "server"}
    dilation, found = float(manifest["dilation"]), asdict(verdict)
    wall_s = max((float(one["summary"]["end_s"]) for one in done.values()), default=0.0)
    ends: dict[int, float] = {}
    for one in messages:
        ends[int(one["step"])] = max(ends.get(int(one["step"]), 0.0), float(one["arrived_s"]))
    return {
        "dir": str(directory),
        "algorithm": manifest["algorithm"]["name"],
        "seed": manifest["seed"],
        "verdict": found.pop("state"),
        **found,
        "time_s": wall_s / dilation,
        "wall_s": wall_s,
        "steps": sum(step > 0 for step in ends),
        "accuracy": None,
        "bytes_up": sum(int(m["bytes"]) for m in messages if m["sender"] not in served),
        "bytes_down": sum(int(m["bytes"]) for m in messages if m["node"] not in served),
        "mean_k": None,
        "messages": len(messages),
        "step_ends_s": [ends[step] / dilation for step in sorted(ends) if step > 0],
    }


class Players(SimNodes):
    """Nodes that play parts of a trace."""

    def __init__(
        self, play: CommReplay, network: VirtualNetwork, directory: RunDirectory, progress: Progress
    ) -> None:
        super().__init__(play.experiment.specs, network, directory, progress)
        self._play = play

    def roles(self) -> Mapping[str, ReplayRole]:
        """See ``SimNodes``."""
        parts = self._play.parts(1)
        found = {}
        for spec in self.specs:
            endpoint = VirtualEndpoint(self._network, spec.peer, spec.name)
            self._endpoints[spec.name] = endpoint
            node = VirtualNode(endpoint, self._play.seed, self._recorder(spec))
            found[spec.name] = ReplayRole(node, parts[spec.name])
        return found


class VirtualPlay(VirtualTrial):
    """A trial in virtual time whose nodes play parts of a trace."""

    def __init__(self, play: CommReplay, directory: RunDirectory, progress: Progress) -> None:
        self._play = play
        row, costs = Algorithm(play.label), costs_of(play.experiment.scenario.sim)
        super().__init__(play.experiment, row, play.seed, directory, progress, costs)

    def row(self) -> dict[str, Any]:
        """See ``VirtualTrial``."""
        return self._play.row()

    def _make_cast(self) -> SimNodes:
        return Players(self._play, self._network, self.directory, self.progress)

    def _summarise(self, path: Path, verdict: Verdict) -> dict[str, Any]:
        return summed_up(path, verdict, self._done)
