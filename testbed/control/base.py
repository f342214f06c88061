"""The seam of control: an observation after every step, a density for the next one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from testbed.registry import Registry


@dataclass(frozen=True, slots=True)
class Observation:
    """What a worker knows after a step. Times in seconds of model time; new fields get defaults."""

    step: int
    epoch: int
    delay_s: float
    """Communication delay: start of sending the compressed gradient to holding the aggregate."""
    accuracy: float
    """Training accuracy of the step's mini-batch, 0-1."""
    bytes_sent: int
    density: float
    """Density requested for the step."""
    link_rate_bits: float | None = None
    extra: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As written into the step's record; ``Observation(**…)`` reads it back exactly."""
        return asdict(self)


class Controller(Protocol):
    """Decides the density of every step. Made by its class from options (keyword arguments) and a seed."""

    def density(self) -> float:
        """Density for the coming step, in (0, 1]."""
        ...

    def observe(self, seen: Observation) -> None:
        """Take in a finished step; may change ``density()``."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything needed to go on from here, as JSON values."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state()`` returned."""
        ...


class ControllerClass(Protocol):
    """How a controller is made: ``cls(seed=…, **options)``; unknown options raise InputError."""

    def __call__(self, *, seed: int, **options: Any) -> Controller:
        """A fresh controller."""
        ...


controllers: Registry[ControllerClass] = Registry("controller", "narrows.controllers")
