"""What may be written for a pace: a time, a distribution, or recorded times; and how it becomes a worker's own."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from testbed.scenario.link import Model
from testbed.units import Duration

Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class LogNormalPace(Model):
    """Drawn for every step and worker: ln T is normal, with the mean ln `median` and the deviation `sigma`."""

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
        "drawn", description="Where in the file a worker begins: at a place of its own, or all with the first."
    )  # fmt: skip
    at_end: Literal["loop"] = Field("loop", description="After the last: start over.")

    @property
    def key(self) -> str:
        """What a scenario's recorded times are kept by."""
        return self.file if self.column is None else f"{self.file}:{self.column}"

    def slowed(self, factor: float) -> RecordedPace:
        """So many times as long."""
        return self.model_copy(update={"scale": self.scale * factor})


_NAMED = {"lognormal": "LogNormalPace", "file": "RecordedPace"}
PACE_NAMES = tuple(_NAMED)
PACE_TAGS = frozenset({"Time", *_NAMED.values()})
"""What pydantic puts behind a pace in the place of an error."""


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
    """The pace of ``node``: its own, its group's or the general one, times its factor or its group's."""
    pace = own.get(node, own.get(group, general))
    factor = slow.get(node, slow.get(group, 1.0))
    if pace is None or factor == 1.0:
        return pace
    return Duration(pace * factor) if isinstance(pace, Duration) else pace.slowed(factor)
