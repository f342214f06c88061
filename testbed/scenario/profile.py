"""How long each layer of a model computes, forward and backward, in seconds of model time; its
file; and what a scenario names of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from testbed.errors import InputError
from testbed.scenario.diagnostics import Problem
from testbed.scenario.model import Scenario, Train
from testbed.units import Duration
from testbed.user_files import data_of

Source = Literal["constant", "measured", "estimated"]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of one layer, named as ``compress.layout.Layer`` is.

    Computation between two layers counts with the first of them.
    """

    name: str
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of a whole model's layers, in the order of its forward pass.

    ``about``: where the times are from, for people.
    """

    layers: tuple[LayerTimes, ...]
    source: Source
    about: str = ""

    @classmethod
    def constant(cls, names: Sequence[str], pace_s: float) -> Profile:
        """All layers alike; the backward pass takes twice as long as the forward pass."""
        each = pace_s / (3 * len(names))
        layers = tuple(LayerTimes(name, each, 2 * each) for name in names)
        return cls(layers, "constant", "the same time for every layer")

    @property
    def total_s(self) -> float:
        """Seconds of one forward and one backward pass."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    def scaled(self, total_s: float) -> Profile:
        """As long as that in all, and every layer in proportion."""
        factor = total_s / self.total_s
        layers = tuple(
            LayerTimes(layer.name, layer.forward_s * factor, layer.backward_s * factor)
            for layer in self.layers
        )
        return Profile(layers, self.source, self.about)

    def of(self, names: Sequence[str]) -> Profile:
        """The same, checked. Raises InputError unless its layers are ``names``, in order."""
        own = [layer.name for layer in self.layers]
        if own == list(names):
            return self
        wrong = next((n for n in own if n not in names), None) or next(
            (n for n in names if n not in own), None
        )
        raise InputError(
            "the profile is of another model: "
            + (
                f"layer {wrong!r} is in one of them only"
                if wrong is not None
                else "its layers are in another order"
            )
        )


MAX_BYTES = 4 * 2**20
"""Larger files are refused."""
SHIPPED = Path(str(files("testbed.scenario"))) / "profiles"
_DIGITS = 6
"""Significant digits of every time that is written; more would only be noise."""

_LONGEST = 300
"""Characters of what a message quotes."""

Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FileLayer(_Strict):
    """One layer's times."""

    name: str = Field(description="The path of the module that owns its parameters.")
    parameters: Annotated[int, Field(ge=1)] | None = Field(None, description="How many it has.")
    forward_s: Seconds = Field(description="Of its forward pass.")
    backward_s: Seconds = Field(description="Of its backward pass.")


class ProfileFile(_Strict):
    """The contents of a profile file. Times are of one step, not scaled, not dilated."""

    format: Literal["narrows-profile"] = "narrows-profile"
    version: Literal[1] = 1
    source: Literal["constant", "measured", "estimated"]
    about: str = Field(description="Where the times are from, for people.")
    device: str = Field(description="What was measured, or estimated for.")
    model: str
    task: str
    width: Annotated[float, Field(gt=0)]
    batch: Annotated[int, Field(ge=1)]
    layers: Annotated[tuple[FileLayer, ...], Field(min_length=1)] = Field(
        description="In the order of the forward pass."
    )

    @model_validator(mode="after")
    def _usable(self) -> Self:
        names = [layer.name for layer in self.layers]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"layer {twice!r} is there twice")
        if not self.total_s > 0:
            raise ValueError("no layer takes any time")
        return self

    @property
    def total_s(self) -> float:
        """Seconds of one forward and one backward pass."""
        return self.profile().total_s

    def profile(self) -> Profile:
        """Its times alone."""
        layers = tuple(
            LayerTimes(layer.name, layer.forward_s, layer.backward_s) for layer in self.layers
        )
        return Profile(layers, self.source, self.about)

    def text(self) -> str:
        """As it stands in a file: a line a layer."""
        head = self.model_dump(mode="json", exclude={"layers"})
        lines = [json.dumps(layer.model_dump(exclude_none=True)) for layer in self.layers]
        body = ",\n    ".join(lines)
        return f'{json.dumps(head, indent=2)[:-2]},\n  "layers": [\n    {body}\n  ]\n}}\n'


def file_of(
    profile: Profile,
    sizes: Mapping[str, int],
    *,
    device: str,
    model: str,
    task: str,
    width: float,
    batch: int,
) -> ProfileFile:
    """``sizes``: each layer's number of parameters."""
    layers = tuple(
        FileLayer(
            name=layer.name,
            parameters=sizes.get(layer.name),
            forward_s=_rounded(layer.forward_s),
            backward_s=_rounded(layer.backward_s),
        )
        for layer in profile.layers
    )
    return ProfileFile(
        source=profile.source,
        about=profile.about,
        device=device,
        model=model,
        task=task,
        width=width,
        batch=batch,
        layers=layers,
    )


def read_profile(path: Path) -> ProfileFile:
    """Raises InputError that names the file and the field."""
    data = data_of(path, MAX_BYTES, _HINT)
    try:
        return ProfileFile.model_validate_json(data)
    except ValidationError as error:
        raise InputError(_first(error), where=str(path), hint=_HINT) from None


_HINT = "`testbed profile` writes such files"


def _first(error: ValidationError) -> str:
    """Return the first fault with its place, ``layers[3].forward_s: …``."""
    fault = error.errors(include_url=False)[0]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    where = _brief("".join(parts).removeprefix("."))
    says = _brief(fault["msg"].removeprefix("Value error, "))
    return f"{where}: {says}" if where else says


def _brief(text: str) -> str:
    """A file's own words, shortened and printable, for a message."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return short if short.isprintable() else ascii(short)


def shipped() -> dict[str, Path]:
    """The profiles that ship, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.json"))}


def find(name: str, folder: Path) -> Path:
    """The profile called ``name``, one that ships or a path. Raises InputError."""
    if name in (known := shipped()):
        return known[name]
    if name.endswith(".json") or "/" in name:
        return folder / name
    listed = ", ".join(("measured", "constant", *known))
    raise InputError(
        f"unknown profile {name!r}", hint=f"Known: {listed}; or give the path of a .json file"
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")


_PLACE = ("train", "profile")
FILELESS = (None, "measured", "constant")
"""Values of ``train.profile`` that name no file, and so no time."""


def profiled(
    scenario: Scenario, folder: Path
) -> tuple[Scenario, ProfileFile | None, list[Problem]]:
    """``scenario`` with its pace, the profile's file if it has one, and what is wrong with it.

    ``folder``: the scenario file's, where a path starts.
    """
    train = scenario.train
    if train.profile == "constant" and train.pace is None:
        wrong = "`constant` shares a time among the layers: give it, `pace: 200 ms`"
        return scenario, None, [Problem(_PLACE, wrong)]
    if train.profile is None or train.profile in FILELESS:
        return scenario, None, []
    try:
        profile = read_profile(find(train.profile, folder))
    except InputError as error:
        return scenario, None, [Problem(_PLACE, str(error))]
    problems = [Problem(_PLACE, what) for what in _others(train, profile)]
    if train.pace is None:
        train = train.model_copy(update={"pace": Duration(round(profile.total_s, 9))})
        scenario = scenario.model_copy(update={"train": train})
    return scenario, profile, problems


def _others(train: Train, profile: ProfileFile) -> Iterator[str]:
    """Yield how the model and sizes of the profile differ from those trained.

    With a pace the profile is scaled to it, and sizes do not matter. Batch normalisation has the
    layers of group normalisation, and so its profiles.
    """
    if train.model.removesuffix("-bn") != profile.model.removesuffix("-bn"):
        yield f"it is of the model {profile.model!r}, and {train.model!r} is trained"
    if train.pace is not None:
        return
    for key in ("task", "width", "batch"):
        its, ours = getattr(profile, key), getattr(train, key)
        if its != ours:
            yield (
                f"its times are of {key} {its}, and {ours} is trained: measure or estimate that "
                "(`testbed profile`), or give a `pace`, to which it is scaled"
            )
