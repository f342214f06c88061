"""``testbed bench gpu``: an accelerator's bandwidth, every selector in readings of its memory, and
whole steps of one worker without links.

Times are those of CUDA events (on the CPU, of the host's clock). Before a selection is timed the
cache is emptied. It is timed twice: from an idle device on, so that all launches and waits count;
and behind work that is queued, as behind a backward pass, from when the device comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import perf_counter
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from testbed.bench.compress.inputs import (
    Timed,
    Training,
    check_sparse,
    drifting,
    job_of,
    threads_of_torch,
    timed,
)
from testbed.bench.compress.select import NO_PASSES, PLAIN, TORCH, each_selector, torch_topk
from testbed.bench.results import (
    RESULT,
    BenchOutcome,
    ResultCheck,
    Row,
    Say,
    Setup,
    Suite,
    at_most,
    fill,
    measurement,
)
from testbed.compatibility import resolve
from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Selector
from testbed.compress.compressor import Compressor
from testbed.compress.gradient_stats import element_count
from testbed.compress.kernels.torch_ops import CudaKernels, Operations
from testbed.compress.selectors.laplace import Laplace
from testbed.control.base import controllers
from testbed.errors import InputError, NarrowsError
from testbed.records.manifest import machine_facts
from testbed.training.compute import Computation
from testbed.training.profiling import CudaStopwatch, HostStopwatch
from testbed.training.replica import Replica, configure_torch, synchronise

ELEMENTS, DENSITIES = (1_000_000, 10_000_000, 100_000_000), (0.01, 0.001)
QUICK_ELEMENTS, QUICK_DENSITIES = (100_000,), (0.01,)
JUDGED = 10_000_000
"""Vectors from this length on have limits."""
MOST_READS, MOST_OFF = 1.5, 0.05
MODELS = ("resnet18-bn", "resnet34-bn", "resnet50-bn", "vgg19-bn")
BATCHES = (32, 128)
ALGORITHMS = (
    *("none", "topk-0.01", "radix-0.01", "hierarchical-0.01", "laplace-0.01"),
    *("topk-0.001", "laplace-0.001"),
)
PAPER = {"radix": 1.62, "hierarchical": 1.30}
"""How many times as long training took as with the Laplacian threshold, as published."""
BISECTION = "laplace (bisection)"
_WARM, _LEARNING = 3, 8
"""Calls before what is measured: of steps, and of selectors, which learn from step to step."""
_FLUSHED, _AHEAD = 1 << 28, 16
"""Bytes that are written to empty a cache, and how often they are written to keep the device at
work while the host queues more."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceTurn:
    """Result of one call: elements that were chosen, and seconds of the selection from an idle
    device on, behind queued work, and of the statistics before it."""

    count: int
    seconds: float
    queued_s: float | None
    statistics_s: float = 0.0
    kernels: str | None = None
    """The class whose passes were used."""


class DeviceBench:
    """Benchmarks of one device. Raises MachineError for a CUDA device that is not there, InputError
    for what cannot be measured."""

    def __init__(
        self,
        device: str = "cuda",
        elements: Sequence[int] = (),
        densities: Sequence[float] = (),
        *,
        quick: bool = False,
    ) -> None:
        if device not in ("cuda", "cpu"):
            known = "Known: cuda, cpu"
            raise InputError(f"unknown device {device!r}", where="--device", hint=known)
        self._quick = quick
        self.device = configure_torch(device, torch.get_num_threads())
        self.elements = elements or (QUICK_ELEMENTS if quick else ELEMENTS)
        self.densities = densities or (QUICK_DENSITIES if quick else DENSITIES)
        for length in self.elements:
            for density in self.densities:
                check_sparse(length, density)
        self._scratch = torch.empty(_FLUSHED if self._cuda else 0, dtype=torch.uint8).to(device)
        self._clock, self._bytes_per_s = self._stopwatch(), 0.0
        self._suites = {"memory": self.memory, "selection": self.selection, "step": self.step}

    @property
    def _cuda(self) -> bool:
        return self.device.type == "cuda"

    def run(self, out: Path, say: Say, repeat: int, names: Sequence[str] = ()) -> BenchOutcome:
        """Carry out the suites called ``names`` (all, where there are none), after ``memory``."""
        for name in names:
            if name not in self._suites:
                hint = f"There are {', '.join(self._suites)}"
                raise InputError(f"there is no suite {name!r}", where="--suite", hint=hint)
        chosen = {n: f for n, f in self._suites.items() if n == "memory" or n in names or not names}
        directory = measurement(out, "gpu")
        outcome = BenchOutcome(directory / RESULT, {**machine_facts(), "device": self.name()})
        with threads_of_torch(torch.get_num_threads()):
            fill(outcome, chosen, Setup(directory, say, repeat, self._quick))
        return outcome

    def name(self) -> str:
        """Return what the device is called."""
        return torch.cuda.get_device_name() if self._cuda else "cpu"

    def memory(self, setup: Setup) -> Suite:
        """Bandwidth by a copy and by a sum, and what starting one operation and waiting for it
        takes."""
        count = 1 << (28 if self._cuda and not self._quick else 20)
        source, few = torch.rand(count, device=self.device), torch.rand(64, device=self.device)
        target = torch.empty_like(source)
        calls: dict[str, tuple[int, Callable[[], object]]] = {
            "copy": (8 * count, lambda: target.copy_(source)),
            "read": (4 * count, source.sum),
            "launch and wait": (0, lambda: few.sum().item()),
        }
        turns = {name: self._turn(call) for name, (_, call) in calls.items()}
        outcomes = timed(turns, setup.repetitions, _WARM)
        medians = {name: median(outcome.results) for name, outcome in outcomes.items()}
        rates = {name: size / medians[name] for name, (size, _) in calls.items()}
        rows = [
            {"of": name, "bytes": size, "median_s": medians[name], "bytes_per_s": rates[name]}
            for name, (size, _) in calls.items()
        ]
        self._bytes_per_s = max(rates.values())
        return Suite(f"memory of {self.name()}", rows, [])

    def _turn(self, call: Callable[[], object]) -> Callable[[int], float]:
        return lambda _: self._clocked(call)[1]

    def _clocked(self, call: Callable[[], T], *, queued: bool = False) -> tuple[T, float]:
        """Return what ``call`` does, and its seconds, from an empty cache and an idle device on, or
        from when the device comes to it, ``queued`` behind other work."""
        for _ in range(_AHEAD if queued else 1):
            self._scratch.zero_()
        if not queued:
            synchronise(self.device)
        self._clock.mark()
        returned = call()
        self._clock.mark()
        return returned, self._clock.read()[-1]

    def _queued_s(self, call: Callable[[], object]) -> float | None:
        """Return the seconds of ``call`` behind queued work; None where nothing is queued."""
        return self._clocked(call, queued=True)[1] if self._cuda else None

    def _stopwatch(self) -> HostStopwatch | CudaStopwatch:
        return CudaStopwatch() if self._cuda else HostStopwatch(perf_counter)

    def selection(self, setup: Setup) -> Suite:
        """Every selector, on vectors of every length, at every density."""
        rows, checks, absent = list[Row](), list[ResultCheck](), dict[str, None]()
        for elements in self.elements:
            flats = drifting(elements, _LEARNING + setup.repetitions, self.device)
            for density in self.densities:
                calls, left_out = self._selectors(flats, density)
                outcomes = timed(calls, setup.repetitions, _LEARNING)
                rows += self._selection_rows(outcomes, elements, density)
                absent |= dict.fromkeys(left_out)
                setup.say(f"selection: {elements:,} elements, density {density:g}")
            del flats, calls
        if self._cuda and not self._quick:
            checks = [check for row in rows for check in _limits(row)]
        if not checks:
            absent[f"limits: they are for CUDA devices and {JUDGED:,} elements or more"] = None
        title = "selection, vectors of layers of unlike scale that drift: x ← 0.9·x + noise"
        return Suite(title, rows, checks, {"bytes_per_s": self._bytes_per_s}, list(absent))

    def _selectors(
        self, flats: Sequence[Tensor], density: float
    ) -> tuple[dict[str, Callable[[int], DeviceTurn]], list[str]]:
        """One call of each that can be made and carried out here, and why others cannot."""
        known, left_out = each_selector(flats[0], density)
        known[BISECTION] = Laplace(correction="bisection")
        del known["dense"]
        own, calls = kernels.of(flats[0]), dict[str, Callable[[int], DeviceTurn]]()
        for name, selector in known.items():
            calls[name] = self._selecting(selector, flats, density, kernels.of)
            if name not in NO_PASSES and type(own) is not CudaKernels:
                calls[name + PLAIN] = self._selecting(deepcopy(selector), flats, density, _plain)
        calls[TORCH] = lambda turn: self._torch_topk(flats[turn], density)
        absent = [f"{name}: {reason}" for name, reason in left_out.items()]
        for name in list(calls):
            try:
                calls[name](0)
            except (InputError, RuntimeError) as error:
                absent.append(f"{name}: {error}")
                del calls[name]
        return calls, absent

    def _selecting(
        self,
        selector: Selector[Any],
        flats: Sequence[Tensor],
        density: float,
        operations: Callable[[Tensor], Operations],
    ) -> Callable[[int], DeviceTurn]:
        rng, named = Random(1), type(operations(flats[0])).__name__
        again, as_often = deepcopy(selector), Random(1)  # so that either sees a vector once

        def select(turn: int) -> DeviceTurn:
            flat = flats[turn]
            with patch.object(kernels, "of", operations):
                measured, statistics_s = self._clocked(lambda: operations(flat).measure(flat))
                given = AccumulatedGradient(flat, measured.sum_abs, measured.max_abs)
                sent, seconds = self._clocked(lambda: selector.select(given, density, rng))
                queued_s = self._queued_s(lambda: again.select(given, density, as_often))
            return DeviceTurn(sent.count, seconds, queued_s, statistics_s, named)

        return select

    def _torch_topk(self, flat: Tensor, density: float) -> DeviceTurn:
        turn, seconds = self._clocked(lambda: torch_topk(flat, density))
        return DeviceTurn(turn.count, seconds, self._queued_s(lambda: torch_topk(flat, density)))

    def _selection_rows(
        self, outcomes: Mapping[str, Timed[DeviceTurn]], elements: int, density: float
    ) -> Iterable[Row]:
        read_s, wanted = 4 * elements / self._bytes_per_s, element_count(elements, density)
        base_s = median(turn.seconds for turn in outcomes[TORCH].results)
        for name, outcome in outcomes.items():
            turns = outcome.results
            seconds = median(turn.seconds for turn in turns)
            whole_s = median(turn.seconds + turn.statistics_s for turn in turns)
            queued = [turn.queued_s for turn in turns if turn.queued_s is not None]
            yield {
                "elements": elements,
                "density": density,
                "method": name,
                "kernels": turns[0].kernels,
                "median_s": seconds,
                f"over {TORCH}": seconds / base_s,
                "reads": seconds / read_s,
                "reads_queued": median(queued) / read_s if queued else None,
                "reads_with_statistics": whole_s / read_s if turns[0].statistics_s else None,
                "achieved": fmean(turn.count for turn in turns),
                "off": max(abs(turn.count / wanted - 1) for turn in turns),
            }

    def step(self, setup: Setup) -> Suite:
        """Steps of one worker by itself, of every model, batch and algorithm."""
        rows, absent = list[Row](), list[str]()
        models, batches, width = (
            (MODELS[:1], (8,), 0.125) if self._quick else (MODELS, BATCHES, 1.0)
        )
        for model in models:
            for batch in batches:
                training = Training("synthetic-cifar", model, width, batch, lr=0.001)
                setup.say(f"step: {training.name}, batch {batch}")
                try:
                    rows += self._steps(training, setup.repetitions)
                except (RuntimeError, NarrowsError) as error:
                    absent.append(f"{model}, batch {batch}: {error}")
        title = "one worker's step without links: its own message comes back as the mean"
        return Suite(title, rows, [], {"paper": PAPER}, absent)

    def _steps(self, training: Training, repeat: int) -> list[Row]:
        job = replace(job_of(training, 1), device=self.device.type)
        replica = Replica(job)
        computation = Computation(job, replica.flat)
        calls = {name: self._step(replica, computation, name) for name in ALGORITHMS}
        outcomes = timed(calls, repeat, _WARM)
        medians = {
            name: {key: median(turn[key] for turn in each.results) for key in each.results[0]}
            for name, each in outcomes.items()
        }
        about = {"model": training.model, "parameters": replica.flat.size, "batch": training.batch}
        return [
            {**about, "algorithm": name, **own, **_over(own, medians[_laplace(name)])}
            for name, own in medians.items()
        ]

    def _step(
        self, replica: Replica, computation: Computation, name: str
    ) -> Callable[[int], dict[str, float]]:
        row, (shard,), rng = resolve(name), replica.shards, Random(1)
        density = controllers.get(row.controller)(seed=1, **row.options).density()
        compressor = Compressor(row.recipe, {shard.name: shard.layout})

        def step(turn: int) -> dict[str, float]:
            stopwatch = self._stopwatch()
            synchronise(self.device)
            begin = perf_counter()
            stopwatch.mark()
            computation.gradients(turn + 1)
            stopwatch.mark()
            packed = compressor.compress(shard.name, replica.flat.gradients, density, rng)
            stopwatch.mark()
            replica.decode(shard, packed.payload)
            replica.apply(1)
            stopwatch.mark()
            wall_s = perf_counter() - begin
            _, computed, compressed, applied = stopwatch.read()
            return {
                "compute_s": computed,
                "compress_s": compressed - computed,
                "apply_s": applied - compressed,
                "step_s": wall_s,
                "payload_bytes": len(packed.payload),
            }

        return step


def _plain(_: Tensor) -> Operations:
    return CudaKernels()


def _limits(row: Row) -> list[ResultCheck]:
    if row["method"] != "laplace" or row["elements"] < JUDGED:
        return []
    name = f"laplace, {row['elements']:,} elements, density {row['density']:g}"
    return [
        at_most(f"{name}: readings of the memory, queued", row["reads_queued"], MOST_READS),
        at_most(f"{name}: count, off by the share", row["off"], MOST_OFF),
    ]


def _laplace(name: str) -> str:
    """The algorithm that one is compared with: of the same density."""
    return "laplace-0.001" if name.endswith("-0.001") else "laplace-0.01"


def _over(own: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {
        f"{name} over laplace": own[key] / other[key]
        for name, key in (("step", "step_s"), ("compress", "compress_s"))
    }
