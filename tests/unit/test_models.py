"""Models: sizes, shapes, and the same beginning on every node."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from testbed.errors import InputError
from testbed.training.models.architectures import BatchNorm, measure_statistics, normalises_by_batch
from testbed.training.models.base import build, models, parameter_count
from testbed.training.tasks.base import tasks

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("model", "task", "count"),
    [
        ("mlp", "digits", 64 * 128 + 128 + 1290),
        ("cnn", "digits", 59_202),
        ("dnn", "mnist", 669_706),
        ("mlp12", "digits", 11 * (64 * 64 + 64) + 650),
        ("mlp12", "cifar10", 11 * (64 * 64 + 64) + 650),
        ("resnet18", "cifar10", 11_173_962),
        ("resnet34", "cifar100", 21_328_292),
        ("resnet50", "cifar100", 23_705_252),
        ("vgg19", "cifar10", 20_040_522),
        ("resnet50-bn", "cifar100", 23_705_252),
        ("vgg19-bn", "cifar10", 20_040_522),
    ],
)
def test_models_have_the_size_of_their_cifar_forms(model: str, task: str, count: int) -> None:
    assert parameter_count(model, task, 1.0) == count


@pytest.mark.parametrize("model", list(models))
def test_a_narrow_model_computes_and_learns(model: str) -> None:
    module = build(model, "cifar10", 0.125, seed=1)
    assert sum(p.numel() for p in module.parameters()) == parameter_count(model, "cifar10", 0.125)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    logits = module(x)
    assert logits.shape == (4, 10)
    cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())
    assert sum(float(p.grad.abs().sum()) > 0 for p in module.parameters()) > len(list(module.parameters())) / 2  # fmt: skip


def test_width_scales_a_model() -> None:
    sizes = [parameter_count("cnn", "digits", width) for width in (0.5, 1.0, 2.0)]
    assert sizes == sorted(sizes)
    assert 3 < sizes[2] / sizes[1] < 4.5


def test_the_beginning_follows_from_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first, second, other = (build("cnn", "digits", 1.0, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_the_beginning_keeps_the_scale_of_signals() -> None:
    module = build("resnet18", "cifar10", 0.25, seed=1)
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2 and parameter.numel() > 1000:
            expected = (2 / parameter[0].numel()) ** 0.5
            assert float(parameter.detach().std()) == pytest.approx(expected, rel=0.1), name
        elif parameter.dim() == 1:
            assert set(parameter.tolist()) == {0.0 if name.endswith("bias") else 1.0}


def test_parameter_count_needs_no_memory() -> None:
    assert parameter_count("dnn", "mnist", 64.0) > 1_000_000_000


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"train\.model: unknown model 'resnet19'"):
        parameter_count("resnet19", "digits", 1.0)


def test_vgg19_refuses_small_images() -> None:
    with pytest.raises(InputError, match="at least 32 × 32 pixels"):
        build("vgg19", "digits", 1.0, seed=1)


def test_running_statistics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def normalised(inputs: object, classes: int, width: float) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, classes))

    monkeypatch.setitem(models._own, "normalised", normalised)
    with pytest.raises(InputError, match=r"buffer '0\.running_mean'.*GroupNorm"):
        build("normalised", "digits", 1.0, seed=1)


def test_every_model_fits_the_tasks_it_is_for() -> None:
    for task in ("digits", "synthetic", "cifar10"):
        for model in ("mlp", "dnn", "cnn", "resnet18"):
            module = build(model, task, 0.25, seed=1)
            with torch.no_grad():
                assert module(torch.zeros(2, *tasks.get(task).inputs)).shape == (2, 10)


def both_norms() -> tuple[BatchNorm, nn.BatchNorm2d]:
    """Ours, and PyTorch's with the same scales and shifts."""
    ours, theirs = BatchNorm(6), nn.BatchNorm2d(6, momentum=None)
    with torch.no_grad():
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            two.copy_(one.normal_(generator=torch.Generator().manual_seed(2)))
    return ours, theirs


def test_batches_are_normalised_by_their_own_statistics() -> None:
    ours, theirs = both_norms()
    batches = [torch.randn(4, 6, 3, 3) * scale + scale for scale in (1.0, 5.0)]
    for batch in batches:
        assert torch.equal(ours(batch), theirs(batch))
    assert torch.isfinite(ours(torch.randn(1, 6, 1, 1))).all(), "a block of one sample"
    measure_statistics(ours, batches)
    theirs.eval()
    some = torch.randn(5, 6, 3, 3)
    torch.testing.assert_close(
        ours(some), theirs(some), rtol=0.03, atol=0.03
    )  # variances by n or n − 1
    assert torch.equal(ours(some)[:1], ours(some[:1])), "one sample does not depend on the others"


def test_statistics_are_of_the_parameters_as_they_are() -> None:
    """They are measured anew."""
    module = build("resnet18-bn", "cifar10", 0.125, seed=1)
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    measure_statistics(module, [x])
    before = module(x)
    with torch.no_grad():
        next(module.parameters()).mul_(3.0)  # what normalisation takes back
    assert (module(x) - before).abs().max() > 0.1
    measure_statistics(module, [x])
    torch.testing.assert_close(module(x), before, rtol=0.01, atol=0.01)
    assert normalises_by_batch(module)
    assert not normalises_by_batch(build("resnet18", "cifar10", 0.125, seed=1))


def test_each_replica_has_the_statistics_of_its_own_samples() -> None:
    """Computed together or alone: shared replicas give every worker the gradient of its own batch."""
    module = build("resnet18-bn", "cifar10", 0.125, seed=1)
    named = {name: p.detach() for name, p in module.named_parameters()}
    x = torch.randn(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    y = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(torch.func.functional_call(module, parameters, (x,)), y)

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(named, x, y)
    for worker in range(2):
        alone = torch.func.grad(loss)(named, x[worker], y[worker])
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name][worker], gradient, rtol=1e-3, atol=1e-4)
