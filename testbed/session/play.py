"""The replay of a trace of messages on a scenario's nodes and links: who plays what, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed.messages.part import Part, acts_of, mapped
from testbed.messages.trace import MessageTrace
from testbed.record.directory import MANIFEST, read_events, read_json
from testbed.record.lost import Events
from testbed.record.spans import Spans
from testbed.record.stars import flights, stars
from testbed.record.verdict import Verdict
from testbed.scenario.absences import nobody_leaves
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded
from testbed.scenario.model import Train
from testbed.session.experiment import Experiment
from testbed.session.judgement import Seen


@dataclass(frozen=True)
class Play:
    """``trace`` on the nodes of ``loaded``. ``timed``: what is sent begins when it did, whatever it waited for.

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
        """Of what chance decides on the links."""
        return next(iter(self.loaded.scenario.seeds), 0)

    @cached_property
    def experiment(self) -> Experiment:
        """The scenario made ready to run; what it says of training is left out."""
        scenario = self.loaded.wall().model_copy(update={"train": Train()})
        made = Experiment(
            self.loaded, scenario, expand(scenario), self.loaded.timeline(), [], [self.seed]
        )
        return made.for_seed(self.seed)

    def parts(self, run: int) -> dict[str, Part]:
        """By the scenario's nodes; ``run`` marks the frames. Who is not in the trace, or is a host, plays nothing."""
        specs = sorted(self.experiment.specs, key=lambda spec: spec.peer)
        taking_part = [spec for spec in specs if spec.role != "host"]
        played = mapped(self.trace, [spec.name for spec in taking_part])
        numbers = {played[s.name]: s.peer for s in taking_part if s.name in played}
        scenario = self.experiment.scenario
        return {
            spec.name: Part(
                run=run,
                node=spec.name,
                peer=spec.peer,
                seed=self.seed,
                names=tuple(one.name for one in taking_part),
                peer_timeout_s=float(scenario.peer_timeout),
                acts=() if spec.name not in played else acts_of(
                    self.trace, played[spec.name], numbers, self.experiment.dilation, timed=self.timed
                ),
            )
            for spec in specs
        }  # fmt: skip

    def row(self) -> dict[str, Any]:
        """What the manifest says in place of an algorithm."""
        many = sum(1 for place in self.trace.places() if self.trace.of(place).kind == "send")
        return {
            "name": self.label,
            "messages": many,
            "source": self.trace.source,
            "timed": self.timed,
        }


def look(events: Events, names: Mapping[int, str], lockstep: bool) -> Seen:  # noqa: ARG001
    """A replay's messages for its verdict (``testbed.session.judgement.Look``)."""
    under_way = flights(events.get("message", []))
    found, entangled = stars(under_way)
    return Seen(
        under_way=Spans((one.sent_s, one.arrived_s) for one in under_way),
        seconds=max((one.arrived_s for one in under_way), default=0.0),
        groups=found,
        entangled=entangled,
    )


def summed_up(directory: Path, verdict: Verdict, done: Mapping[str, Any]) -> dict[str, Any]:
    """The object that becomes ``summary.json``; times in model time. ``done``: the nodes' last messages."""
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
