"""What rules for every layer have in common: they watch buckets, decide now and then, and keep a density by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import fsum
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from testbed.control.base import Observation, Watched
from testbed.control.curves import Curves
from testbed.control.options import Options, read_options
from testbed.control.way import Known, Way


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
    """One agent, for one worker; without randomness. A subclass has a name, a model of options, and a rule.

    One that also watches curves sees five of them, or a few less, between two decisions.
    """

    name: ClassVar[str]
    model: type[Given]
    watches: frozenset[Watched] = frozenset({"buckets"})

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options(self.name, self.model, options)
        self.curves_every = max(1, self.options.every // 5)
        self._way, self._curves, self._taken = Way(self.name), Curves(self.name), 0
        self._elements: dict[str, float] = {}
        self._chosen: dict[str, float] = {}

    @property
    @abstractmethod
    def first(self) -> float:
        """Density before the first decision, and of layers that are new since the last."""

    @abstractmethod
    def _decided(self, known: Known) -> dict[str, float]:
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
        """Take in a step; some are followed by a decision. Raises ExperimentError without ``buckets``."""
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
