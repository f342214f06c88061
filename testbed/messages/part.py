"""What one node plays of a trace, as it is handed over the control network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from testbed.errors import InputError
from testbed.messages.trace import Kind, MessageTrace, Operation, Place

MOST_OPERATIONS, MOST_WAITS = 100_000, 400_000
"""Of a node, and what they wait for: what one line of the control network holds."""


@dataclass(frozen=True, slots=True)
class Act:
    """An operation for whoever plays it. Times in wall time."""

    kind: Kind
    after: tuple[int, ...]
    seconds: float
    peer: int
    """Its number in frames; -1 of a computation."""
    bytes: int
    number: int
    """Of a message among those of its sender to its receiver: what its frame is marked with."""
    begin_s: float
    """Of what is sent: not before then; 0: as soon as all that it waits for has ended."""
    step: int
    """0: not known."""


@dataclass(frozen=True, slots=True)
class Part:
    """A node's acts, and who its peers are."""

    run: int
    """Number in every frame of the run, 64 bit."""
    node: str
    peer: int
    seed: int
    names: tuple[str, ...]
    """Of all peers, by number."""
    peer_timeout_s: float
    acts: tuple[Act, ...]

    @property
    def partners(self) -> list[int]:
        """Whom it exchanges messages with, by number."""
        return sorted({act.peer for act in self.acts if act.kind != "compute"})

    @property
    def most_bytes(self) -> int:
        """Of the largest message."""
        return max((act.bytes for act in self.acts), default=0)

    def to_json(self) -> dict[str, Any]:
        """As it travels; ``from_json`` reads it back equal."""
        return {**asdict(self), "acts": [list(asdict(act).values()) for act in self.acts]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        """Read what ``to_json`` wrote. Raises InputError when it is something else."""
        try:
            acts = tuple(Act(kind, tuple(after), *rest) for kind, after, *rest in data["acts"])
            return cls(**{**data, "names": tuple(data["names"]), "acts": acts})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a part: {error}") from error


def acts_of(
    trace: MessageTrace,
    node: str,
    numbers: Mapping[str, int],
    dilation: float,
    *,
    timed: bool = False,
) -> tuple[Act, ...]:
    """What ``node`` does, its peers by their ``numbers``.

    ``timed``: what is sent begins when it did, whatever it waited for. Raises InputError where a trace does not say when,
    and for more than a node can be told.
    """
    own = trace.operations[node]
    waits = sum(len(one.after) for one in own)
    if len(own) > MOST_OPERATIONS or waits > MOST_WAITS:
        raise InputError(
            f"{node} has {len(own)} operations that wait for {waits}; a node plays at most {MOST_OPERATIONS}, "
            f"which wait for {MOST_WAITS}"
        )
    counted = _numbers(trace)
    acts = (_act(trace.of(p), counted.get(p, 0), numbers, dilation) for p in _places(node, own))
    if not timed:
        return tuple(acts)
    return tuple(_timed(node, act, one, dilation) for act, one in zip(acts, own, strict=True))


def _places(node: str, own: Sequence[Operation]) -> list[Place]:
    return [(node, i) for i in range(len(own))]


def _numbers(trace: MessageTrace) -> dict[Place, int]:
    """Of every message, at both of its ends: from 0, between two nodes."""
    many: Counter[tuple[str, str]] = Counter()
    found: dict[Place, int] = {}
    for there, here in trace.received_as.items():
        way = there[0], here[0]
        found[there] = found[here] = many[way]
        many[way] += 1
    return found


def _act(one: Operation, number: int, numbers: Mapping[str, int], dilation: float) -> Act:
    return Act(
        kind=one.kind,
        after=one.after,
        seconds=one.seconds * dilation,
        peer=numbers[one.peer] if one.peer else -1,
        bytes=one.bytes,
        number=number,
        begin_s=0.0,
        step=one.step or 0,
    )


def _timed(node: str, act: Act, one: Operation, dilation: float) -> Act:
    """``act`` at its own time, if it sends something."""
    if act.kind != "send":
        return act
    if one.begin_s is None:
        raise InputError(
            f"the trace does not say when {node} sent a message to {one.peer}",
            where="--timed",
            hint="Without it, messages leave as soon as what they waited for has ended",
        )
    return replace(act, after=(), begin_s=one.begin_s * dilation)


def mapped(trace: MessageTrace, names: Sequence[str]) -> dict[str, str]:
    """The trace's nodes by those of a scenario, whose ``names`` come servers first: by name, or else in their order.

    Raises InputError where there are too few of them.
    """
    if set(trace.nodes) <= set(names):
        return {name: name for name in trace.nodes}
    if len(trace.nodes) > len(names):
        raise InputError(
            f"the trace has {len(trace.nodes)} nodes, the scenario {len(names)} for them",
            hint=f"Give the scenario nodes called {', '.join(trace.nodes[:8])}, or as many",
        )
    return dict(zip(names, trace.nodes, strict=False))
