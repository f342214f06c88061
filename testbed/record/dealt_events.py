"""Records of workers that are not alike: what data they have, and steps in which they rest; see ``testbed.record.events``."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.record.events import Event


@dataclass(frozen=True, slots=True)
class LabelsRecord(Event):
    """The samples of a worker where labels differ between workers: how many of each label."""

    kind = "labels"
    node: str
    samples: int
    labels: dict[str, int]


@dataclass(frozen=True, slots=True)
class RestRecord(Event):
    """A step in which a worker rested: it sent nothing, and took in what came of the others' gradients."""

    kind = "rest"
    node: str
    step: int
    epoch: int
    start_s: float
    first_s: float
    """The reply's header had come."""
    arrived_s: float
    """Its last byte had come to the host's network stack."""
    last_s: float
    """Its last byte had been read."""
    end_s: float
    """It was applied."""
    bytes_down: int
    bytes_up: int = 0


@dataclass(frozen=True, slots=True)
class AwayRecord(Event):
    """A time in which a worker was away from the run, from one of its steps to another."""

    kind = "away"
    node: str
    step: int
    """The first that it missed."""
    returned: int
    """The step whose parameters it returned with."""
    left_s: float
    asked_s: float
    """When it asked for them."""
    arrived_s: float
    """Their last byte had come to the host's network stack."""
    end_s: float
    """They were its own."""
    bytes_down: int
    bytes_up: int
