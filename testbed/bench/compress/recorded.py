"""Vectors to select from: drawn from a Laplace distribution, or recorded from a training in this process.

Every turn of a measurement has its own vector, as every step of a training has, so that nothing can be
learnt from one turn that a training would not show as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import exp
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch

from testbed.bench.compress.trained import Training, steps
from testbed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SOURCES = ("laplace", "recorded")
_SCALE, _DRIFT = 1e-3, 0.1
"""Mean magnitude of the first vector drawn, and by how much (standard deviation, as a factor of e) every
later one's differs."""
_WIDTHS = (1.0, 0.5, 0.25, 0.125)
_WARM = 10
"""Steps of a training before its vectors are taken."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Float32 (elements,), one for each turn, and a sentence that says where they come from."""

    flats: list[Tensor]
    about: str


def vectors(
    source: str, elements: int, turns: int, density: float, say: Callable[[str], None]
) -> Vectors:
    """``turns`` of them. Raises InputError for an unknown source."""
    if source == "laplace":
        return drawn(elements, turns)
    if source == "recorded":
        return recorded(elements, turns, density, say)
    raise InputError(
        f"unknown source {source!r}", where="--source", hint=f"Known: {', '.join(SOURCES)}"
    )


def drawn(elements: int, turns: int, seed: int = 1) -> Vectors:
    """Independent Laplace variables; the scale changes a little from turn to turn."""
    scales = Random(seed)
    flats = []
    for turn in range(turns):
        random = np.random.default_rng((seed, turn))
        magnitudes = random.standard_exponential(elements, dtype=np.float32)
        magnitudes *= np.float32(_SCALE * exp(scales.gauss(0.0, _DRIFT)))
        magnitudes.view(np.uint32)[:] |= _signs(random, elements)
        flats.append(torch.from_numpy(magnitudes))
    return Vectors(flats, f"drawn from Laplace(0, about {_SCALE:g}), every turn anew")


def recorded(
    elements: int,
    turns: int,
    density: float,
    say: Callable[[str], None],
    training: Training | None = None,
) -> Vectors:
    """p = g + e of consecutive steps of a training whose gradients are compressed by top-k at ``density``.

    Without ``training``: ResNet-18 on ``synthetic``, as wide as fits. A model shorter than ``elements``
    gives several steps' vectors one after the other, and every turn begins one step later than the one
    before; a longer one is cut off.
    """
    training = training or _fitting(elements)
    size = training.elements()
    each = -(-elements // size)
    held: list[Tensor] = []
    for number, flat in islice(_compensated(training, density), _WARM + turns + each - 1):
        if number > _WARM:
            held.append(flat.clone())
        say(f"recording: step {number} of {_WARM + turns + each - 1} of {training.name}")
    flats = [torch.cat(held[turn : turn + each])[:elements] for turn in range(turns)]
    about = (
        f"error-feedback gradients (top-k at {density:g}) of {training.name}, {size:,} parameters: "
        f"{_joined(each, size, elements)}, from step {_WARM + 1} on, one step later every turn"
    )
    return Vectors(flats, about)


def _compensated(training: Training, density: float) -> Iterator[tuple[int, Tensor]]:
    from testbed.compress.selectors.radix import Radix

    for step in steps(training, Radix(), density):
        yield step.number, step.given.flat


def _fitting(elements: int) -> Training:
    """The widest model that is no longer than the vector, or else the narrowest."""
    offered = [Training("synthetic", "resnet18", width, batch=16) for width in _WIDTHS]
    return next((one for one in offered if one.elements() <= elements), offered[-1])


def _joined(each: int, size: int, elements: int) -> str:
    if each == 1:
        return "the whole vector" if size == elements else f"the first {elements:,} elements"
    return f"{each} consecutive steps' joined, the last one cut off at {elements:,} elements"


def _signs(
    random: np.random.Generator, elements: int
) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The sign bit of a float32, set in one element of two."""
    bits = np.frombuffer(random.bytes(-(-elements // 8)), np.uint8)
    return np.unpackbits(bits, count=elements).astype(np.uint32) << np.uint32(31)
