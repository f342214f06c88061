"""The scenario file as frozen models. Every field is what the user may write; units are mandatory.

Times, rates and sizes are those of the file: ``dilation`` is applied once, by ``dilate``, after
loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from testbed.scenario.link_model import Event, Fraction, Link, LinkEnd, Model
from testbed.units import Duration, Rate, Size

__all__ = ["Derived", "Link", "LinkEnd", "NodeGroup", "Rack", "Scenario", "TrafficModel", "Train"]


class Split(Model):
    """How the training set is dealt to workers."""

    name: Literal["iid", "dirichlet"] = Field(
        "iid",
        description="All draw from the whole set anew every epoch; or labels differ by worker, for "
        "good.",
    )
    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = Field(
        None,
        description="`dirichlet`: its concentration; small: few labels each, large: all alike.",
    )

    @model_validator(mode="after")
    def _concentration(self) -> Self:
        if (self.name == "dirichlet") != (self.alpha is not None):
            raise ValueError(
                "`dirichlet` and `alpha` belong together: {name: dirichlet, alpha: 0.5}"
            )
        return self


class Participation(Model):
    """How many workers take part in a step: drawn anew for each, all alike likely. The others
    rest."""

    workers: Annotated[int, Field(ge=1)] | None = Field(None, description="So many of them.")
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="That share of them, rounded; one at least."
    )

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if (self.workers is None) == (self.share is None):
            raise ValueError("give `workers` or `share`, one of them")
        return self

    def many(self, workers: int) -> int:
        """Return how many of ``workers`` take part."""
        if self.workers is not None:
            return self.workers
        return max(1, round(workers * (self.share or 0.0)))


Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class LogNormalPace(Model):
    """Drawn for every step and worker: ln T is normal, with the mean ln `median` and the deviation
    `sigma`."""

    name: Literal["lognormal"] = Field(description="The distribution.")
    median: Duration | None = Field(None, description="Half of all steps take less.")
    mean: Duration | None = Field(
        None, description="In place of the median, which is then mean · exp(−sigma²/2)."
    )
    sigma: Annotated[float, Field(gt=0, le=1.5, allow_inf_nan=False)] = Field(
        description="Standard deviation of ln T."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.median is None) == (self.mean is None) or not (self.median or self.mean):
            raise ValueError("give `median` or `mean`, one of them, above 0")
        return self

    @property
    def median_s(self) -> float:
        """Seconds."""
        return self.median or (self.mean or 0.0) * exp(-(self.sigma**2) / 2)

    def slowed(self, factor: float) -> LogNormalPace:
        """So many times as long."""
        times = {name: getattr(self, name) for name in ("median", "mean")}
        longer = {name: Duration(time * factor) for name, time in times.items() if time}
        return self.model_copy(update=longer)


class RecordedPace(Model):
    """Step times from a file, one after the other, over and over."""

    name: Literal["file"] = Field(description="Where they are from.")
    file: str = Field(description="A .csv or .json file, relative to the scenario.")
    column: str | None = Field(
        None, description="Where there are several; a name that ends in _s, _ms or _us."
    )
    scale: Positive = Field(1.0, description="Factor on its times.")
    begin: Literal["drawn", "first"] = Field(
        "drawn",
        description="Where in the file a worker begins: at a place of its own, or all with the "
        "first.",
    )
    at_end: Literal["loop"] = Field("loop", description="After the last: start over.")

    @property
    def key(self) -> str:
        """The key of a scenario's recorded times: the file, and the column where one is named."""
        return self.file if self.column is None else f"{self.file}:{self.column}"

    def slowed(self, factor: float) -> RecordedPace:
        """So many times as long."""
        return self.model_copy(update={"scale": self.scale * factor})


_NAMED = {"lognormal": "LogNormalPace", "file": "RecordedPace"}
PACE_NAMES = tuple(_NAMED)
PACE_TAGS = frozenset({"Time", *_NAMED.values()})
"""Tags that pydantic puts behind a pace in the place of an error."""


def _tag(value: Any) -> str | None:
    if isinstance(value, Mapping):
        name = value.get("name")
        return None if name is None else _NAMED.get(str(name), str(name))
    return type(value).__name__ if isinstance(value, Model) else "Time"


Pace = Annotated[
    Annotated[Duration, Tag("Time")]
    | Annotated[LogNormalPace, Tag("LogNormalPace")]
    | Annotated[RecordedPace, Tag("RecordedPace")],
    Discriminator(_tag),
]


def pace_of(
    node: str, group: str, general: Pace | None, own: Mapping[str, Pace], slow: Mapping[str, float]
) -> Pace | None:
    """The pace of ``node``: its own, its group's or the general one, times the factor."""
    pace = own.get(node, own.get(group, general))
    factor = slow.get(node, slow.get(group, 1.0))
    if pace is None or factor == 1.0:
        return pace
    return Duration(pace * factor) if isinstance(pace, Duration) else pace.slowed(factor)


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
_LEAST_MEMORY = 32 << 20
CongestionControl = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,15}$")]


class NodeLimits(Model):
    """Limits of a node in a container; absent: twice its share of this machine, see
    docs/reference/scenario-format.md."""

    processes: Annotated[int, Field(ge=16, le=4_194_304)] | None = Field(
        None, description="Processes and threads at the same time."
    )
    memory: Size | None = Field(None, description="Memory of all its processes, `/tmp` included.")
    tmp: Size | None = Field(None, description="Of that, what `/tmp` may hold.")

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.memory is not None and self.memory < _LEAST_MEMORY:
            raise ValueError(
                f"`memory` of {self.memory} is too little to start anything: at least 32 MiB"
            )
        if self.memory is not None and self.tmp is not None and self.tmp > self.memory:
            raise ValueError("`tmp` is a part of `memory`, and cannot be larger")
        return self


class NodeGroup(Model):
    """One node, or ``count`` alike ones. Without ``count`` the node bears the group's name."""

    role: Literal["server", "worker", "host"] = Field(
        description="What its nodes do; a `host` trains nothing, it sends and receives traffic."
    )
    count: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="How many; nodes are then called <name>-0, <name>-1, …"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where its nodes compute.")
    image: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None,
        description="`testbed exec` in containers: the image to run the command in; absent: ours.",
    )
    limits: NodeLimits = Field(NodeLimits(), description="What each of its nodes may use.")


class Rack(Model):
    """Nodes behind one link that they share: `up` leads from the rack to the rest of the
    network."""

    members: Annotated[tuple[str, ...], Field(min_length=1)] = Field(description="Nodes or groups.")
    up: LinkEnd = Field(LinkEnd(), description="From the rack to the rest of the network.")
    down: LinkEnd = Field(LinkEnd(), description="From the rest of the network to the rack.")


class TrafficModel(Model):
    """A flow between two nodes beside the training: as much as TCP can, or UDP at a rate."""

    name: Name = Field(description="What records call it.")
    from_: str = Field(alias="from", description="The node that sends.")
    to: str = Field(description="The node that receives.")
    kind: Literal["tcp", "udp"] = Field(description="Bulk TCP, or UDP at a constant rate.")
    rate: Rate | None = Field(None, description="`udp`: its rate while it sends.")
    congestion: CongestionControl | None = Field(
        None, description="`tcp`: its congestion control; absent: the scenario's."
    )
    streams: Annotated[int, Field(ge=1, le=128)] = Field(
        1, description="`tcp`: connections at once."
    )
    at: Duration = Field(Duration(0.0), description="When it begins.")
    for_: Duration | None = Field(
        None, alias="for", description="How long; absent: until the run ends."
    )
    on: Duration | None = Field(None, description="How long it sends before a pause.")
    off: Duration | None = Field(None, description="How long it pauses before it sends again.")
    timing: Literal["constant", "exponential"] | None = Field(
        None, description="`on` and `off` are the times (if not said), or the means of random ones."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Of the random times.")


class ScheduleModel(Model):
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
    schedule: ScheduleModel = Field(ScheduleModel(), description="How the learning rate changes.")


class Stop(Model):
    """When a run ends: after so many steps, or epochs, or at an accuracy, whichever comes first."""

    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Steps of every worker.")
    epochs: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Passes over the training set."
    )
    accuracy: Fraction | None = Field(None, description="Test accuracy, 0 to 1.")


class Train(Model):
    """The training job: what is trained, and how long a step's computation takes."""

    task: Name = Field("digits", description="Data set.")
    model: Name = Field("cnn", description="Model.")
    width: Annotated[float, Field(gt=0, le=64)] = Field(
        1.0, description="Width factor of the model."
    )
    batch: Annotated[int, Field(ge=1)] = Field(32, description="Samples per worker and step.")
    optimizer: Optimizer = Field(Optimizer(), description="How parameters follow the gradient.")
    pace: Pace | None = Field(
        None,
        description="Hold each step's computation to this time, as an accelerator's would be; or "
        "to drawn or recorded times.",
    )
    paces: dict[Name, Pace] = Field(
        {}, description="Of groups of workers, or single ones, in place of `pace`."
    )
    slow: dict[Name, Positive] = Field(
        {}, description="Factor on the pace of groups of workers, or single ones."
    )
    profile: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None,
        description="How that time is shared among layers: `measured` (the default), `constant`, "
        "one that ships, or a file.",
    )
    split: Split = Field(Split(), description="Which samples are whose.")
    classes: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Only samples of the first so many classes; absent: all."
    )
    participation: Participation | None = Field(
        None, description="How many workers take part in a step; absent: all."
    )
    stop: Stop = Field(Stop(steps=100), description="When a run ends.")
    evaluate_every: Annotated[int, Field(ge=1)] = Field(
        20, description="Steps between two measurements of test accuracy."
    )
    data: str | None = Field(None, description="Directory with the task's files, if it needs any.")
    gradients: Literal["real", "none", "recorded"] = Field(
        "real",
        description="`none`: nothing is trained; messages are as large as gradients' are. "
        "`recorded`: as in an earlier run.",
    )
    recorded: str | None = Field(None, description="`recorded`: the earlier run's directory.")


class Derived(Model):
    """An algorithm made from another one, with some of its settings changed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$")] = Field(
        description="What it is called in records and figures."
    )
    from_: str = Field(alias="from", description="The algorithm to start from.")
    selector: str | None = Field(None, description="Which elements are sent.")
    selector_options: dict[str, Any] = Field({}, description="Options of the selector to change.")
    density: Fraction | None = Field(None, description="Share of elements sent, if it is fixed.")
    values: str | None = Field(None, description="How each value is written on the way up.")
    values_options: dict[str, Any] = Field({}, description="Options of the value coding to change.")
    memory: str | None = Field(None, description="What becomes of elements that are not sent.")
    memory_options: dict[str, Any] = Field({}, description="Options of the memory to change.")
    down: str | None = Field(None, description="How the server writes each value of its reply.")
    down_options: dict[str, Any] = Field({}, description="Options of that value coding to change.")
    down_memory: str | None = Field(
        None, description="What becomes of what the server's replies lack of the mean."
    )
    down_density: Fraction | None = Field(
        None, description="Share of the mean's elements that the server sends, the greatest."
    )
    exchange: str | None = Field(None, description="How it travels.")
    exchange_options: dict[str, Any] = Field({}, description="Options of the exchange to change.")
    buckets: Literal["whole", "layer"] | None = Field(
        None, description="Compress the model as one vector, or every parameter by itself."
    )
    dense_below: Annotated[int, Field(ge=0)] | None = Field(
        None, description="`layer`: parameters of fewer elements are sent whole and exact."
    )
    bucket_bytes: Size | None = Field(
        None,
        description="Layers travel in buckets of so much or more, from the last to the first; 0: "
        "all in one message.",
    )
    overlap: bool | None = Field(
        None,
        description="Buckets travel while others are computed; the next step begins as they "
        "return.",
    )
    order: Literal["forward", "backward"] | None = Field(
        None, description="Which waiting bucket is sent first: needed first, or computed first."
    )
    rule: str | None = Field(
        None, description="Another controller, by its name; options of the former one are dropped."
    )
    agree: bool | None = Field(
        None,
        description="Controllers see all workers' largest delay and mean accuracy, a step later.",
    )
    controller: dict[str, Any] = Field({}, description="Options of the controller to change.")
    mean_of: str | None = Field(
        None,
        description="A finished run's directory, relative to the file: the density is fixed at "
        "that run's mean.",
    )

    @model_validator(mode="after")
    def _one_density(self) -> Self:
        others = {"density": self.density, "rule": self.rule, "controller": self.controller}
        given = [key for key, value in others.items() if value is not None and value != {}]
        if self.mean_of is not None and given:
            raise ValueError(
                f"`mean_of` says how much is sent, so that `{given[0]}` cannot stand beside it"
            )
        return self


class Sim(Model):
    """Costs of hosts that the fabric `sim` assumes; absent: as measured where all nodes share two
    processors."""

    send: Duration | None = Field(None, description="Of a processor, to hand a message over.")
    receive: Duration | None = Field(None, description="Of a processor, to take a message in.")
    compress: Duration = Field(
        Duration(0.0),
        description="Of a processor, to make one parameter, or a whole vector, sparse.",
    )
    compress_rate: Rate | None = Field(
        None, description="At which it reads the float32 that it makes sparse; absent: at once."
    )

    @model_validator(mode="after")
    def _reads(self) -> Self:
        if self.compress_rate == 0:
            raise ValueError(
                "`compress_rate` of 0 would never end; leave it out for no time at all"
            )
        return self


class Swarm(Model):
    """Needs of the fabric `swarm`; other fabrics take no notice."""

    registry: Annotated[str, Field(pattern=r"^[\w.:-]+(/[\w.-]+)*$", max_length=200)] | None = (
        Field(None, description="Where the image is pushed to; absent: every host has loaded it.")
    )
    placement: dict[Name, Annotated[str, Field(pattern=r"^[\w.-]+=[\w.-]+$")]] = Field(
        {}, description="A group's hosts, by a label of theirs (`gpu=a100`); absent: all hosts."
    )


class Scenario(Model):
    """One experiment: nodes, links and their history, a training job, and the algorithms to run."""

    name: Name = Field(description="Part of the names of run directories.")
    description: str = Field("", description="A sentence for people.")
    nodes: dict[Name, NodeGroup] = Field(description="Groups of nodes by name.")
    links: dict[Name, Link] = Field(description="`default`, then per group, then per node.")
    racks: dict[Name, Rack] = Field({}, description="Nodes that share a link, by its name.")
    events: tuple[Event, ...] = Field((), description="What happens to links and nodes, by time.")
    traffic: tuple[TrafficModel, ...] = Field((), description="Flows beside the training.")
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
    congestion: CongestionControl | None = Field(
        None, description="TCP congestion control on the data network; absent: the host's default."
    )
    sim: Sim = Field(Sim(), description="Of hosts, for the fabric `sim` alone.")
    swarm: Swarm = Field(Swarm(), description="For the fabric `swarm` alone.")
    peer_timeout: Duration = Field(
        Duration(10.0), description="How long a silent peer is waited for; longer than any outage."
    )
