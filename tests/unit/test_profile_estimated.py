"""Estimates: kernels by hand, models whose operations are known, and throughput that others have published."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from imagenet_forms import RESNET18, RESNET34, RESNET50, RESNET152, VGG16, VGG19, resnet, vgg
from torch import nn

from testbed.errors import InputError
from testbed.scenario.profile import Profile
from testbed.training.profiling import ACCELERATORS, Accelerator, Roofline, accelerator_of, estimate

V100 = ACCELERATORS["v100"]
PLAIN = Accelerator("plain", 1e12, 1e9, 0.5, 2.0, 0.25, 0.0)


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def seconds(accelerator: Accelerator, work: Callable[[], object]) -> tuple[float, int]:
    with Roofline(accelerator) as roofline:
        work()
    return roofline.elapsed_s, roofline.flops


def test_a_product_takes_its_arithmetic_or_its_traffic() -> None:
    a, b = torch.empty(512, 256, device="meta"), torch.empty(256, 128, device="meta")
    bytes_ = 4 * (512 * 256 + 256 * 128 + 512 * 128)
    flops = 2 * 512 * 256 * 128
    assert seconds(PLAIN, lambda: a @ b) == (pytest.approx(bytes_ / 0.25e9), flops)
    slow = Accelerator("slow", 1e9, 1e12, 0.5, 2.0, 0.25, 1e-3)
    assert seconds(slow, lambda: a @ b) == (pytest.approx(flops / 0.5e9 + 1e-3), flops)


def test_views_cost_nothing_and_an_expanded_tensor_is_read_once() -> None:
    a = torch.empty(8, 1, device="meta")
    assert seconds(V100, lambda: a.view(2, 4).t().detach()) == (0.0, 0)
    took_s, _ = seconds(PLAIN, lambda: a.expand(8, 100) + 1.0)
    assert took_s == pytest.approx(4 * (8 + 800) / 0.25e9)


@pytest.mark.parametrize(
    ("kernel", "stride", "channels", "share"),
    [(3, 1, 64, 2.0), (3, 2, 64, 0.5), (1, 1, 64, 0.5), (3, 1, 3, 0.5)],
)
def test_winograd_is_for_some_convolutions(
    kernel: int, stride: int, channels: int, share: float
) -> None:
    fast = Accelerator("no memory", 1e12, 1e18, 0.5, 2.0, 1.0, 0.0)
    layer = made(lambda: nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False))
    x = torch.empty(4, channels, 16, 16, device="meta")
    took_s, flops = seconds(fast, lambda: layer(x))
    assert flops == 2 * 4 * 64 * channels * kernel**2 * (16 // stride) ** 2
    assert took_s == pytest.approx(flops / (1e12 * share))


@pytest.mark.parametrize(
    ("make", "parameters", "gigamacs"),
    [
        (lambda: resnet(RESNET18, False), 11_689_512, 1.81),
        (lambda: resnet(RESNET34, False), 21_797_672, 3.66),
        (lambda: resnet(RESNET50, True), 25_557_032, 4.09),
        (lambda: resnet(RESNET152, True), 60_192_808, 11.51),
        (lambda: vgg(VGG16), 138_357_544, 15.47),
        (lambda: vgg(VGG19), 143_667_240, 19.63),
    ],
)
def test_operations_of_the_published_forms(
    make: Callable[[], nn.Module], parameters: int, gigamacs: float
) -> None:
    """Parameters and multiply-adds of a forward pass as torchvision's documentation has them."""
    model = made(make)
    assert sum(one.numel() for one in model.parameters()) == parameters
    x = torch.empty(1, 3, 224, 224, device="meta")
    _, flops = seconds(V100, lambda: model(x))
    assert flops / 2e9 == pytest.approx(gigamacs, rel=0.01)


def step(model: nn.Module, batch: int) -> tuple[float, Profile]:
    """Seconds of the forward pass, and all."""
    found = estimate(model, (3, 224, 224), batch, V100)
    return sum(layer.forward_s for layer in found.layers), found


@pytest.mark.parametrize(
    ("make", "forward_s", "total_s"),
    [
        (lambda: vgg(VGG16), 0.0262, 0.0835),
        (lambda: resnet(RESNET152, True), 0.0387, 0.1365),
    ],
)
def test_published_times_of_a_v100(
    make: Callable[[], nn.Module], forward_s: float, total_s: float
) -> None:
    """Batches of 16 in float32 with PyTorch and cuDNN 7: see docs/how-to/profiles.md."""
    forward, found = step(made(make), 16)
    assert forward == pytest.approx(forward_s, rel=0.15)
    assert found.total_s == pytest.approx(total_s, rel=0.15)


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [(lambda: resnet(RESNET50, True), 330, 400), (lambda: vgg(VGG19), 130, 200)],
)
def test_published_throughput_of_a_v100(
    make: Callable[[], nn.Module], least: float, most: float
) -> None:
    """Images a second in float32, batches of 64."""
    _, found = step(made(make), 64)
    assert least < 64 / found.total_s < most


def test_backward_takes_about_twice_as_long() -> None:
    forward, found = step(made(lambda: vgg(VGG19)), 64)
    assert 1.8 < (found.total_s - forward) / forward < 2.2


def test_small_batches_take_launches() -> None:
    """A sample takes longest where kernels are short, and never less than nothing but its own work."""
    model = lambda: made(lambda: resnet(RESNET50, True))  # noqa: E731
    by_sample = [step(model(), batch)[1].total_s / batch for batch in (1, 8, 64)]
    assert by_sample[0] > 1.5 * by_sample[1] > 1.5 * by_sample[2]


def test_an_unknown_accelerator_is_refused() -> None:
    with pytest.raises(InputError, match=r"--estimate: unknown accelerator 'h900'\. Known: v100"):
        accelerator_of("h900")
