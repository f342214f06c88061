"""What a verdict is found on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.record.followed import Followed
from testbed.record.loss import LossSeen

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PathSeen:
    """The least round-trip time from ``node`` to ``peer`` (None: the switch) and back, and what was asked for:
    it should lie between ``low_s`` and ``high_s``, which are one where delays are constant."""

    node: str
    peer: str | None
    least_s: float
    low_s: float
    high_s: float

    @property
    def place(self) -> str:
        """Both ends in words."""
        return f"{self.node} to {self.peer or 'the switch'}"

    @property
    def error_s(self) -> float:
        """How far it is from what was asked: positive above, negative below."""
        return max(0.0, self.least_s - self.high_s) - max(0.0, self.low_s - self.least_s)


@dataclass(frozen=True, slots=True)
class Starved:
    """How long the host was watched while traffic was under way, and the share of it without a free processor."""

    watched_s: float
    share: float


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """What was to happen to nodes (pause, resume, kill, restart); ``faults``: a sentence for all that did not,
    or was not asked for. ``lateness_ms`` as ``quantiles.spread`` gives it."""

    expected: int
    applied: int
    faults: Sequence[str]
    lateness_ms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything is optional: what is absent is reported as not measured. Places are ``worker-0 up``."""

    seconds: float = 0.0
    """Wall seconds that the run took."""
    links: Records = ()
    """The agent's report, one object per link direction."""
    steps: Records = ()
    """``StepRecord`` objects of all workers."""
    rests: Records = ()
    """``RestRecord`` objects of all workers."""
    rounds: Records = ()
    """``RoundRecord`` objects of the server."""
    sockets: Records = ()
    """Per data socket ``{"node", "peer", "bytes_sent", "segs_out"}``, node and peer by name.
    Of multicasts see ``identity.class_bytes_expected``."""
    unaccounted: Mapping[str, str] = field(default_factory=dict)
    """By place: why the sockets do not account for all its bytes."""
    completion: Mapping[str, Any] | None = None
    """What ``completion.measure`` returned."""
    followed: Mapping[str, Followed] | None = None
    """By place: whether every change of the scenario was made."""
    starts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By place: a sentence for everything that was not as asked at t0."""
    losses: Mapping[str, LossSeen] = field(default_factory=dict)
    """By place, of links that have a delay line."""
    paths: Sequence[PathSeen] = ()
    nodes: NodesSeen | None = None
    """None where nothing happens to nodes, as in a replay."""
    foreign_drops: Mapping[str, int] | None = None
    """Packets dropped outside the emulated queues, by place."""
    stolen_share: float | None = None
    """Share of the host's processor time that a hypervisor gave to others."""
    starved: Starved | None = None
    around: Sequence[str] | None = None
    """A sentence for every way that a job's bytes took around the links; None where it is not looked for."""
    unwatched: Sequence[str] = ()
    """A sentence for every such way that could not be watched."""
    faults: Sequence[str] = ()
    """A sentence for everything in which the nodes' own counts and replicas do not agree."""
