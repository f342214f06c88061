"""Records of steps whose gradients travel in buckets: one for each bucket on each side, one for each step's passes.

Times in seconds after t0, wall clock, as in ``testbed.record.events``.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.record.events import Event


@dataclass(frozen=True, slots=True)
class BucketRecord(Event):
    """A bucket's way from a worker's gradient to its parameters, in the order in which it happens."""

    kind = "bucket"
    node: str
    step: int
    bucket: int
    """0: what the backward pass computes first."""
    ready_s: float
    """The last of its gradients was there."""
    pack_s: float
    """Its compression began, which may have waited for other buckets'."""
    packed_s: float
    """It had ended; the message may then have waited for others to be sent."""
    start_s: float
    """Its first byte was handed over."""
    sent_s: float
    """Its last byte was handed over."""
    first_s: float
    """The reply's header had come."""
    arrived_s: float
    """The reply's last byte had come to the host's network stack."""
    last_s: float
    """The reply's last byte had been read."""
    decoded_s: float
    applying_s: float
    """The optimizer began with its parameters, which may have waited for the next step's computation to come to them."""
    applied_s: float
    """Its parameters were as the step leaves them."""
    density: float
    """Asked for: the mean of its parts, by elements."""
    size: int
    """Elements."""
    sent_count: int
    """Elements sent."""
    bytes_up: int
    """Of the frame."""
    bytes_down: int
    parts: dict[str, list[float]]
    """By parameter: its elements, those that were sent, the bytes that they took (without the frame's header and,
    where several parameters share one payload, as much of it as each has of the elements sent), the density asked for."""


@dataclass(frozen=True, slots=True)
class PassRecord(Event):
    """When a worker computed which layer: ``[from_s, to_s]`` by layer, in the order of the pass.

    What is between two layers of a forward pass was spent waiting for parameters.
    """

    kind = "pass"
    node: str
    step: int
    forward: dict[str, list[float]]
    backward: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class ServedRecord(Event):
    """A bucket of a step as its server saw it; fields as in ``RoundRecord``, which has all of a step's together."""

    kind = "served"
    node: str
    step: int
    bucket: int
    messages: list[dict[str, float]]
    complete_s: float
    """The last worker's part had been read."""
    aggregate_s: float
    send_start_s: float
    """Of the reply, which may have waited for those of other buckets."""
    send_end_s: float
    bytes_down: int
    union_count: int
