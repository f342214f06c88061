"""Times by layer, with models that take known times on a clock of the test's, and one that takes real ones."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from testbed.errors import InputError
from testbed.training.models.base import build
from testbed.training.profiling import HostStopwatch, TimedPasses, measure
from testbed.training.replica import FlatModel

torch.set_num_threads(1)
CPU = torch.device("cpu")


class Clock:
    """Seconds that computations add to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


class Spend(torch.autograd.Function):
    """Passes a tensor on, which takes ``forward_s``, and its gradient, which takes ``backward_s``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, forward_s: float, backward_s: float) -> Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.now_s += forward_s
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        ctx.clock.now_s += ctx.backward_s
        return gradient, None, None, None


class Timed(nn.Module):
    """A scale that takes known times."""

    def __init__(self, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.clock, self.times_s = clock, (forward_s, backward_s)
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        spent: Tensor = Spend.apply(x * self.weight + self.bias, self.clock, *self.times_s)
        return spent


class Between(nn.Module):
    """Takes times and has no parameters."""

    def __init__(self, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.clock, self.times_s = clock, (forward_s, backward_s)

    def forward(self, x: Tensor) -> Tensor:
        spent: Tensor = Spend.apply(x, self.clock, *self.times_s)
        return spent


def flat(module: nn.Module) -> FlatModel:
    return FlatModel(module, CPU)


def stepping(model: FlatModel, clock: Clock, before_s: float = 0.0, loss_s: float = 0.0) -> Any:
    def compute() -> None:
        clock.now_s += before_s
        out = Spend.apply(model.forward(torch.ones(2, 4)), clock, 0.0, loss_s)
        clock.now_s += loss_s
        out.sum().backward()

    return compute


def times(model: FlatModel, clock: Clock, **more: float) -> dict[str, tuple[float, float]]:
    passes = TimedPasses(model, HostStopwatch(clock.now))
    found = passes.times(stepping(model, clock, **more))
    return {one.name: (round(one.forward_s, 9), round(one.backward_s, 9)) for one in found}


def test_a_layer_has_its_own_times_and_those_until_the_next() -> None:
    clock = Clock()
    model = nn.Sequential(
        Timed(clock, 1.0, 2.0), Between(clock, 0.25, 0.5), Timed(clock, 3.0, 5.0), Between(clock, 0.125, 0.0625)
    )  # fmt: skip
    assert times(flat(model), clock) == {"0": (1.25, 2.5), "2": (3.125, 5.0625)}


def test_what_is_before_is_the_first_layers_and_the_loss_the_last_ones() -> None:
    clock = Clock()
    model = nn.Sequential(Timed(clock, 1.0, 2.0), Timed(clock, 3.0, 5.0))
    found = times(flat(model), clock, before_s=0.5, loss_s=0.25)
    assert found == {"0": (1.5, 2.0), "1": (3.0, 5.5)}


def test_times_add_up_to_the_whole() -> None:
    clock = Clock()
    model = nn.Sequential(Timed(clock, 1.0, 2.0), Between(clock, 0.25, 0.5), Timed(clock, 3.0, 5.0))
    found = times(flat(model), clock, before_s=0.5, loss_s=0.25)
    assert sum(map(sum, found.values())) == pytest.approx(clock.now_s - 100.0)


def test_it_is_the_median_after_the_first_passes() -> None:
    clock = Clock()
    timed = Timed(clock, 0.0, 2.0)
    model = flat(nn.Sequential(timed))
    calls = iter([50.0, 40.0, 30.0, 20.0, 1.0, 9.0, 2.0])  # four to warm up
    step = stepping(model, clock)

    def compute() -> None:
        timed.times_s = (next(calls), 2.0)
        step()

    found = measure(model, compute, clock.now, passes=3)
    assert [(one.forward_s, one.backward_s) for one in found.layers] == [(2.0, 2.0)]
    assert found.source == "measured"


def test_where_no_time_passes_one_pass_tells() -> None:
    """As on a virtual clock."""
    clock = Clock()
    model = flat(nn.Sequential(Timed(clock, 0.0, 0.0), Timed(clock, 0.0, 0.0)))
    step, calls = stepping(model, clock), []
    found = measure(model, lambda: calls.append(step()), clock.now)
    assert (found.total_s, len(found.layers), len(calls)) == (0.0, 2, 1)


def test_hooks_do_not_stay() -> None:
    clock = Clock()
    model = flat(nn.Sequential(Timed(clock, 1.0, 2.0)))
    stopwatch = HostStopwatch(clock.now)
    TimedPasses(model, stopwatch).times(stepping(model, clock))
    stepping(model, clock)()
    stopwatch.mark()
    assert stopwatch.read() == [0.0]


class Twice(nn.Module):
    """Uses its first layer again."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.a, self.b = Timed(clock, 1.0, 1.0), Timed(clock, 1.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.b(self.a(x)))  # type: ignore[no-any-return]


class Swapped(Twice):
    """Its second layer comes first."""

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.b(x))  # type: ignore[no-any-return]


class Unused(Twice):
    """Has a layer that it does not use."""

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)  # type: ignore[no-any-return]


class Cut(Twice):
    """No gradient comes to its first layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).detach())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Twice, "in its forward pass layer 'a' came where nothing more was to"),
        (Swapped, "in its forward pass layer 'b' came where layer 'a' was to"),
        (Unused, "in its forward pass nothing came where layer 'b' was to"),
        (Cut, "in its backward pass nothing came where layer 'a' was to"),
    ],
)
def test_a_model_in_disorder_is_refused(kind: type[Twice], message: str) -> None:
    clock = Clock()
    model = flat(kind(clock))
    with pytest.raises(InputError, match=message):
        times(model, clock)


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18", "resnet50", "vgg19"])
def test_a_real_model_takes_time_in_every_layer(name: str) -> None:
    model = flat(build(name, "cifar10", 0.125, seed=1))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn((2, 3, 32, 32), generator=generator), torch.tensor([1, 2])

    def compute() -> None:
        cross_entropy(model.forward(x), y).backward()  # type: ignore[no-untyped-call]

    begun_s = perf_counter()
    found = measure(model, compute, perf_counter, passes=1)
    took_s = perf_counter() - begun_s
    assert [one.name for one in found.layers] == [layer.name for layer in model.layout.layers()]
    assert all(one.forward_s > 0 and one.backward_s > 0 for one in found.layers)
    assert 0 < found.total_s <= took_s
