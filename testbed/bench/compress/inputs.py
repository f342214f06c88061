"""Inputs of benchmarks of compression: vectors (drawn from a Laplace distribution, or recorded from
a training in this process), times of alternatives taken in turns, and the time that merely
reading the memory takes.

Every turn of a measurement has its own vector, as every step of a training has, so that nothing can
be learnt from one turn that a training would not show as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import exp
from random import Random
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.algorithm import Algorithm
from testbed.bench.results import Say, interleaved
from testbed.compress.base import AccumulatedGradient, Selector, Sparse
from testbed.compress.gradient_stats import check_density, element_count
from testbed.compress.kernels import cpu
from testbed.compress.kernels.compilation import compiled
from testbed.errors import InputError
from testbed.scenario.model import Optimizer, Stop, Train

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.training.job import Job


@dataclass(frozen=True, slots=True)
class Training:
    """Model and task that are trained, by SGD with error feedback."""

    task: str
    model: str
    width: float
    batch: int = 32
    lr: float = 0.05

    @property
    def name(self) -> str:
        """Task, model and width."""
        return f"{self.task} {self.model} x{self.width:g}"

    def elements(self) -> int:
        """Parameters of the model."""
        from testbed.training.models.base import parameter_count

        return parameter_count(self.model, self.task, self.width)


@dataclass(frozen=True, slots=True)
class Step:
    """One step before it is made: p = g + e, and what was selected of it. Both hold until the next
    step."""

    number: int
    given: AccumulatedGradient
    sent: Sparse


def steps(
    training: Training, selector: Selector[Any], density: float, seed: int = 1
) -> Iterator[Step]:
    """A training's steps without end, from 1 on; each is made when the next one is asked for."""
    import torch

    from testbed.compress.memory import ErrorFeedback
    from testbed.training.compute import Computation
    from testbed.training.models.base import build
    from testbed.training.replica import FlatModel, Sgd

    job = job_of(training, seed)
    module = build(training.model, training.task, training.width, seed)
    flat = FlatModel(module, torch.device("cpu"))
    computation, optimizer = Computation(job, flat), Sgd(job.train.optimizer, flat.parameters)
    memory, rng, update = ErrorFeedback(flat.layout), Random(seed), torch.empty(flat.size)
    number = 0
    while True:
        number += 1
        computation.gradients(number)
        given = memory.accumulate(flat.gradients)
        sent = selector.select(given, density, rng)
        yield Step(number, given, sent)
        _spread(sent, update)
        memory.update(given, sent)
        optimizer.apply(update, computation.batches.epoch(number))


def _spread(sent: Sparse, out: Tensor) -> None:
    if sent.indices is None:
        out.copy_(sent.values)
        return
    out.zero_()
    out[sent.indices] = sent.values


def job_of(training: Training, seed: int) -> Job:
    """The job of the only worker of a training."""
    from testbed.training.job import Job

    train = Train(
        task=training.task,
        model=training.model,
        width=training.width,
        batch=training.batch,
        optimizer=Optimizer(name="sgd", lr=training.lr),
        stop=Stop(steps=1),
    )
    return Job(
        run=0,
        algorithm=Algorithm("none"),
        train=train,
        seed=seed,
        workers=1,
        node="worker-0",
        rank=0,
        peer=1,
        peer_timeout_s=1.0,
    )


SOURCES = ("laplace", "recorded")
_SCALE, _DRIFT = 1e-3, 0.1
"""Mean magnitude of the first vector drawn, and by how much (standard deviation, as a factor of e)
every later one's differs."""
_LAYERS, _APART, _STAYS = 20, 3.0, 0.9
"""Vectors that drift: layers, powers of 2 by which their scales are apart up and down, and the
share of a vector that stays."""
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


def drifting(elements: int, turns: int, device: torch.device, seed: int = 1) -> list[Tensor]:
    """``turns`` vectors float32 (elements,) of layers whose scales differ; each is nine tenths of
    the one before and noise from a Laplace distribution, so that scales stay."""
    generator, random = torch.Generator(device).manual_seed(seed), Random(seed)
    scales = [_SCALE * 2 ** random.uniform(-_APART, _APART) for _ in range(_LAYERS)]
    flats: list[Tensor] = []
    for _ in range(turns):
        # the difference of two exponential variables has a Laplace distribution
        noise, other = (
            torch.empty(elements, device=device).exponential_(generator=generator) for _ in "ab"
        )
        noise.sub_(other)
        for part, scale in zip(noise.chunk(_LAYERS), scales, strict=False):
            part.mul_(scale)
        if flats:
            noise.mul_((1 - _STAYS**2) ** 0.5).add_(flats[-1], alpha=_STAYS)
        flats.append(noise)
    return flats


def recorded(
    elements: int,
    turns: int,
    density: float,
    say: Callable[[str], None],
    training: Training | None = None,
) -> Vectors:
    """p = g + e of consecutive steps of a training whose gradients are compressed by top-k at
    ``density``.

    Without ``training``: ResNet-18 on ``synthetic``, as wide as fits. A model shorter than
    ``elements`` gives several steps' vectors one after the other, and every turn begins one step
    later than the one before; a longer one is cut off.
    """
    training = training or _fitting(elements)
    size = training.elements()
    each = -(-elements // size)
    kept: list[Tensor] = []
    for number, flat in islice(_compensated(training, density), _WARM + turns + each - 1):
        if number > _WARM:
            kept.append(flat.clone())
        say(f"recording: step {number} of {_WARM + turns + each - 1} of {training.name}")
    flats = [torch.cat(kept[turn : turn + each])[:elements] for turn in range(turns)]
    about = (
        f"error-feedback gradients (top-k at {density:g}) of {training.name}, {size:,} parameters: "
        f"{_joined(each, size, elements)}, from step {_WARM + 1} on, one step later every turn"
    )
    return Vectors(flats, about)


def _compensated(training: Training, density: float) -> Iterator[tuple[int, Tensor]]:
    from testbed.compress.selectors.topk import Radix

    for step in steps(training, Radix(), density):
        yield step.number, step.given.flat


def _fitting(elements: int) -> Training:
    """The widest model that is no longer than the vector, or else the narrowest."""
    offered = [Training("synthetic", "resnet18", width, batch=16) for width in _WIDTHS]
    return next((training for training in offered if training.elements() <= elements), offered[-1])


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


@compiled
def read(words: NDArray[np.int64]) -> int:
    """Their sum modulo 2⁶⁴: additions that vectorise, without which nobody would read."""
    total = np.int64(0)
    for i in range(words.size):
        total += words[i]
    return int(total)


ELEMENTS = 25_000_000
UNJUDGED = f"limits on times: they are stated for {ELEMENTS:,} elements and one thread"

T = TypeVar("T")


@dataclass(slots=True)
class Timed(Generic[T]):
    """One alternative's turns, without those that were for warming up: seconds, and what it
    returned."""

    seconds: list[float] = field(default_factory=list)
    results: list[T] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Return the median time of its turns."""
        return median(self.seconds)


def timed(
    alternatives: Mapping[str, Callable[[int], T]],
    repeat: int,
    warm: int = 1,
    say: Say | None = None,
) -> dict[str, Timed[T]]:
    """Call every alternative ``warm + repeat`` times, in turns: A B C, C B A, A B C, …

    Each is given the number of its turn, from 0 on, so that every turn can have another vector;
    what it returns is kept (of the last ``repeat`` turns), and should be small. The collector of
    garbage rests during a call.
    """
    outcomes: dict[str, Timed[T]] = {name: Timed() for name in alternatives}
    gc.collect()
    for turn, name in interleaved(list(alternatives), warm + repeat):
        with _undisturbed():
            begin = perf_counter()
            result = alternatives[name](turn)
            seconds = perf_counter() - begin
        if say is not None:
            say(f"{turn + 1}/{warm + repeat}  {name}: {1e3 * seconds:.2f} ms")
        if turn >= warm:
            outcomes[name].seconds.append(seconds)
            outcomes[name].results.append(result)
    return outcomes


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Have PyTorch compute with so many threads, for a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def vectors_for(
    source: str, elements: int, turns: int, density: float, threads: int, say: Say
) -> Vectors:
    """``vectors``, made with all threads there are."""
    with threads_of_torch(max(torch.get_num_threads(), threads)):
        return vectors(source, elements, turns, density, say)


def check_sparse(elements: int, density: float) -> None:
    """Raises InputError for a density that leaves nothing out."""
    check_density(density)
    if element_count(elements, density) == elements:
        raise InputError(
            f"density {density:g} of {elements} elements is all of them", where="--density"
        )


def stated(elements: int, threads: int) -> bool:
    """Return whether limits on times hold for such a measurement."""
    return (elements, threads) == (ELEMENTS, 1)


def read_once(memory: NDArray[Any]) -> int:
    """Read every byte of a contiguous array once, as fast as can be, with PyTorch's number of
    threads."""
    words = memory.view(np.uint8)[: memory.nbytes // 8 * 8].view(np.int64)
    sums = cpu.over(words.size, lambda _, first, last: read(words[first:last]))
    return sum(sums)


@contextmanager
def _undisturbed() -> Iterator[None]:
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


WARM = (lambda: read(np.zeros(3, np.int64)),)
