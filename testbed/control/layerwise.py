"""Common parts of rules for every layer: error curves, buckets observed, a density by name, and
communication that takes as long as it can behind computation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import isfinite, log2
from typing import Annotated, Any, TypeVar

from pydantic import Field

from testbed.control.base import (
    LEVELS,
    Density,
    DensityLimits,
    LayerController,
    Observation,
    Share,
)
from testbed.control.cost_model import CommunicationCostModel, CostEstimate
from testbed.errors import ExperimentError
from testbed.registry import Carried, Options


class Curves(Carried):
    """The mean by layer, since the last decision, of the energy left out at each of ``LEVELS``."""

    carried = {"sums": "_sums", "many": "_counts"}

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._sums: dict[str, list[float]] = {}
        self._counts: dict[str, int] = {}

    def take(self, observed: Observation) -> None:
        """Take in a step's, if it has some. Raises ExperimentError for ones that are not finite."""
        for name, (energy, *shares) in observed.curves.items():
            errors = [energy * share for share in shares]
            finite = all(isfinite(error) and error >= 0 for error in errors)
            if len(errors) != len(LEVELS) or not finite:
                raise ExperimentError(
                    f"controller {self._controller!r}: step {observed.step}: the error curve of "
                    f"{name!r} is not one of {len(LEVELS)} finite levels"
                )
            before = self._sums.get(name, [0.0] * len(LEVELS))
            self._sums[name] = [old + new for old, new in zip(before, errors, strict=True)]
            self._counts[name] = self._counts.get(name, 0) + 1

    def means(self, names: list[str]) -> dict[str, list[float]]:
        """Energy left out at each of ``LEVELS``; then all is forgotten. Raises ExperimentError
        where one of ``names`` has none."""
        missing = next((name for name in names if name not in self._counts), None)
        if missing is not None:
            raise ExperimentError(
                f"controller {self._controller!r}: there is no `curves` entry of {missing!r}: "
                "errors by density were not watched"
            )
        means = {name: [sum_ / self._counts[name] for sum_ in self._sums[name]] for name in names}
        self._sums, self._counts = {}, {}
        return means


def error_at(curve: list[float], density: float) -> float:
    """Energy left out at any density in (0, 1]: linear in log k between ``LEVELS``, and below the
    last as at the last."""
    position = -2 * log2(density)
    before = min(int(position), len(LEVELS) - 1)
    after = min(before + 1, len(LEVELS) - 1)
    return curve[before] + (position - before) * (curve[after] - curve[before])


class LayeredOptions(Options):
    """When decisions are taken."""

    warm_up: Annotated[int, Field(ge=1, le=100_000)] = Field(
        20, description="Steps before the first decision."
    )
    every: Annotated[int, Field(ge=1, le=100_000)] = Field(
        50, description="Steps between two decisions."
    )


Given = TypeVar("Given", bound=LayeredOptions)


class Layered(LayerController[Given]):
    """One for each worker; without randomness. A subclass has a name, a model of options, and
    a rule.

    One that also watches curves sees five of them, or a few less, between two decisions.
    """

    watches = frozenset({"buckets"})
    carried = {
        "taken": "_taken",
        "way": "_cost_model",
        "curves": "_curves",
        "elements": "_elements",
        "chosen": "_chosen",
    }

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self.curve_interval = max(1, self.options.every // 5)
        self._cost_model, self._curves = CommunicationCostModel(self.name), Curves(self.name)
        self._taken = 0
        self._chosen: dict[str, float] = {}

    @abstractmethod
    def _decided(self, known: CostEstimate) -> dict[str, float]:
        """Densities by name, of all that was seen since the last decision."""

    def densities(self, names: Sequence[str]) -> list[float]:
        """For the coming step."""
        return [self._chosen.get(name, self.first) for name in names]

    def observe(self, observed: Observation) -> None:
        """Take in a step; some are followed by a decision. Raises ExperimentError without
        ``buckets``."""
        self._cost_model.take(observed)
        if "curves" in self.watches:
            self._curves.take(observed)
        self._elements |= {name: part["elements"] for name, part in observed.buckets.items()}
        self._taken += 1
        after = self._taken - self.options.warm_up
        if after >= 0 and after % self.options.every == 0:
            self._chosen |= self._decided(self._cost_model.known())


class HidingOptions(LayeredOptions, DensityLimits):
    """Limits, and how long communication may take."""

    k_max: Density = Field(1.0, description="Largest density of a layer.")
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
