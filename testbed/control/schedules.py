"""Densities that follow time alone: a schedule over steps, DGC's warm-up over epochs, and a script.

    schedule     linear: k_i = from + (to − from)·i/steps; exponential: k_i = from·(to/from)^(i/steps); then ``to``
    dgc-warmup   a density for every epoch; the last one stays (Lin et al., Deep Gradient Compression, section 3.3)
    script       a density for every step; the last one stays

Steps are counted from 0, as they are taken in. An epoch is counted from the first that is seen. A controller hears of
an epoch after its first step, so that this step still has the density of the epoch before.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.control.base import Observation
from testbed.control.options import Density, Options, read_options

Densities = Annotated[list[Density], Field(min_length=1)]


class _Counting:
    """Steps are all that is seen."""

    _step = 0

    def observe(self, seen: Observation) -> None:
        """Count it."""
        del seen
        self._step += 1

    def state(self) -> dict[str, Any]:
        """Steps taken in."""
        return {"step": self._step}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the options must be the same."""
        self._step = int(state["step"])


class ScheduleOptions(Options):
    """Options of ``schedule``."""

    form: Literal["linear", "exponential"] = Field(
        "linear", description="linear: equal differences. exponential: equal ratios."
    )
    from_: Density = Field(0.29, alias="from", description="Density of the first step.")
    to: Density = Field(0.001, description="Density after all steps.")
    steps: Annotated[int, Field(ge=1)] = Field(200, description="Steps from the one to the other.")


class Schedule(_Counting):
    """From one density to another in so many steps."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options("schedule", ScheduleOptions, options)

    def density(self) -> float:
        """k_i, between ``from`` and ``to``."""
        first, last = self.options.from_, self.options.to
        share = self._step / self.options.steps
        if share >= 1:
            return last
        if self.options.form == "linear":
            return first + (last - first) * share
        return float(first * (last / first) ** share)


class DgcWarmupOptions(Options):
    """Options of ``dgc-warmup``."""

    densities: Densities = Field(
        [0.25, 0.0625, 0.015625, 0.004, 0.001],
        description="Of every epoch; that of the last stays.",
    )


class DgcWarmup:
    """A density for every epoch."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options("dgc-warmup", DgcWarmupOptions, options)
        self._first: int | None = None
        self._epochs = 0
        """Before the one that was last heard of."""

    def density(self) -> float:
        """That of the epoch last heard of."""
        densities = self.options.densities
        return densities[min(self._epochs, len(densities) - 1)]

    def observe(self, seen: Observation) -> None:
        """Hear of the epoch."""
        if self._first is None:
            self._first = seen.epoch
        self._epochs = max(self._epochs, seen.epoch - self._first)

    def state(self) -> dict[str, Any]:
        """The first epoch, and how many there have been since."""
        return {"first": self._first, "epochs": self._epochs}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the options must be the same."""
        self._first, self._epochs = state["first"], int(state["epochs"])


class ScriptOptions(Options):
    """Options of ``script``."""

    densities: Densities = Field([1.0], description="Of every step; that of the last stays.")


class Script(_Counting):
    """A density for every step."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options("script", ScriptOptions, options)

    def density(self) -> float:
        """The next one of the list."""
        densities = self.options.densities
        return densities[min(self._step, len(densities) - 1)]
