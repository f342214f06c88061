"""A trace of a job's messages: what every node computed, sent and received, and what each of that waited for. Pure.

Operations of a node may go on side by side; one begins when all those that it comes ``after`` have ended. A node computes
one thing at a time, and what it sends to one peer leaves in the order in which it became ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from testbed.errors import InputError

Kind = Literal["compute", "send", "receive"]
Place = tuple[str, int]
"""A node, and the place of an operation among its own, from 0."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a node does. Times in seconds of model time."""

    kind: Kind
    after: tuple[int, ...] = ()
    """Places, among the node's own operations, of those that it waits for."""
    seconds: float = 0.0
    """Of a computation."""
    peer: str = ""
    """To whom, or from whom."""
    bytes: int = 0
    """Of the whole message, as it goes over TCP: headers of its own counted, those of TCP not."""
    tag: int = 0
    """Of two nodes' messages, the first that is sent with a tag is the first that is received with it."""
    begin_s: float | None = None
    """When it began, after the job's own t0; None: not known."""
    step: int | None = None


@dataclass(frozen=True)
class MessageTrace:
    """What all nodes do, each in its order. Raises InputError where not all of it can happen."""

    operations: Mapping[str, tuple[Operation, ...]]
    """By node, in the order of their ranks."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What a node was in its job, where that is known: ``server`` or ``worker``."""
    source: str = ""
    """Where it is from, for people."""

    def __post_init__(self) -> None:
        _ = self.order

    @property
    def nodes(self) -> list[str]:
        """Names by rank."""
        return list(self.operations)

    @cached_property
    def received_as(self) -> dict[Place, Place]:
        """Every send, and the receipt of what it sends. Raises InputError for one without the other."""
        sends, receipts = self._messages("send"), self._messages("receive")
        matched: dict[Place, Place] = {}
        for way in {**sends, **receipts}:
            out, came = sends.get(way, []), receipts.get(way, [])
            if len(out) != len(came):
                sender, receiver, tag = way
                raise InputError(
                    f"{sender} sends {receiver} {len(out)} messages with tag {tag}, and {len(came)} are received"
                )
            for there, here in zip(out, came, strict=True):
                self._check_bytes(there, here)
                matched[there] = here
        return matched

    @cached_property
    def order(self) -> list[Place]:
        """All operations, each behind those that it waits for; a receipt waits for what sends it."""
        waiting, next_ones = self._edges()
        ready = deque(place for place, many in waiting.items() if not many)
        done: list[Place] = []
        while ready:
            done.append(ready.popleft())
            for other in next_ones.get(done[-1], ()):
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        if len(done) < len(waiting):
            node, number = next(place for place, many in waiting.items() if many)
            raise InputError(f"operation {number} of {node} can never begin: it waits for itself")
        return done

    def of(self, place: Place) -> Operation:
        """The operation there."""
        return self.operations[place[0]][place[1]]

    def places(self) -> Iterator[Place]:
        """All operations, node by node."""
        return ((node, i) for node, own in self.operations.items() for i in range(len(own)))

    def _edges(self) -> tuple[dict[Place, int], dict[Place, list[Place]]]:
        """How many each waits for, and who waits for it."""
        waiting: dict[Place, int] = {}
        next_ones: dict[Place, list[Place]] = {}
        for node, number in self.places():
            earlier = set(self.operations[node][number].after)
            if any(not 0 <= other < len(self.operations[node]) for other in earlier):
                raise InputError(f"operation {number} of {node} waits for one that is not there")
            waiting[node, number] = len(earlier)
            for other in earlier:
                next_ones.setdefault((node, other), []).append((node, number))
        for there, here in self.received_as.items():
            waiting[here] += 1
            next_ones.setdefault(there, []).append(here)
        return waiting, next_ones

    def _messages(self, kind: Kind) -> dict[tuple[str, str, int], list[Place]]:
        """By sender, receiver and tag."""
        found: dict[tuple[str, str, int], list[Place]] = {}
        for node, number in self.places():
            one = self.operations[node][number]
            if one.kind != kind:
                continue
            if one.peer not in self.operations or one.peer == node:
                raise InputError(f"operation {number} of {node} names {one.peer!r}, no other node")
            way = (node, one.peer) if kind == "send" else (one.peer, node)
            found.setdefault((*way, one.tag), []).append((node, number))
        return found

    def _check_bytes(self, there: Place, here: Place) -> None:
        sent, came = self.of(there).bytes, self.of(here).bytes
        if sent != came:
            raise InputError(
                f"operation {there[1]} of {there[0]} sends {sent} B, which operation {here[1]} of {here[0]} "
                f"receives as {came} B"
            )
