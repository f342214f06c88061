"""Base classes of compression. A message is what three things make of a gradient:

    Memory.accumulate   adds what was not sent before       p = g + e, an ``AccumulatedGradient``
    Selector.select     chooses which elements travel       indices and values, a ``Sparse``
    Values.write        writes each value in few bits       1 bit, 4 bits, bfloat16, …
    Memory.update       keeps what the message lacks        e ← p − what the receiver will read

``compressor.Bucket`` makes these calls, the first as ``accumulating``. Any three go together; an
algorithm is a row that names them. One instance of each serves one bucket. New ones:
docs/how-to/adding-an-algorithm.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from testbed.compress.kernels.base import Fetching
from testbed.compress.kernels.compilation import as_float32
from testbed.compress.layout import Layout
from testbed.errors import InputError
from testbed.registry import Configured, Options, Registry

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Options", "Recipe", "RecipeChoice", "codings", "memories", "selectors"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Allocator = Callable[[int], Floats]
"""Gives memory for so many values, contiguous, of undefined contents."""


def allocate(count: int) -> Floats:
    """Return newly allocated memory: the default ``Allocator``."""
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
    ``compress.indices.indices(size, count, seed)`` gives: the seed can travel in their place.
    """

    size: int
    indices: Tensor | None
    values: Tensor
    seed: int | None = None
    selection: Selection | None = None

    @property
    def count(self) -> int:
        """Elements that are sent."""
        return int(self.values.numel())


@dataclass(frozen=True, slots=True)
class AccumulatedGradient:
    """p: the vector to compress, with statistics from the pass that computed it.

    ``flat`` float32 (n,), contiguous, finite; not to be written to.
    """

    flat: Tensor
    sum_abs: float
    """Σ|p|, summed in float64."""
    max_abs: float


Given = TypeVar("Given", bound=Options)
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


def _positive(value: float) -> float:
    if not 0.0 < as_float32(value) < float("inf"):
        raise ValueError("it is not a positive float32")
    return value


PositiveFloat32 = Annotated[float, AfterValidator(_positive)]


class Selector(Configured[Given], ABC):
    """Chooses which elements of one bucket travel."""

    noun = "selector"
    takes_density: ClassVar[bool] = True
    """False where a density does not say how much is sent."""

    def __init__(self, **options: Any) -> None:
        """Raises InputError for options that are unknown or out of range."""
        self.configure(options)

    @abstractmethod
    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """At least one element of a vector that has any, if it takes a ``density`` (in (0, 1]).

        The result may view buffers that the next call reuses.
        """

    @property
    def alters(self) -> bool:
        """Return whether values that are sent may be others than those of the vector."""
        return False

    @property
    def queues(self) -> bool:
        """Return whether ``selecting`` can be used: nothing is drawn, so that the order of buckets
        is free."""
        return False

    def selecting(self, given: AccumulatedGradient, density: float) -> Fetching[Sparse]:
        """The choice of ``select``, of a device's vector, on the host: other buckets' elements can
        be waited for too."""
        raise NotImplementedError


class Values(Configured[Given], ABC):
    """How the values of one bucket's messages are written."""

    noun = "value coding"
    code: ClassVar[int]
    """Its number on the wire, 0 to 255; ours are below 128."""
    keeps_zero: ClassVar[bool] = True
    """True if 0 is read as 0: elements that were not chosen can then be sent among the others."""

    def __init__(self, layout: Layout, **options: Any) -> None:
        """For buckets of that layout. Raises InputError as a selector does."""
        del layout
        self.configure(options)
        self._scratch = BufferPool()

    @abstractmethod
    def section_bytes(self, count: int) -> int:
        """Exact length of the section for ``count`` values, whatever they are; the greatest one,
        where ``written_bytes`` says how much of it was written.

        Raises InputError for a part of the bucket where only whole gradients can be written.
        """

    @abstractmethod
    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """Fill ``section`` (all of its bytes) with ``values`` (m,); returns what will be read from
        it.

        ``values`` itself is returned where every value is kept exactly; else a buffer that the next
        call reuses. ``values`` is not changed.
        """

    def written_bytes(self, section: Bytes) -> int:
        """Length of what ``write`` wrote last into ``section``: it begins there, and the rest is
        not sent."""
        return section.size

    @classmethod
    @abstractmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """``count`` values; everything that is needed stands in ``section``.

        Any bytes may be given. Raises WireError unless they are exactly what ``write`` makes for so
        many values; allocates no more than a small multiple of ``section`` and what ``room`` gives,
        which is not called before ``section`` is known to be long enough. The result may view
        ``section``.
        """


class Memory(Configured[Given], ABC):
    """Memory of what one bucket's messages left out."""

    noun = "memory"

    def __init__(self, layout: Layout, **options: Any) -> None:
        """For buckets of that layout. Raises InputError as a selector does."""
        self.configure(options)
        self._layout = layout

    @abstractmethod
    def accumulate(self, flat: Tensor) -> AccumulatedGradient:
        """The vector to compress in place of ``flat`` (float32 (n,), contiguous), which stays as it
        is.

        Nothing is kept yet: where the result is not finite, the call can be forgotten.
        """

    def accumulating(self, flat: Tensor) -> Fetching[AccumulatedGradient]:
        """``accumulate``, for whose statistics those of other buckets can be waited for too. A
        memory that does not say how waits by itself."""
        yield from ()
        return self.accumulate(flat)

    @abstractmethod
    def update(self, given: AccumulatedGradient, sent: Sparse) -> None:
        """Keep what ``sent``, as its receiver reads it, lacks of ``given``."""

    def state(self) -> dict[str, Tensor]:
        """Return what is kept, keyed by the names of the layout's parts (copies of the shape of
        each part).

        Keys ``<name>`` or, where there are several vectors, ``<name>/<vector>``.
        """
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over, of what ``state`` of any layout returned, what belongs to parts of this
        one: zeros for parts that it does not have. Raises InputError for one of another size."""


selectors: Registry[type[Selector[Any]]] = Registry("selector", "narrows.compressors")
codings: Registry[type[Values[Any]]] = Registry("value coding", "narrows.values")
memories: Registry[type[Memory[Any]]] = Registry("memory", "narrows.memories")


_FREE = "`code` of a package's own coding is a number from 128 to 255 that no other has"


def codings_by_code() -> dict[int, type[Values[Any]]]:
    """All value codings by their numbers. Raises InputError where two have the same, or one is no
    byte."""
    by_code: dict[int, type[Values[Any]]] = {}
    names: dict[int, str] = {}
    for name in codings:
        coding = codings.get(name)
        code = getattr(coding, "code", None)
        if not isinstance(code, int) or not 0 <= code < 256:
            raise InputError(f"value coding {name!r} cannot have the number {code}", hint=_FREE)
        if code in by_code:
            raise InputError(
                f"value codings {names[code]!r} and {name!r} cannot both have the number {code}",
                hint=_FREE,
            )
        by_code[code], names[code] = coding, name
    return by_code


def needs_all(coding: type[Values[Any]], **options: Any) -> bool:
    """Return whether ``coding`` writes whole gradients only."""
    try:
        coding(Layout.whole("gradient", 2), **options).section_bytes(1)
    except InputError:
        return True
    return False


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
        """Raise InputError unless every part exists and takes its options, and a message says which
        value coding it has."""
        layout = Layout.whole("gradient", 1)
        self.make_selector()
        self.make_values(layout)
        self.make_memory(layout)
        codings_by_code()

    def make_selector(self) -> Selector[Any]:
        """A selector for one bucket."""
        return selectors.get(self.selector.name)(**self.selector.options)

    def make_values(self, layout: Layout) -> Values[Any]:
        """A value coding for one bucket."""
        return codings.get(self.values.name)(layout, **self.values.options)

    def make_memory(self, layout: Layout) -> Memory[Any]:
        """A memory for one bucket."""
        return memories.get(self.memory.name)(layout, **self.memory.options)


Kind = TypeVar("Kind", bound=np.generic)


class BufferPool:
    """Arrays kept between calls, by name; grown when needed, never shrunk.

    A caller that keeps one gets results that live in it, and are void at its next use.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, count: int, kind: type[Kind]) -> NDArray[Kind]:
        """``count`` elements of ``kind``; their contents are undefined."""
        array = self._arrays.get(name)
        if array is None or array.size < count:
            array = self._arrays[name] = np.empty(count + count // 8, kind)
        return array[:count]

    def room(self, name: str) -> Allocator:
        """``array`` of float32, for whoever knows how many."""
        return lambda count: self.array(name, count, np.float32)


class PayloadBuffer:
    """Grows when needed. What was written before is void as soon as the next payload is begun."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.scratch = BufferPool()

    def take(self, length: int) -> memoryview:
        """``length`` bytes of undefined contents."""
        if len(self._bytes) < length:
            self._bytes = bytearray(length + length // 8)
        return memoryview(self._bytes)[:length]


def as_bytes(view: memoryview) -> Bytes:
    """The same bytes as an array, without a copy."""
    return np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)
