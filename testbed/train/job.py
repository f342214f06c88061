"""What one node has to do in one run, as it is handed over the control network."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.algorithms import Algorithm
from testbed.scenario.model import Train


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
