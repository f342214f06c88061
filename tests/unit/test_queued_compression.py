"""Parameters compressed by themselves on a device: all of a bucket are waited for together, and messages are the same.

The device is the host's memory, but every operation for which the host would wait for a real one is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from testbed.compress import kernels
from testbed.compress.base import Recipe, RecipeChoice
from testbed.compress.compressor import Compressor
from testbed.compress.kernels.cpu import CpuKernels
from testbed.compress.kernels.torch_ops import CudaKernels, Operations, nth_marked, numbered
from testbed.compress.layout import Layout
from testbed.compress.payload import split
from testbed.errors import GradientError

WAITING = {Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.nonzero, torch.nonzero,
           Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__}  # fmt: skip
SIZES = (3_000, 40, 20_000, 700, 5, 9_000)
SHAPES = [(f"layer{number}.weight", (size,)) for number, size in enumerate(SIZES)]
LAYOUT = Layout.of(SHAPES)


class DeviceTensor(Tensor):
    """A vector of a device: what is computed from it is there too, until it is copied to the host."""

    waits = 0

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        marks = func is Tensor.__getitem__ and getattr(args[1], "dtype", None) is torch.bool
        if func in WAITING or marks:
            DeviceTensor.waits += 1
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result.as_subclass(Tensor) if func is Tensor.cpu else result


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device without Triton, whose vectors are ``DeviceTensor``."""

    def of(tensor: Tensor) -> Operations:
        return CudaKernels() if isinstance(tensor, DeviceTensor) else CpuKernels()

    monkeypatch.setattr(kernels, "of", of)
    monkeypatch.setattr(DeviceTensor, "waits", 0)
    yield


def gradient(step: int) -> Tensor:
    """Tails differ from step to step; one parameter is zero now and then, one has few values."""
    flat = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(step))
    flat *= flat.abs() ** (step % 4)
    zeros, few = LAYOUT.parts[step % 2], LAYOUT.parts[3]
    flat[zeros.offset : zeros.offset + zeros.size] *= step % 5 > 0
    flat[few.offset : few.offset + few.size].round_()
    return flat.as_subclass(DeviceTensor)


def recipe(selector: str, memory: str, values: str, **options: Any) -> Recipe:
    choice = RecipeChoice(selector, options)
    return Recipe(choice, RecipeChoice(values), RecipeChoice(memory), layers=True, dense_below=30)


def alone(which: Recipe) -> list[Compressor]:
    """One compressor for each parameter, which waits for the device by itself."""
    return [
        Compressor(replace(which.for_part(part.size), layers=False), {"x": Layout.of([shape])})
        for shape, part in zip(SHAPES, LAYOUT, strict=True)
    ]


@pytest.mark.parametrize("values", ["fp32", "int8", "qsgd"])
@pytest.mark.parametrize("memory", ["feedback", "dgc", "none"])
@pytest.mark.parametrize("selector", ["laplace", "topk", "dense", "radix", "randk"])
def test_messages_and_memory_are_those_of_each_parameter_alone(
    selector: str, memory: str, values: str
) -> None:
    which = recipe(selector, memory, values)
    together, each = Compressor(which, {"x": LAYOUT}), alone(which)
    together.weigh = together.itemise = True
    here, there = Random(1), Random(1)
    for step in range(9):
        flat, densities = gradient(step), [0.5, 0.1, 0.02, 0.3, 1.0, (0.001, 1.0)[step % 2]]
        message = together.compress("x", flat, densities, here)
        wanted = []
        for part, density, compressor in zip(LAYOUT, densities, each, strict=True):
            compressor.weigh = compressor.itemise = True
            own = flat[part.offset : part.offset + part.size]
            wanted.append(compressor.compress("x", own, density, there))
        assert [bytes(own) for own in split(message.payload, len(SIZES))] == [
            bytes(own.payload) for own in wanted
        ]
        assert message.sent == sum(own.sent for own in wanted)
        assert message.parts == tuple(share for own in wanted for share in own.parts)
        assert message.selection is not None
        ties = [own.selection.ties for own in wanted if own.selection is not None]
        assert message.selection.ties == sum(ties)
    memories = [vector for compressor in each for vector in compressor.state()["memory"].values()]
    kept = together.state()["memory"]
    assert len(kept) == len(memories)
    assert all(torch.equal(*both) for both in zip(kept.values(), memories, strict=True))


@pytest.mark.parametrize(("selector", "most"), [("laplace", 4), ("topk", 4), ("dense", 2)], ids=str)
def test_a_bucket_waits_no_longer_for_many_parameters(selector: str, most: int) -> None:
    """Statistics, then elements: a copy for each dtype of either, and more only where too few were found."""
    bucket = Compressor(recipe(selector, "feedback", "fp32"), {"x": LAYOUT})
    waits = []
    for step in range(12):
        begun = DeviceTensor.waits
        bucket.compress("x", gradient(4 * step + 1), 0.05, Random(step))
        waits.append(DeviceTensor.waits - begun)
    assert sorted(waits)[6] <= most
    assert max(waits) <= most + 4 < len(SIZES) * 2


def test_what_is_not_finite_is_refused_and_nothing_has_changed() -> None:
    which = recipe("laplace", "feedback", "fp32")
    spoilt, spared = (Compressor(which, {"x": LAYOUT}) for _ in range(2))
    for step in range(4):
        wrong = gradient(step + 10)
        wrong[LAYOUT.parts[2].offset + 17] = float("nan")
        with pytest.raises(GradientError, match=r"'layer2\.weight' holds nan at element 17"):
            spoilt.compress("x", wrong, 0.1, Random(step))
        both = [
            maker.compress("x", gradient(step), 0.1, Random(step)) for maker in (spoilt, spared)
        ]
        assert bytes(both[0].payload) == bytes(both[1].payload)


def test_a_checkpoint_goes_on_as_before() -> None:
    makers = [Compressor(recipe("laplace", "feedback", "fp32"), {"x": LAYOUT}) for _ in range(2)]
    for step in range(3):
        makers[0].compress("x", gradient(step), 0.1, Random(step))
    makers[1].load(makers[0].state())
    both = [bytes(maker.compress("x", gradient(3), 0.1, Random(3)).payload) for maker in makers]
    assert both[0] == both[1]
    assert makers[0].state()["learnt"][0]["selector"]["steps"] == 4


@pytest.mark.parametrize("room", [1, 3, 100, 10_000])
def test_more_than_there_is_room_for_come_with_the_next_copy(room: int) -> None:
    flat, operations = gradient(1)[:5_000], CudaKernels()
    for threshold in (0.0, 0.7, 4.0, 1e9):
        work = operations.taking(flat, threshold, room)
        wanted, copies = next(work), 0
        with pytest.raises(StopIteration) as done:
            while True:
                copies += 1
                wanted = work.send([tensor.cpu() for tensor in wanted])
        indices, values = done.value.value
        expected = (flat.as_subclass(Tensor).abs() >= threshold).nonzero().flatten()
        assert torch.equal(indices, expected)
        assert torch.equal(values, flat.as_subclass(Tensor)[expected])
        assert copies == (1 if len(expected) <= room else 2)


def test_marks_are_numbered_in_order() -> None:
    marks = torch.tensor([False, True, True, False, True, False])
    assert nth_marked(numbered(marks), 5).tolist() == [1, 2, 4, 6, 6]
    assert nth_marked(numbered(marks), 0).tolist() == []
