"""What one node has to do in one run, as it is handed over the control network."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic import ValidationError

from testbed.algorithms import Algorithm
from testbed.errors import InputError
from testbed.scenario.model import Train
from testbed.train.sizes import Sizes

SERVER_PEER = 0
"""The parameter server's number in frames; workers follow from 1."""


@dataclass(frozen=True, slots=True)
class Job:
    """One algorithm with one seed. All nodes of a run get the same, but for ``node``, ``rank``, ``peer``.

    Times inside ``train`` are wall times: dilation has been applied.
    """

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
    threads: int = 1
    """Threads that the node computes with."""
    sizes: Sizes | None = None
    """Of its messages, where nothing is trained."""
    names: tuple[str, ...] = ()
    """Names of all peers, by number, for messages; empty: server, worker-0, worker-1…"""

    def peer_name(self, peer: int) -> str:
        """What peer number ``peer`` is called."""
        if self.names:
            return self.names[peer]
        return "server" if peer == SERVER_PEER else f"worker-{peer - 1}"

    def worker_peers(self) -> range:
        """The workers' numbers, by rank."""
        return range(1, self.workers + 1)

    def to_json(self) -> dict[str, Any]:
        """As it travels; ``from_json`` reads it back equal."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "algorithm": asdict(self.algorithm),
            "train": self.train.model_dump(mode="json", by_alias=True),
            "sizes": None if self.sizes is None else asdict(self.sizes),
            "names": list(self.names),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Read what ``to_json`` wrote. Raises InputError when it is something else."""
        try:
            return cls(
                **{
                    **data,
                    "algorithm": Algorithm(**data["algorithm"]),
                    "train": Train.model_validate(data["train"]),
                    "sizes": Sizes(**data["sizes"]) if data.get("sizes") else None,
                    "names": tuple(data.get("names", ())),
                }
            )
        except (TypeError, KeyError, ValidationError) as error:
            raise InputError(f"this is not a job: {error}") from error
