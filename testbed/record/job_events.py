"""Records of a job that is somebody else's (``testbed exec``): its processes, what it said of itself, what it moved.

Times in seconds after t0, wall clock, as in ``testbed.record.events``. All are in ``events/<role>-<rank>.jsonl`` of
the node that they tell of.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.record.events import Event


@dataclass(frozen=True, slots=True)
class ProcessRecord(Event):
    """One process of the command, written when it has ended."""

    kind = "process"
    node: str
    rank: int
    """Among all processes of the job."""
    local_rank: int
    """Among those of its node."""
    started_s: float
    ended_s: float
    status: int
    """Its exit status; negative: the signal that killed it."""
    asked: bool
    """It was told to end: by a time limit, an event of the scenario, or since another process had failed."""


@dataclass(frozen=True, slots=True)
class MarkRecord(Event):
    """What a process said by ``testbed.mark``."""

    kind = "mark"
    node: str
    rank: int
    local_rank: int
    what: str
    """``step``: a step has ended; ``phase``: the phase ``name`` has begun; ``end``: it has ended; ``begin``: the
    process was ready, before t0 where the others were waited for."""
    name: str | None
    """Of a phase."""
    number: int | None
    """Of a step, counted from 1."""
    time_s: float
    values: dict[str, float]
    """What a step was said to have come to: ``loss``, …"""


@dataclass(frozen=True, slots=True)
class CarriedRecord(Event):
    """What an interface of a node carried from before the first process's start to the end, headers counted."""

    kind = "carried"
    node: str
    interface: str
    role: str
    """``data``: the shaped one; ``control``; ``loopback``."""
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int


@dataclass(frozen=True, slots=True)
class SocketRecord(Event):
    """A TCP connection of a node's, from its beginning to its end or to that of the run, as the kernel counted it."""

    kind = "socket"
    node: str
    own: str
    """``address:port``."""
    peer: str
    peer_node: str | None
    """Whose address that is, its own node's for what stays there; None: of no node (the switch, or another network)."""
    interface: str
    """``data``, ``control`` or ``loopback``: by its own address and its peer's."""
    bytes_sent: int
    """Payload, with what was sent again."""
    bytes_received: int
    """The kernel counts the peer's end as one."""
    segments_out: int
    retransmitted: int
    """Segments."""
    bytes_retransmitted: int
    least_rtt_us: int | None
    ended_s: float | None
    """None: it was still open at the end."""
