"""One replay of a trace of messages on a scenario's nodes and links, also in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed.comm_trace.replay_role import NodeScript, ReplayOperation, ReplayRole, acts_of, mapped
from testbed.comm_trace.trace import MessageTrace
from testbed.fabric.sim.network import costs_of
from testbed.fidelity.service_curve import flights, group_by_common_end
from testbed.fidelity.verdict import Verdict
from testbed.records.intervals import IntervalSet
from testbed.records.run_directory import MANIFEST, read_events, read_json
from testbed.records.stored import Events
from testbed.runner.experiment import Experiment
from testbed.runner.judge import MessageActivity
from testbed.runner.sim_trial import SimTrial
from testbed.runner.trial import TrialPlan
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
        self.scripts(0)

    @property
    def seed(self) -> int:
        """The seed of what chance decides on the links."""
        return next(iter(self.loaded.scenario.seeds), 0)

    @cached_property
    def experiment(self) -> Experiment:
        """The scenario made ready to run; what it says of training is left out."""
        scenario = self.loaded.wall().model_copy(update={"train": Train()})
        return Experiment.untrained(self.loaded, scenario, self.seed).for_seed(self.seed)

    def scripts(self, run: int) -> dict[str, NodeScript]:
        """Return scripts by node; ``run`` marks the frames. Hosts and others play nothing."""
        specs = sorted(self.experiment.specs, key=lambda spec: spec.peer)
        players = [spec for spec in specs if spec.role != "host"]
        played = mapped(self.trace, [spec.name for spec in players])
        numbers = {played[s.name]: s.peer for s in players if s.name in played}
        dilation = self.experiment.dilation

        def acts(name: str) -> tuple[ReplayOperation, ...]:
            if name not in played:
                return ()
            return acts_of(self.trace, played[name], numbers, dilation, timed=self.timed)

        return {
            spec.name: NodeScript(
                run=run,
                node=spec.name,
                peer=spec.peer,
                seed=self.seed,
                names=tuple(player.name for player in players),
                peer_timeout_s=float(self.experiment.scenario.peer_timeout),
                acts=acts(spec.name),
            )
            for spec in specs
        }

    def row(self) -> dict[str, Any]:
        """Return what the manifest says in place of an algorithm."""
        operations = map(self.trace.of, self.trace.places())
        return {
            "name": self.label,
            "messages": sum(operation.kind == "send" for operation in operations),
            "source": self.trace.source,
            "timed": self.timed,
        }


def replay_activity(events: Events, names: Mapping[int, str], lockstep: bool) -> MessageActivity:  # noqa: ARG001
    """Find a replay's messages for its verdict (``testbed.runner.judge.Look``)."""
    messages = flights(events.get("message", []))
    message_groups, entangled = group_by_common_end(messages)
    return MessageActivity(
        under_way=IntervalSet((message.sent_s, message.arrived_s) for message in messages),
        seconds=max((message.arrived_s for message in messages), default=0.0),
        groups=message_groups,
        entangled=entangled,
    )


def summarise_replay(directory: Path, verdict: Verdict, done: Mapping[str, Any]) -> dict[str, Any]:
    """The object that becomes ``summary.json``, in model time. ``done``: nodes' last messages."""
    manifest = read_json(directory / MANIFEST)
    messages = read_events(directory).get("message", [])
    served = {name for name, node in manifest["nodes"].items() if node["role"] == "server"}
    dilation, about = float(manifest["dilation"]), asdict(verdict)
    wall_s = max((float(last["summary"]["end_s"]) for last in done.values()), default=0.0)
    ends: dict[int, float] = {}
    for message in messages:
        step = int(message["step"])
        ends[step] = max(ends.get(step, 0.0), float(message["arrived_s"]))
    return {
        "dir": str(directory),
        "algorithm": manifest["algorithm"]["name"],
        "seed": manifest["seed"],
        "verdict": about.pop("state"),
        **about,
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


class SimCommReplay(SimTrial):
    """A trial in virtual time whose nodes play parts of a trace."""

    def __init__(self, plan: TrialPlan, replay: CommReplay) -> None:
        super().__init__(plan, costs_of(plan.experiment.scenario.sim))
        self._replay = replay

    def _roles(self) -> Mapping[str, ReplayRole]:
        scripts = self._replay.scripts(1)
        return {
            spec.name: ReplayRole(self.nodes.node(spec), scripts[spec.name])
            for spec in self.nodes.specs
        }

    def _summarise(self, path: Path, verdict: Verdict) -> dict[str, Any]:
        return summarise_replay(path, verdict, self.outcome.done)
