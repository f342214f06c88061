"""Accordion (Agarwal et al., MLSys 2021): a layer is sent nearly whole while its gradient's norm is
changing.

    k_high  if |prev − curr| / prev > 0.5, or the learning rate was just reduced, or there is no
            check yet
    k_low   else

for every layer by itself. curr: root mean square of its gradient's norm over the epoch that has
just ended; prev: the same at the previous check. Checks follow epochs 10, 20, 30, …; the first
compares with the first epoch, and up to it everything is at k_high. Choices of ours where the rule
is silent:

* A controller hears that an epoch ended with the first step of the next one: that step still has
  the old densities.
* The learning rate was just reduced: that of the epoch that now begins is below what it was at the
  previous check. It cannot be told where observations have no ``learning_rate``; norms alone decide
  then.
* prev = 0 and curr = 0 is no change; prev = 0 alone is one. A layer that is new at a check is at
  k_high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, isfinite, sqrt
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from testbed.control.base import Density, LayerController, Observation
from testbed.registry import Options


class AccordionOptions(Options):
    """Options of ``accordion``."""

    k_high: Density = Field(0.99, description="Density of a layer that changes.")
    k_low: Density = Field(0.1, description="Density of a layer that does not.")
    threshold: Annotated[float, Field(ge=0.0)] = Field(
        0.5, description="Relative change of the gradient's norm above which a layer changes."
    )
    every_epochs: Annotated[int, Field(ge=1, le=100_000)] = Field(
        10, description="Epochs between two checks."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.k_low > self.k_high:
            raise ValueError(f"k_low {self.k_low} is above k_high {self.k_high}")
        return self


class Accordion(LayerController[AccordionOptions]):
    """One for each worker, with a density for every layer; without randomness."""

    name, model = "accordion", AccordionOptions
    watches = frozenset({"layers"})
    carried = {
        "epoch": "_epoch",
        "ended": "_ended",
        "steps": "_steps",
        "lengths": "_lengths",
        "elements": "_elements",
        "previous": "_previous",
        "rate": "_rate",
        "low": "_low",
    }

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._epoch: int | None = None
        self._ended = self._steps = 0
        """Epochs that have ended; steps of the one that has not."""
        self._lengths: dict[str, float] = {}
        """√Σ norm² over these steps, by layer."""
        self._previous: dict[str, float] = {}
        self._rate: float | None = None
        """Norms and learning rate of the last check."""
        self._low: set[str] = set()
        """Layers at k_low."""

    @property
    def first(self) -> float:
        """k_high."""
        return self.options.k_high

    def densities(self, names: Sequence[str]) -> list[float]:
        """For the coming step: k_high or k_low for each; k_high for layers that were never seen."""
        options = self.options
        return [options.k_low if name in self._low else options.k_high for name in names]

    def observe(self, observed: Observation) -> None:
        """Take in the norms of a step; the first step of an epoch ends the one before."""
        if not observed.layers:
            raise self.fail(observed, " has no `layers`: norms by parameter were not watched")
        wrong = [name for name, (_, norm) in observed.layers.items() if not isfinite(norm)]
        if wrong:
            raise self.fail(observed, f": the gradient's norm of {wrong[0]!r} is not finite")
        if self._epoch not in (None, observed.epoch):
            self._end_epoch(observed.learning_rate)
        self._epoch = observed.epoch
        self._steps += 1
        for name, (elements, norm) in observed.layers.items():
            self._elements[name] = elements
            self._lengths[name] = hypot(self._lengths.get(name, 0.0), norm)

    def _end_epoch(self, rate: float | None) -> None:
        """``rate``: the learning rate of the epoch that begins."""
        self._ended += 1
        norms = {name: length / sqrt(self._steps) for name, length in self._lengths.items()}
        if self._previous and self._ended % self.options.every_epochs == 0:
            reduced = rate is not None and self._rate is not None and rate < self._rate
            self._low = set() if reduced else self._steady(norms)
            self._previous, self._rate = norms, rate
        elif not self._previous:
            self._previous, self._rate = norms, rate
        self._lengths, self._steps = {}, 0

    def _steady(self, norms: Mapping[str, float]) -> set[str]:
        """Layers whose norm has hardly changed since the previous check."""
        threshold, previous = self.options.threshold, self._previous
        return {
            name
            for name, norm in norms.items()
            if name in previous and abs(previous[name] - norm) <= threshold * previous[name]
        }
