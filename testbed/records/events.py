"""The whole event schema: the records of a run, one JSON object a line.

Schema version 1; times in seconds after t0, wall clock.

``events/<role>-<rank>.jsonl`` holds ``step``, ``fit``, ``coded``, ``redundancy``, ``bucket``,
``pass``, ``served``, ``round``, ``rest``, ``away``, ``labels``, ``gradient``, ``dropped``,
``lost``, ``evaluation`` and ``epoch`` events, each with ``v``, ``kind`` and ``node``;
``links.jsonl`` holds ``change``, ``sample``, ``mismatch``, ``node``, ``host`` and ``disturbed``
lines (``LinkChanged``, ``LinkSample``, ``LinkMismatch``, ``NodeChanged``, ``HostSample``,
``UnreliableInterval``), and when t0 was (``clock``; on a swarm ``host_clock``).

Where gradients travel in buckets, each bucket has a record on each side, and each step one of its
passes. Other records are of runs whose workers are not in lockstep, and of workers that are not
alike: what data they have, and steps in which they rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

SCHEMA = 1


class Event:
    """A record that knows its kind: a dataclass with slots, of plain values."""

    kind: ClassVar[str]
    __slots__: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that becomes the line."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {"v": SCHEMA, "kind": self.kind, **fields}


@dataclass(frozen=True, slots=True)
class StepRecord(Event):
    """One step of one worker. The phases follow one another; their sum is the step's time."""

    kind = "step"
    node: str
    step: int
    epoch: int
    start_s: float
    compute_s: float
    """Forward and backward pass, any fit report, and the wait for the pace; without stall_s."""
    busy_s: float
    """Forward and backward pass alone."""
    compress_s: float
    send_s: float
    """First byte handed over to last byte handed over."""
    wait_s: float
    """Last byte handed over to the reply's header."""
    receive_s: float
    decompress_s: float
    apply_s: float
    delay_s: float
    """Communication delay: send_s + wait_s + receive_s."""
    arrived_s: float
    """When the reply's last byte was in the host's network stack: by the end of receive_s."""
    end_s: float
    density: float
    """Density requested: k. 1 without compression."""
    sent_count: int
    """Elements sent."""
    size: int
    """Elements of the gradient."""
    bytes_up: int
    bytes_down: int
    loss: float
    accuracy: float
    overran: bool
    """The computation took longer than its pace."""
    compress_cpu_s: float
    apply_cpu_s: float
    payload_crc: int
    """CRC-32 of the payload sent."""
    selection: dict[str, Any] | None
    """How the elements were chosen (``compress.base.Selection``); None: not known."""
    controller: dict[str, Any] | None
    """The ``Observation`` given to the controller after this step; None without one."""
    overlap_s: float = 0.0
    """Communication before computation ended, in none of the phases: gradients sent early."""
    stall_s: float = 0.0
    """Waiting for parameters of layers that were still under way from the step before: between two
    layers of the forward pass, that is, and before what follows of compute_s."""
    skipped: int = 0
    """Later steps not computed: with backup workers, those whose updates were there already."""
    pace_s: float | None = None
    """Wall seconds that this step's computation was asked to take; None: as long as it took."""


@dataclass(frozen=True, slots=True)
class FitRecord(Event):
    """How well distributions fit what a worker compressed in a step, gradient and memory together.

    Laplace(0, ``b``) and Normal(0, ``sigma``), each with its maximum-likelihood scale; ``w1``: the
    1-Wasserstein distance, in the gradient's units.
    """

    kind = "fit"
    node: str
    step: int
    bucket: str
    """The parameter; ``whole`` where the model is one vector."""
    size: int
    """Elements of it."""
    b: float
    """Mean magnitude of all elements."""
    sigma: float
    """Root mean square of the elements looked at."""
    w1_laplace: float
    w1_normal: float
    sample: int
    """Elements looked at."""
    laplace: float
    """``w1_laplace`` over ``b``: comparable between steps and parameters."""
    normal: float
    """``w1_normal`` over ``b``."""


@dataclass(frozen=True, slots=True)
class CodedRecord(Event):
    """One step of a coded exchange as one worker saw it."""

    kind = "coded"
    node: str
    step: int
    r: int
    """The redundancy: by how many workers each sample was computed."""
    packets: int
    """That this worker sent."""
    bytes_sent: int
    """Their frame bytes; of a multicast once, as on the worker's own link."""
    received: dict[str, int]
    """Frame bytes that came, by sender."""
    saturated: int
    """Elements of this worker's blocks that were beyond the range of the fixed point."""
    t_calc_s: float
    """From the end of the step before's exchange to the first packet."""
    t_comm_s: float
    """From when the last one began to send until all had come."""


@dataclass(frozen=True, slots=True)
class RedundancyRecord(Event):
    """The redundancy that a coded exchange has from ``step`` on, as all workers decided alike."""

    kind = "redundancy"
    node: str
    step: int
    r: int
    why: str
    table: list[dict[str, float]]
    """``{"r", "calc_s", "comm_s"}``: what was expected of each."""


@dataclass(frozen=True, slots=True)
class RoundRecord(Event):
    """One step as the server saw it. ``messages``: gradient frames of workers that took part."""

    kind = "round"
    node: str
    step: int
    messages: list[dict[str, float]]
    """``{"sender", "bytes", "sent_s", "first_s", "arrived_s", "last_s"}``, by sender; times at the
    receiver: header read, last byte in the network stack, last byte read."""
    aggregate_s: float
    send_start_s: float
    send_end_s: float
    bytes_down: int
    """Frame bytes of the reply, summed over workers."""
    union_count: int
    """Elements of the aggregate that are sent."""
    others: list[int] = field(default_factory=list)
    """Peers that were answered and had sent nothing: they rested."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord(Event):
    """Test accuracy of the server's replica after ``step`` was applied."""

    kind = "evaluation"
    node: str
    step: int
    time_s: float
    """When that step was applied: the evaluation itself is not on the clock."""
    accuracy: float
    loss: float
    samples: int
    final: bool


@dataclass(frozen=True, slots=True)
class EpochRecord(Event):
    """Hash of a replica's parameters at an epoch's end: equal on all nodes, or the run is wrong."""

    kind = "epoch"
    node: str
    epoch: int
    step: int
    parameters: str


@dataclass(frozen=True, slots=True)
class LinkChanged(Event):
    """A change of a link direction: when it was due and when the kernel had taken it."""

    kind = "change"
    link: str
    direction: str
    due_s: float
    applied_s: float
    rate_bits: int
    queue_bytes: int
    impairments: dict[str, Any] | None = None
    """All of them from now on (``Impairments.to_json``); None where the link has no delay line."""


@dataclass(frozen=True, slots=True)
class NodeChanged(Event):
    """A change of a node's processes by an event of the scenario: when due and when done."""

    kind = "node"
    node: str
    action: str
    """``pause``, ``resume``, ``kill`` or ``restart``."""
    due_s: float
    applied_s: float


@dataclass(frozen=True, slots=True)
class HostSample(Event):
    """Activity of the host's processors from ``from_s`` to ``to_s``; written about every 100 ms."""

    kind = "host"
    from_s: float
    to_s: float
    stolen_s: float
    """All processors' time lost to others on the hardware, in kernel steps of mostly 10 ms."""
    idle_share: float = 1.0
    """Share of all processors' time in which they had nothing to do."""
    pressure: float | None = None
    """Share of time in which something waited for a processor; None: the kernel does not say."""
    backlog_drops: int = 0
    """Packets that the host itself dropped because a processor's receive backlog was full."""


@dataclass(frozen=True, slots=True)
class LinkSample(Event):
    """Traffic that a link direction should carry, and did carry, from ``from_s`` to ``to_s``."""

    kind = "sample"
    link: str
    direction: str
    from_s: float
    to_s: float
    asked_bits: float
    """Integral of the asked rate."""
    delivered_bits: int
    """At the link's class, Ethernet headers counted."""
    packets: int
    backlog_bytes: int
    """Largest queue seen."""
    busy: bool
    """A queue stood at every look: the link was backlogged throughout."""
    drops: int
    """Packets dropped by the emulated queue."""
    longest_gap_s: float = 0.0
    """Longest time between two looks at the link: 20 ms unless the agent was kept from looking."""
    looks: tuple[tuple[float, int], ...] = ()
    """When the link was looked at in between, and bits carried since ``from_s``; empty where it
    carried nothing, or was backlogged throughout."""


@dataclass(frozen=True, slots=True)
class LinkMismatch(Event):
    """The kernel held something else than what was asked of it; written when that has ended."""

    kind = "mismatch"
    link: str
    direction: str
    from_s: float
    """The last look at which it was right: wrong at some time after that."""
    to_s: float
    """The first look at which it was right again, or the last of all."""
    what: str
    """``rate`` (bit/s), ``queue`` (bytes) or ``line`` (what delays and loses, in words)."""
    asked: int | str
    held: int | str


@dataclass(frozen=True, slots=True)
class UnreliableInterval(Event):
    """A time in which this machine could not be relied upon to emulate; written at a run's end."""

    kind = "disturbed"
    from_s: float
    to_s: float
    reason: str
    """``stolen``, ``starved``, ``backlog``, ``late`` or ``read_back``.

    What each means: docs/reference/certificate.md.
    """
    ends: tuple[str, ...] = ()
    """Link directions that it is known for (``worker-0 up``); none: the whole host."""


@dataclass(frozen=True, slots=True)
class BucketRecord(Event):
    """A bucket's way from a worker's gradient to its parameters, in order of time."""

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
    """The optimizer began with its parameters; the computation may have been waited for."""
    applied_s: float
    """Its parameters were as the step leaves them."""
    density: float
    """Asked for: the mean of its parts, by elements."""
    size: int
    """Elements."""
    sent_count: int
    """Elements sent."""
    bytes_up: int
    """Bytes of the frame."""
    bytes_down: int
    parts: dict[str, list[float]]
    """Elements, elements sent, bytes that they took (without the frame's header and, where several
    parameters share one payload, as much of it as each has of the elements sent) and density asked
    for, keyed by parameter."""


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
    """A bucket of a step as its server saw it; fields as in ``RoundRecord``, which has all."""

    kind = "served"
    node: str
    step: int
    bucket: int
    messages: list[dict[str, float]]
    complete_s: float
    """The last worker's part had been read."""
    aggregate_s: float
    send_start_s: float
    """The start of sending the reply, which may have waited for those of other buckets."""
    send_end_s: float
    bytes_down: int
    union_count: int


@dataclass(frozen=True, slots=True)
class GradientRecord(Event):
    """A gradient that an asynchronous server applied alone; times: see ``RoundRecord.messages``."""

    kind = "gradient"
    node: str
    step: int
    """The step of the run: gradients applied before this one ÷ workers, counted from 1."""
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
    """A gradient that came to a server too late for use. ``seen``: see ``RoundRecord.messages``."""

    kind = "dropped"
    node: str
    step: int
    """The step (with an asynchronous server: the version) that it was computed on."""
    seen: dict[str, float]


@dataclass(frozen=True, slots=True)
class LostRecord(Event):
    """A worker without whom the run went on. ``node``: who says so, the server or its own place."""

    kind = "lost"
    node: str
    lost: str
    step: int | None
    """The step of the run, if that is known."""
    time_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class LabelsRecord(Event):
    """The samples of a worker where labels differ between workers: how many of each label."""

    kind = "labels"
    node: str
    samples: int
    labels: dict[str, int]


@dataclass(frozen=True, slots=True)
class RestRecord(Event):
    """A step in which a worker rested: it sent nothing, and took in the others' gradients."""

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


PHASES = ("compute", "stall", "compress", "send", "wait", "receive", "decompress", "apply")
"""The phases of a step in their order, as in ``StepRecord``'s ``<phase>_s``."""


def phase_s(step: Mapping[str, Any], phase: str) -> float:
    """Wall seconds of a phase of a ``step`` record; 0 of one not known when it was written."""
    return float(step.get(f"{phase}_s", 0.0))
