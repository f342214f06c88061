"""The scenario file as frozen models. Every field is what the user may write; units are mandatory.

Times, rates and sizes are those of the file: ``dilation`` is applied once, by ``dilate``, after loading.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from testbed.scenario.events import Event
from testbed.units import Duration, Packets, Rate, Size, parse_queue

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Direction = Literal["up", "down"]
Queue = Annotated[
    Duration | Size | Packets,
    BeforeValidator(parse_queue),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["50 ms", "64 kB", "100 packets"]}),
]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class Model(BaseModel):
    """Frozen, and a key we do not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class NodeGroup(Model):
    """One node, or ``count`` alike ones. Without ``count`` the node bears the group's name."""

    role: Literal["server", "worker"] = Field(description="What its nodes do.")
    count: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="How many; nodes are then called <name>-0, <name>-1, …"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where its nodes compute.")


class LinkEnd(Model):
    """One direction of a node's access link. A field left out is inherited: default, group, node."""

    rate: Rate | None = Field(
        None, description="Line rate, Ethernet header counted. 0 is an outage."
    )
    queue: Queue | None = Field(
        None, description="Tail-drop queue: time at `rate`, bytes, or full-size packets."
    )
    at: Literal["nic", "network"] | None = Field(
        None, description="`up` only: where it is shaped, in the sender's own stack or one hop on."
    )
    delay: Duration | None = Field(None, description="One-way delay. Needs netem.")
    jitter: Duration | None = Field(None, description="Jitter of the delay. Needs netem.")
    loss: Fraction | None = Field(None, description="Random packet loss. Needs netem.")
    reorder: Fraction | None = Field(None, description="Reordered share. Needs netem.")
    duplicate: Fraction | None = Field(None, description="Duplicated share. Needs netem.")
    corrupt: Fraction | None = Field(None, description="Corrupted share. Needs netem.")


class Link(Model):
    """A node's access link: `up` leaves the node, `down` arrives at it."""

    up: LinkEnd = Field(LinkEnd(), description="From the node into the network.")
    down: LinkEnd = Field(LinkEnd(), description="From the network to the node.")


class Schedule(Model):
    """Learning-rate schedule over epochs."""

    name: Literal["constant", "step", "cosine"] = Field("constant", description="Its form.")
    every: Annotated[int, Field(ge=1)] = Field(30, description="`step`: epochs between decays.")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="`step`: factor of a decay."
    )
    epochs: Annotated[int, Field(ge=1)] = Field(
        100, description="`cosine`: length of the half wave."
    )


class Optimizer(Model):
    """Stochastic gradient descent as applied by every worker to the same mean gradient."""

    name: Literal["sgd"] = Field("sgd", description="The method.")
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        0.1, description="Learning rate at the start."
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Momentum.")
    nesterov: bool = Field(False, description="Nesterov's form of the momentum.")
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="Factor of the parameters that is added to their gradient."
    )
    schedule: Schedule = Field(Schedule(), description="How the learning rate changes.")


class Stop(Model):
    """When a run ends: after so many steps, or epochs, or at an accuracy, whichever comes first."""

    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Steps of every worker.")
    epochs: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Passes over the training set."
    )
    accuracy: Fraction | None = Field(None, description="Test accuracy, 0 to 1.")


class Train(Model):
    """What is trained and how long a step's computation takes."""

    task: Name = Field("digits", description="Data set.")
    model: Name = Field("cnn", description="Model.")
    width: Annotated[float, Field(gt=0, le=64)] = Field(
        1.0, description="Width factor of the model."
    )
    batch: Annotated[int, Field(ge=1)] = Field(32, description="Samples per worker and step.")
    optimizer: Optimizer = Field(Optimizer(), description="How parameters follow the gradient.")
    pace: Duration | None = Field(
        None, description="Hold each step's computation to this time, as an accelerator's would be."
    )
    stop: Stop = Field(Stop(steps=100), description="When a run ends.")
    evaluate_every: Annotated[int, Field(ge=1)] = Field(
        20, description="Steps between two measurements of test accuracy."
    )
    data: str | None = Field(None, description="Directory with the task's files, if it needs any.")


class Derived(Model):
    """An algorithm made from another one, with some of its settings changed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$")] = Field(
        description="What it is called in records and figures."
    )
    from_: str = Field(alias="from", description="The algorithm to start from.")
    selector: str | None = Field(None, description="Which elements are sent.")
    density: Fraction | None = Field(None, description="Share of elements sent, if it is fixed.")
    memory: Literal["none", "feedback"] | None = Field(
        None, description="What becomes of elements that are not sent."
    )
    controller: dict[str, Any] = Field({}, description="Options of the controller to change.")


class Scenario(Model):
    """One experiment: nodes, links and their history, a training job, and the algorithms to run."""

    name: Name = Field(description="Part of the names of run directories.")
    description: str = Field("", description="A sentence for people.")
    nodes: dict[Name, NodeGroup] = Field(description="Groups of nodes by name.")
    links: dict[Name, Link] = Field(description="`default`, then per group, then per node.")
    events: tuple[Event, ...] = Field((), description="What happens to links, by time.")
    train: Train = Field(Train(), description="The training job.")
    algorithms: tuple[str | Derived, ...] = Field(
        ("none",), description="Run one after the other, each over the same link history."
    )
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field(
        (1,), description="Every algorithm is run once for each."
    )
    dilation: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.0, description="Every time × this, every rate ÷ this; results are in model time."
    )
    congestion: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,15}$")] | None = Field(
        None, description="TCP congestion control on the data network; absent: the host's default."
    )
    peer_timeout: Duration = Field(
        Duration(10.0), description="How long a silent peer is waited for; longer than any outage."
    )
