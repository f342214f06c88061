"""Records of runs whose workers are not in lockstep; see ``testbed.record.events``."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.record.events import Event


@dataclass(frozen=True, slots=True)
class GradientRecord(Event):
    """A gradient that an asynchronous server applied by itself; times as in ``RoundRecord.messages``."""

    kind = "gradient"
    node: str
    step: int
    """Of the run: gradients applied before this one ÷ workers, counted from 1."""
    version: int
    """Gradients applied, this one among them."""
    sender: int
    own_step: int
    """Its sender's, counted from 1."""
    computed_on: int
    """Version of the parameters that it was computed on."""
    staleness: int
    """Gradients applied between that version and this one."""
    bytes: int
    sent_s: float
    first_s: float
    arrived_s: float
    last_s: float
    applied_s: float
    """When the parameters with it were complete."""


@dataclass(frozen=True, slots=True)
class DroppedRecord(Event):
    """A gradient that came to a server too late to be of use. ``seen``: as in ``RoundRecord.messages``."""

    kind = "dropped"
    node: str
    step: int
    """The step (with an asynchronous server: the version) that it was computed on."""
    seen: dict[str, float]


@dataclass(frozen=True, slots=True)
class LostRecord(Event):
    """A worker without whom the run went on. ``node``: who says so, the server or the worker's own place."""

    kind = "lost"
    node: str
    lost: str
    step: int | None
    """The step of the run, if that is known."""
    time_s: float
    reason: str
