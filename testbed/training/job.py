"""The job of one node in one run, as it is handed over the control network, and the records of its
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from testbed.algorithm import Algorithm
from testbed.errors import InputError
from testbed.exchange.base import TransferTiming
from testbed.node import Message, Node
from testbed.scenario.model import Train
from testbed.scenario.profile import Profile


class SharedLink(NamedTuple):
    """A link's direction on a worker's way, and how many workers share it."""

    link: str
    direction: Literal["up", "down"]
    workers: int


@dataclass(frozen=True, slots=True)
class Job:
    """One algorithm with one seed. All nodes of a run get the same, but for ``node``, ``rank``,
    ``peer``. Times inside ``train`` are wall times: dilation has been applied."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: int
    """Number in every frame of the run, 64 bit."""
    algorithm: Algorithm
    train: Train
    seed: int
    workers: int
    node: str
    rank: int
    peer: int
    peer_timeout_s: float
    device: str = "cpu"
    dilation: float = 1.0
    servers: int = 1
    """They share the model: a part for each."""
    threads: int = 1
    """Threads that the node computes with."""
    sizes: tuple[tuple[PayloadSizes, ...], ...] = ()
    """Sizes of its messages by step and server, where nothing is trained; they begin again."""
    names: tuple[str, ...] = ()
    """Names of all peers, by number, for messages; empty: server, worker-0, worker-1…"""

    way_up: tuple[SharedLink, ...] = ()
    """A worker's links to the first server, for controllers that watch them."""
    way_down: tuple[SharedLink, ...] = ()
    """And back."""
    step_times: tuple[float, ...] = ()
    """Seconds of model time, where ``train.pace`` is from a file."""
    longest_pace_s: float | None = None
    """That any worker's computation is held to, wall time; None: as this one's."""
    absences: tuple[tuple[float, float], ...] = ()
    """When its worker is away, wall seconds after t0; of a server, all its workers' absences."""
    profile: Profile | None = None
    """How long layers compute, if the scenario has a file of it: shares of ``train.pace``."""

    def peer_name(self, peer: int) -> str:
        """Return the name of peer number ``peer``."""
        if self.names:
            return self.names[peer]
        if peer >= self.servers:
            return f"worker-{peer - self.servers}"
        return "server" if self.servers == 1 else f"server-{peer}"

    def server_peers(self) -> range:
        """The servers' numbers, by rank."""
        return range(self.servers)

    def worker_peers(self) -> range:
        """The workers' numbers, by rank."""
        return range(self.servers, self.servers + self.workers)

    def to_json(self) -> dict[str, Any]:
        """As it travels; ``from_json`` reads it back equal."""
        plain: dict[str, Any] = _adapter().dump_python(self, mode="json", by_alias=True)
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Read what ``to_json`` wrote. Raises InputError when it is something else."""
        try:
            return _adapter().validate_python(data)
        except ValidationError as error:
            raise InputError(f"this is not a job: {error}") from error


@cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


@dataclass(frozen=True, slots=True)
class PayloadSizes:
    """Sizes that stand for gradients and means: payload bytes ``up`` and ``down``, and elements of
    the model (``size``), a gradient's message (``sent``) and the mean that is sent (``union``).
    ``density``: requested."""

    up: int
    down: int
    size: int
    sent: int
    union: int
    density: float


def message_fields(node: Node, message: Message) -> dict[str, float]:
    """Sender, frame bytes and times, as they stand in a ``RoundRecord``."""
    return {
        "sender": message.sender,
        "bytes": node.endpoint.frame_bytes(message),
        "sent_s": message.sent_s,
        "first_s": message.first_s,
        "arrived_s": message.arrived_s,
        "last_s": message.last_s,
    }


def transfer_fields(timing: TransferTiming, computed_s: float) -> dict[str, Any]:
    """Phases, bytes and arrival, as in a ``StepRecord``; computation ended at ``computed_s``."""
    return {
        "compress_s": timing.start_s - computed_s,
        "send_s": timing.sent_s - timing.start_s,
        "wait_s": timing.first_s - timing.sent_s,
        "receive_s": timing.last_s - timing.first_s,
        "delay_s": timing.last_s - timing.start_s,
        "arrived_s": timing.arrived_s,
        "bytes_up": timing.bytes_up,
        "bytes_down": timing.bytes_down,
    }
