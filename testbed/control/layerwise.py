"""Common parts of rules for every layer: error curves, buckets observed, a density by name, and
communication that takes as long as it can behind computation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import fsum, isfinite, log2
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field, model_validator

from testbed.control.base import (
    LEVELS,
    Density,
    Observation,
    Share,
    Watched,
    check_initial,
    read_options,
)
from testbed.control.cost_model import CommunicationCostModel, CostEstimate
from testbed.errors import ExperimentError
from testbed.registry import Options


class Curves:
    """The mean by layer, over the curves since the last decision, of the energy left out at each of
    ``LEVELS``."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._sums: dict[str, list[float]] = {}
        self._many: dict[str, int] = {}

    def take(self, seen: Observation) -> None:
        """Take in a step's, if it has some. Raises ExperimentError for ones that are not finite."""
        for name, (energy, *shares) in seen.curves.items():
            errors = [energy * share for share in shares]
            if len(errors) != len(LEVELS) or not all(isfinite(one) and one >= 0 for one in errors):
                raise ExperimentError(
                    f"controller {self._controller!r}: step {seen.step}: the error curve of "
                    f"{name!r} is not one of {len(LEVELS)} finite levels"
                )
            before = self._sums.get(name, [0.0] * len(LEVELS))
            self._sums[name] = [old + new for old, new in zip(before, errors, strict=True)]
            self._many[name] = self._many.get(name, 0) + 1

    def means(self, names: list[str]) -> dict[str, list[float]]:
        """Energy left out at each of ``LEVELS``; then all is forgotten. Raises ExperimentError
        where one of ``names`` has none."""
        missing = next((name for name in names if name not in self._many), None)
        if missing is not None:
            raise ExperimentError(
                f"controller {self._controller!r}: there is no `curves` entry of {missing!r}: "
                "errors by density were not watched"
            )
        found = {name: [one / self._many[name] for one in self._sums[name]] for name in names}
        self._sums, self._many = {}, {}
        return found

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "sums": {name: list(sums) for name, sums in self._sums.items()},
            "many": dict(self._many),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""
        self._sums, self._many = dict(state["sums"]), dict(state["many"])


def error_at(curve: list[float], density: float) -> float:
    """Energy left out at any density in (0, 1]: linear in log k between ``LEVELS``, and below the
    last as at the last."""
    place = -2 * log2(density)
    before = min(int(place), len(LEVELS) - 1)
    after = min(before + 1, len(LEVELS) - 1)
    return curve[before] + (place - before) * (curve[after] - curve[before])


class LayeredOptions(Options):
    """When decisions are taken."""

    warm_up: Annotated[int, Field(ge=1, le=100_000)] = Field(
        20, description="Steps before the first decision."
    )
    every: Annotated[int, Field(ge=1, le=100_000)] = Field(
        50, description="Steps between two decisions."
    )


Given = TypeVar("Given", bound=LayeredOptions)


class Layered(ABC, Generic[Given]):
    """One agent, for one worker; without randomness. A subclass has a name, a model of options, and
    a rule.

    One that also watches curves sees five of them, or a few less, between two decisions.
    """

    name: ClassVar[str]
    model: type[Given]
    watches: frozenset[Watched] = frozenset({"buckets"})

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options(self.name, self.model, options)
        self.curves_every = max(1, self.options.every // 5)
        self._way, self._curves, self._taken = (
            CommunicationCostModel(self.name),
            Curves(self.name),
            0,
        )
        self._elements: dict[str, float] = {}
        self._chosen: dict[str, float] = {}

    @property
    @abstractmethod
    def first(self) -> float:
        """Density before the first decision, and of layers that are new since the last."""

    @abstractmethod
    def _decided(self, known: CostEstimate) -> dict[str, float]:
        """Densities by name, of all that was seen since the last decision."""

    def densities(self, names: Sequence[str]) -> list[float]:
        """For the coming step."""
        return [self._chosen.get(name, self.first) for name in names]

    def density(self) -> float:
        """Their mean, weighted by elements; the first density before anything was seen."""
        total = fsum(self._elements.values())
        if not total:
            return self.first
        shares = zip(self.densities([*self._elements]), self._elements.values(), strict=True)
        return min(1.0, fsum(k * many for k, many in shares) / total)

    def observe(self, seen: Observation) -> None:
        """Take in a step; some are followed by a decision. Raises ExperimentError without
        ``buckets``."""
        self._way.take(seen)
        if "curves" in self.watches:
            self._curves.take(seen)
        self._elements |= {name: part["elements"] for name, part in seen.buckets.items()}
        self._taken += 1
        after = self._taken - self.options.warm_up
        if after >= 0 and after % self.options.every == 0:
            self._chosen |= self._decided(self._way.known())

    def state(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {
            "taken": self._taken,
            "way": self._way.state(),
            "curves": self._curves.state(),
            "elements": dict(self._elements),
            "chosen": dict(self._chosen),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        self._taken = int(state["taken"])
        self._way.load(state["way"])
        self._curves.load(state["curves"])
        self._elements, self._chosen = dict(state["elements"]), dict(state["chosen"])


class HidingOptions(LayeredOptions):
    """Limits, and how long communication may take."""

    k_max: Density = Field(1.0, description="Largest density of a layer.")
    k_min: Density = Field(0.001, description="Smallest density of a layer.")
    initial_k: Density = Field(0.05, description="Density before the first decision.")
    exposed: Share = Field(
        0.25, description="Time after the computation that communication may take, as a share of T."
    )
    forward: Share = Field(
        0.0, description="Time that hides in the next forward pass on top, as a share of T."
    )
    backward: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.667,
        description="T as a share of the computation, at least, where little or nothing overlaps.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_initial(self.initial_k, self.k_min, self.k_max)
        return self


HidingGiven = TypeVar("HidingGiven", bound=HidingOptions)


class OverlapBudget(Layered[HidingGiven]):
    """Begins with ``initial_k``."""

    @property
    def first(self) -> float:
        """``initial_k``."""
        return self.options.initial_k

    def _times_s(self, known: CostEstimate) -> list[float]:
        """Return the time that each bucket and those after it may take, to the end of what hides or
        is allowed to be seen."""
        options, all_s = self.options, known.longest_s(self.options.backward)
        forward_s = options.forward * all_s if known.hides else 0.0
        more_s = forward_s + options.exposed * all_s
        return [min(all_s + forward_s, message.left_s + more_s) for message in known.messages]
