"""Controllers: what they are shown after a step, what they answer, their options, and their seeds,
one per worker, derived from the run's; and a controller run again on what a worker recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from math import fsum
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from testbed.errors import ExperimentError, InputError
from testbed.registry import Configured, Options, Registry


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

    Watched only (``curves``), at every ``curve_interval``-th step.
    """

    def to_json(self) -> dict[str, Any]:
        """As written into the step's record; ``Observation(**…)`` reads it back exactly."""
        return asdict(self)


LEVELS: tuple[float, ...] = tuple(2.0 ** (-number / 2) for number in range(23))
"""Densities, from 1 to 1/2048, at which error curves are told."""

Watched = Literal["memory", "layers", "path", "buckets", "curves"]
"""Values that are computed for a controller only if it asks: they cost passes over vectors, or
messages."""


Density = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of the elements to send."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability, or a weight between old and new."""


class DensityLimits(Options):
    """Limits of a density, and the one to begin with where a rule has it. Defaults are a rule's."""

    k_max: Density = Field(0.29, description="Largest density.")
    k_min: Density = Field(0.001, description="Smallest density.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min {self.k_min} is above k_max {self.k_max}")
        if not self.k_min <= self.first_k <= self.k_max:
            raise ValueError(
                f"initial_k {self.first_k} is outside [k_min {self.k_min}, k_max {self.k_max}]"
            )
        return self

    @property
    def first_k(self) -> float:
        """Density of the first step: ``initial_k``, else the largest."""
        initial: float | None = getattr(self, "initial_k", None)
        return self.k_max if initial is None else initial

    def clipped(self, k: float) -> float:
        """``k`` within the limits."""
        return min(max(k, self.k_min), self.k_max)


Given = TypeVar("Given", bound=Options)


class Controller(Configured[Given], ABC):
    """Decides the density of every step. A subclass has a name, a model of options, and a rule.

    It is pure: what it does follows from its options, its seed, and what it was shown.
    """

    noun = "controller"
    watches: frozenset[Watched] = frozenset()
    """Further values that it wants to see."""
    curve_interval = 1
    """Steps between two error curves, from the first step on."""
    carried: ClassVar[dict[str, str]] = {"k": "_k"}

    def __init__(self, *, seed: int, **options: Any) -> None:
        """Raises InputError for options that are unknown or wrong. Most rules need no ``seed``."""
        del seed
        self.configure(options)
        if isinstance(self.options, DensityLimits):
            self._k = self.options.first_k

    def density(self) -> float:
        """Density for the coming step, in (0, 1]."""
        return self._k

    @abstractmethod
    def observe(self, observed: Observation) -> None:
        """Take in a finished step; may change ``density()``."""

    def fail(self, observed: Observation, problem: str) -> ExperimentError:
        """Return the error that says what is wrong with a step's observation."""
        return ExperimentError(f"controller {self.name!r}: step {observed.step}{problem}")


class LayerController(Controller[Given]):
    """A controller that decides for every parameter."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._elements: dict[str, float] = {}
        """Elements of every parameter that was observed."""

    @property
    @abstractmethod
    def first(self) -> float:
        """Density of parameters that were never seen, and before the first decision."""

    @abstractmethod
    def densities(self, names: Sequence[str]) -> list[float]:
        """For the coming step, each in (0, 1], in the order of ``names``."""

    def density(self) -> float:
        """Their mean, weighted by elements; the first density before anything was seen."""
        total = fsum(self._elements.values())
        if not total:
            return self.first
        shares = zip(self.densities([*self._elements]), self._elements.values(), strict=True)
        return min(1.0, fsum(k * count for k, count in shares) / total)


controllers: Registry[type[Controller[Any]]] = Registry("controller", "narrows.controllers")


def controller_seed(seed: int, rank: int) -> int:
    """Seed of the controller on worker ``rank`` in a run with ``seed``: 63 bits, unrelated."""
    digest = blake2b(f"controller {seed} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class ReplayedDecisions:
    """Recorded against replayed densities of one worker, step by step."""

    steps: tuple[int, ...]
    recorded: tuple[float, ...]
    replayed: tuple[float, ...]

    @property
    def mismatches(self) -> tuple[int, ...]:
        """Steps whose densities are not equal to the last bit."""
        rows = zip(self.steps, self.recorded, self.replayed, strict=True)
        return tuple(step for step, was, now in rows if was != now)

    @property
    def exact(self) -> bool:
        """Every step agrees, and there is at least one."""
        return bool(self.steps) and not self.mismatches


def replay_densities(
    records: Iterable[Mapping[str, Any]], make: Callable[[], Controller[Any]]
) -> list[float]:
    """Densities that a fresh controller asks for, one per ``step`` record of one worker, in order.

    It is shown the recorded observations. Given a controller other than the recorded one this is an
    open loop: what it observes are the consequences of another one's densities.
    Raises InputError for a record whose observation cannot be read.
    """
    controller = make()
    densities = []
    for record in records:
        if record.get("kind") != "step":
            continue
        densities.append(controller.density())
        if (observed := record.get("controller")) is not None:
            controller.observe(_observation(record, observed))
    return densities


def replay_decisions(
    records: Iterable[Mapping[str, Any]], make: Callable[[], Controller[Any]]
) -> ReplayedDecisions:
    """``replay_densities`` beside the recorded ones. Raises InputError for records without them."""
    steps = [record for record in records if record.get("kind") == "step"]
    try:
        numbers = tuple(int(record["step"]) for record in steps)
        recorded = tuple(float(record["density"]) for record in steps)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a step record has no usable step or density: {error!r}") from error
    return ReplayedDecisions(numbers, recorded, tuple(replay_densities(steps, make)))


def _observation(record: Mapping[str, Any], observed: Mapping[str, Any]) -> Observation:
    try:
        return Observation(**observed)
    except TypeError as error:
        raise InputError(
            f"step {record.get('step')}: the controller's observation cannot be read: {error}"
        ) from error
