"""Controllers: what they are shown after a step, what they answer, their options, and their seeds,
one per worker, derived from the run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from random import Random
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from testbed.registry import Model, Options, Registry, read

__all__ = ["Density", "Options", "Share", "check_initial", "read_options"]


@dataclass(frozen=True, slots=True)
class Observation:
    """The values that a worker knows after a step.

    Times in seconds of model time; new fields get defaults.
    """

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
    """Asked rate of the worker's own uplink at the end of the step, if the fabric tells."""
    extra: dict[str, float] = field(default_factory=dict)
    step_s: float | None = None
    """All of the step, computation and all."""
    bytes_received: int | None = None
    learning_rate: float | None = None
    """That the step was applied with."""
    held: float | None = None
    """Σ|p − sent|: what this step's message left for later ones. Watched only (``memory``)."""
    sent: float | None = None
    """Σ|sent|, likewise."""
    share_up_bits: float | None = None
    """The least, over the links to the server, of asked rate ÷ workers that share it. Watched only
    (``path``)."""
    share_down_bits: float | None = None
    """Likewise back."""
    layers: dict[str, list[float]] = field(default_factory=dict)
    """Elements and gradient norm of each vector that is compressed by itself, by name.

    Watched only (``layers``).
    """
    buckets: dict[str, dict[str, float]] = field(default_factory=dict)
    """Transfer of each vector that is compressed by itself, by name. Watched only (``buckets``).

    ``elements``; ``sent``: of them; ``bucket``: its number; ``start_s``: when its first byte was
    handed over, after the step's start; ``left_s``: computation that was left when its gradient was
    there; ``compress_s``; ``delay_s``: from the first byte handed over to holding the aggregate;
    ``send_s``: until the last byte was handed over; ``bytes_up``, ``bytes_down``: of frames.
    Parameters of one bucket share its times and bytes, and have their elements' share of
    compression.
    """
    curves: dict[str, list[float]] = field(default_factory=dict)
    """Error curves by the same names: ‖p‖², and then the share of it left out at each of
    ``LEVELS``.

    Watched only (``curves``), at every ``curves_every``-th step.
    """

    def to_json(self) -> dict[str, Any]:
        """As written into the step's record; ``Observation(**…)`` reads it back exactly."""
        return asdict(self)


LEVELS: tuple[float, ...] = tuple(2.0 ** (-number / 2) for number in range(23))
"""Densities, from 1 to 1/2048, at which error curves are told."""

Watched = Literal["memory", "layers", "path", "buckets", "curves"]
"""Values that are computed for a controller only if it asks: they cost passes over vectors, or
messages."""


class Controller(Protocol):
    """Decides the density of every step. Made by its class from options (keyword arguments) and a
    seed.

    A class says in ``watches`` what else it wants to see; without that attribute, nothing.
    ``curves_every``: steps between two error curves, from the first step on; 1 without that
    attribute.
    """

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


@runtime_checkable
class LayerController(Protocol):
    """A controller that decides for every parameter; ``density()`` is then their mean by
    elements."""

    def densities(self, names: Sequence[str]) -> list[float]:
        """For the coming step, each in (0, 1], in the order of ``names``."""
        ...


def watched(controller: Controller) -> frozenset[Watched]:
    """Return the values that ``controller`` wants to see beyond those that every step gives."""
    asked: frozenset[Watched] = getattr(controller, "watches", frozenset())
    return asked


class ControllerClass(Protocol):
    """How a controller is made: ``cls(seed=…, **options)``; unknown options raise InputError."""

    def __call__(self, *, seed: int, **options: Any) -> Controller:
        """A fresh controller."""
        ...


controllers: Registry[ControllerClass] = Registry("controller", "narrows.controllers")


Density = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of the elements to send."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability, or a weight between old and new."""


def check_initial(initial_k: float, k_min: float, k_max: float) -> None:
    """For validators: raises ValueError where the first density is outside the limits."""
    if not k_min <= initial_k <= k_max:
        raise ValueError(f"initial_k {initial_k} is outside [k_min {k_min}, k_max {k_max}]")


def read_options(controller: str, model: type[Model], given: Mapping[str, Any]) -> Model:
    """``given`` as ``model``. Raises InputError that names every wrong option and lists the known
    ones."""
    return read(f"controller {controller!r}", model, given)


def controller_seed(seed: int, rank: int) -> int:
    """Seed of the controller on worker ``rank`` in a run with ``seed``: 63 bits, unrelated between
    ranks."""
    digest = blake2b(f"controller {seed} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_state(random: Random) -> list[Any]:
    """The state of a generator as JSON values."""
    version, internal, gauss = random.getstate()
    return [version, list(internal), gauss]


def generator(state: Sequence[Any]) -> Random:
    """A generator that goes on from ``state``."""
    version, internal, gauss = state
    random = Random(0)
    random.setstate((version, tuple(internal), gauss))
    return random
