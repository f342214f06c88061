"""Protocols and options of compression. A message is what three things make of a gradient:

    memory      adds what was not sent before          p = g + e
    selector    chooses which elements travel          indices, values
    values      writes each value in few bits          1 bit, 4 bits, bfloat16, …

and, at the end, the memory keeps what the message lacks: e ← p − what the receiver will read. Any
three go together; an algorithm is a row that names them. One instance of each serves one bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.compress.layout import Layout
from testbed.errors import InputError
from testbed.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Allocator = Callable[[int], Floats]
"""Gives memory for so many values, contiguous, of undefined contents."""


def fresh(count: int) -> Floats:
    """Memory of its own: a ``Room``."""
    return np.empty(count, np.float32)


@dataclass(frozen=True, slots=True)
class Selection:
    """How a selector came to its choice, for the step's record."""

    passes: float
    """Full passes over the vector that it took, statistics included; a pass over a tenth counts
    0.1."""
    threshold: float | None = None
    """Least magnitude that was sent, where it was chosen by one."""
    ties: int = 0
    """Elements of exactly the threshold's magnitude beyond the first: no threshold can part
    them."""


@dataclass(frozen=True, slots=True)
class Sparse:
    """Part of a flat vector: ``indices`` int64 ascending (m,), ``values`` float32 (m,), length
    ``size``.

    ``indices`` None: dense, ``values`` has shape (size,). ``seed``: the indices are those that
    ``seeded.indices(size, count, seed)`` gives, so that the seed can travel in their place.
    """

    size: int
    indices: Tensor | None
    values: Tensor
    seed: int | None = None
    how: Selection | None = None

    @property
    def count(self) -> int:
        """Elements that are sent."""
        return int(self.values.numel())


@dataclass(frozen=True, slots=True)
class AccumulatedGradient:
    """p: the vector to compress, with what the pass that made it saw on the way.

    ``flat`` float32 (n,), contiguous, finite; not to be written to.
    """

    flat: Tensor
    sum_abs: float
    """Σ|p|, summed in float64."""
    max_abs: float


class Selector(Protocol):
    """Chooses which elements of one bucket travel.

    A class whose selectors take no density says so by ``takes_density = False``.
    """

    def __init__(self, **options: Any) -> None:
        """Raises InputError for options that are out of range, TypeError for those it does not
        have."""
        ...

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """At least one element of a vector that has any, if it takes a ``density`` (in (0, 1]).

        What is returned may view buffers that the next call reuses.
        """
        ...

    def state(self) -> dict[str, float]:
        """Return what it learnt from earlier steps (a threshold), for a checkpoint; may be
        empty."""
        ...

    def load(self, state: Mapping[str, float]) -> None:
        """Restore what ``state`` returned."""
        ...


class Values(Protocol):
    """How the values of one bucket's messages are written."""

    code: ClassVar[int]
    """Its number on the wire, 0 to 255; ours are below 128."""
    keeps_zero: ClassVar[bool]
    """True if 0 is read as 0, so that elements that were not chosen can be sent among the
    others."""

    def __init__(self, layout: Layout, **options: Any) -> None:
        """For buckets of that layout. Raises InputError and TypeError as a selector's class
        does."""
        ...

    def section_bytes(self, count: int) -> int:
        """Exact length of the section for ``count`` values, whatever they are.

        Raises InputError for a part of the bucket where only whole gradients can be written.
        """
        ...

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """Fill ``section`` (all of its bytes) with ``values`` (m,); returns what will be read from
        it.

        ``values`` itself is returned where every value is kept exactly; else a buffer that the next
        call reuses. ``values`` is not changed.
        """
        ...

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """``count`` values; everything that is needed stands in ``section``.

        Any bytes may be given. Raises WireError unless they are exactly what ``write`` makes for so
        many values; allocates no more than a small multiple of ``section`` and what ``room`` gives,
        which is not asked before ``section`` is known to be long enough. The result may view
        ``section``.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return what is carried from step to step (arrays and numbers), for a checkpoint; may be
        empty."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        ...


class Memory(Protocol):
    """Memory of what one bucket's messages left out."""

    def __init__(self, layout: Layout, **options: Any) -> None:
        """For buckets of that layout. Raises InputError and TypeError as a selector's class
        does."""
        ...

    def compensate(self, flat: Tensor) -> AccumulatedGradient:
        """The vector to compress in place of ``flat`` (float32 (n,), contiguous), which stays as it
        is.

        Nothing is kept yet: where the result is not finite, the call can be forgotten.
        """
        ...

    def update(self, given: AccumulatedGradient, sent: Sparse) -> None:
        """Keep what ``sent``, as its receiver reads it, lacks of ``given``."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what is kept, keyed by the names of the layout's parts (copies of the shape of
        each part).

        Keys ``<name>`` or, where there are several vectors, ``<name>/<vector>``.
        """
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over, of what ``state`` of any layout returned, what belongs to parts of this
        one."""
        ...


class Stateless:
    """For selectors and values that carry nothing from step to step."""

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


SelectorFactory = type[Selector]
ValuesFactory = type[Values]
MemoryFactory = type[Memory]

selectors: Registry[SelectorFactory] = Registry("selector", "narrows.compressors")
codings: Registry[ValuesFactory] = Registry("value coding", "narrows.values")
memories: Registry[MemoryFactory] = Registry("memory", "narrows.memories")


def takes_density(selector: SelectorFactory) -> bool:
    """Return whether a density says how much ``selector`` sends."""
    return bool(getattr(selector, "takes_density", True))


def needs_all(coding: ValuesFactory, **options: Any) -> bool:
    """Return whether ``coding`` writes whole gradients only."""
    try:
        coding(Layout.whole("gradient", 2), **options).section_bytes(1)
    except InputError:
        return True
    return False


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecipeChoice:
    """A registered name and what its class is made with."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the buckets of one worker are compressed."""

    selector: RecipeChoice = RecipeChoice("dense")
    values: RecipeChoice = RecipeChoice("fp32")
    memory: RecipeChoice = RecipeChoice("none")
    layers: bool = False
    """Every parameter by itself, with a density, thresholds and scales of its own."""
    dense_below: int = 0
    """With ``layers``: parameters of fewer elements are sent whole and exact."""

    def for_part(self, size: int) -> Recipe:
        """With ``layers``: what a parameter of ``size`` elements is compressed with.

        A small one keeps its memory: what a checkpoint of another bucketing holds for it is then
        sent.
        """
        if size >= self.dense_below:
            return self
        return replace(self, selector=RecipeChoice("dense"), values=RecipeChoice("fp32"))

    def check(self) -> None:
        """Raise InputError unless every part exists and takes its options."""
        layout = Layout.whole("gradient", 1)
        self.make_selector()
        self.make_values(layout)
        self.make_memory(layout)

    def make_selector(self) -> Selector:
        """A selector for one bucket."""
        return _made("selector", selectors.get(self.selector.name), self.selector)

    def make_values(self, layout: Layout) -> Values:
        """A value coding for one bucket."""
        return _made("value coding", codings.get(self.values.name), self.values, layout)

    def make_memory(self, layout: Layout) -> Memory:
        """A memory for one bucket."""
        return _made("memory", memories.get(self.memory.name), self.memory, layout)


def _made(noun: str, factory: Callable[..., T], choice: RecipeChoice, *given: Layout) -> T:
    """Return what ``factory`` makes. Raises InputError, with the options there are, for others."""
    asked = signature(factory)
    try:
        asked.bind(*given, **choice.options)
        return factory(*given, **choice.options)
    except (TypeError, ValueError, OverflowError) as error:  # an option it does not have, or lacks,
        # or one of another type
        raise InputError(
            f"{noun} {choice.name!r}: {error}",
            hint=_options(list(asked.parameters.values())[len(given) :]),
        ) from error


def _options(parameters: list[Parameter]) -> str:
    """Return a text with the options of a class and their defaults."""
    if not parameters:
        return "It has no options"
    defaults = {p.name: "needed" if p.default is p.empty else p.default for p in parameters}
    known = ", ".join(f"{name} ({default})" for name, default in defaults.items())
    return f"Options and their defaults: {known}"


def whole_number(name: str, value: object, least: int, most: int = 1_000_000_000) -> int:
    """Raises InputError unless it is an integer in [``least``, ``most``]."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name} {value!r} is not a whole number from {least} to {most}")
    return value


def yes_or_no(name: str, value: object) -> bool:
    """Raises InputError unless it is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} {value!r} is neither true nor false")
    return value


Kind = TypeVar("Kind", bound=np.generic)


class BufferPool:
    """Arrays kept between calls, by name; grown when needed, never shrunk.

    A caller that keeps one gets results that live in it, and are void at its next use.
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def array(self, name: str, count: int, kind: type[Kind]) -> NDArray[Kind]:
        """``count`` elements of ``kind``; their contents are undefined."""
        held = self._held.get(name)
        if held is None or held.size < count:
            held = self._held[name] = np.empty(count + count // 8, kind)
        return held[:count]

    def room(self, name: str) -> Allocator:
        """``array`` of float32, for whoever knows how many."""
        return lambda count: self.array(name, count, np.float32)


class PayloadBuffer:
    """Grows when needed. What was written before is void as soon as the next payload is begun."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.scratch = BufferPool()

    def take(self, length: int) -> memoryview:
        """``length`` bytes of undefined contents."""
        if len(self._held) < length:
            self._held = bytearray(length + length // 8)
        return memoryview(self._held)[:length]


def as_bytes(view: memoryview) -> Bytes:
    """The same bytes as an array, without a copy."""
    return np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)
