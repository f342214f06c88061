"""Flat vectors of parameters and gradients, and the optimizer that acts on them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from testbed.scenario.model import Optimizer, ScheduleModel
from testbed.training.models.base import build
from testbed.training.replica import FlatModel, Sgd, learning_rate, parameter_hash

torch.set_num_threads(1)
CPU = torch.device("cpu")


def backward(flat: FlatModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(16, 1, 8, 8, generator=generator)
    y = torch.randint(10, (16,), generator=generator)
    flat.gradients.zero_()
    cross_entropy(flat.forward(x), y).backward()


def test_gradients_arrive_in_the_flat_vector_step_after_step() -> None:
    flat = FlatModel(build("cnn", "digits", 1.0, seed=1), CPU)
    places = [flat.gradients.data_ptr(), flat.parameters.data_ptr()]
    for step in range(3):
        backward(flat, step)
        separate = torch.cat([p.grad.flatten() for p in flat.module.parameters()])
        assert float(separate.abs().sum()) > 0
        assert torch.equal(separate, flat.gradients)
        flat.parameters.sub_(flat.gradients)
        parameters = torch.cat([p.detach().flatten() for p in flat.module.parameters()])
        assert torch.equal(parameters, flat.parameters)
    inside = {p.grad.untyped_storage().data_ptr() for p in flat.module.parameters()}
    assert inside == {flat.gradients.untyped_storage().data_ptr()}
    assert [flat.gradients.data_ptr(), flat.parameters.data_ptr()] == places


def test_the_layout_names_every_parameter_with_its_place_and_shape() -> None:
    flat = FlatModel(build("mlp", "digits", 1.0, seed=1), CPU)
    assert [(part.name, part.offset, part.shape) for part in flat.layout] == [
        ("1.weight", 0, (128, 64)),
        ("1.bias", 8192, (128,)),
        ("3.weight", 8320, (10, 128)),
        ("3.bias", 9600, (10,)),
    ]
    assert flat.size == flat.layout.size == 9610
    assert flat.layout.at(8191).name == "1.weight"
    assert flat.layout.at(8192).name == "1.bias"


def test_flattening_keeps_the_model() -> None:
    module, same = build("cnn", "digits", 1.0, seed=4), build("cnn", "digits", 1.0, seed=4)
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(FlatModel(module, CPU).forward(x), same(x))


def test_a_hash_tells_any_difference() -> None:
    flat = torch.arange(1000, dtype=torch.float32)
    same, other = flat.clone(), flat.clone()
    other[500] = torch.nextafter(other[500], torch.tensor(1e9))
    assert parameter_hash(flat) == parameter_hash(same) != parameter_hash(other)
    assert len(parameter_hash(flat)) == 32
    assert parameter_hash(torch.tensor([0.0])) != parameter_hash(torch.tensor([-0.0]))


@pytest.mark.parametrize(
    "settings",
    [
        Optimizer(lr=0.1),
        Optimizer(lr=0.05, momentum=0.9),
        Optimizer(lr=0.05, momentum=0.9, nesterov=True),
        Optimizer(lr=0.1, weight_decay=5e-2),
        Optimizer(lr=0.02, momentum=0.8, nesterov=True, weight_decay=1e-2),
    ],
)
def test_steps_are_those_of_torch(settings: Optimizer) -> None:
    ours = FlatModel(build("cnn", "digits", 0.5, seed=1), CPU)
    theirs = FlatModel(build("cnn", "digits", 0.5, seed=1), CPU)
    optimizer = Sgd(settings, ours.parameters)
    reference = torch.optim.SGD(
        theirs.module.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )
    for step in range(20):
        backward(theirs, step)
        # not computed twice: where two pixels are nearly as bright, a last bit decides which one counts
        ours.gradients.copy_(theirs.gradients)
        optimizer.apply(ours.gradients, epoch=1)
        reference.step()
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-5, atol=1e-6)


def test_a_step_allocates_nothing_that_lasts() -> None:
    parameters = torch.ones(100)
    optimizer = Sgd(Optimizer(lr=0.5, momentum=0.5, weight_decay=0.1), parameters)
    place = parameters.data_ptr()
    optimizer.apply(torch.ones(100), epoch=1)
    assert parameters.data_ptr() == place
    assert parameters[0] == pytest.approx(1 - 0.5 * 1.1)


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (
            ScheduleModel(name="step", every=3, gamma=0.5),
            lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
        ),
        (
            ScheduleModel(name="cosine", epochs=8),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
        ),
        (ScheduleModel(), lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0)),
    ],
)
def test_schedules_are_those_of_torch(schedule: ScheduleModel, make) -> None:  # type: ignore[no-untyped-def]
    settings = Optimizer(lr=0.4, schedule=schedule)
    reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler = make(reference)
    for epoch in range(1, 9):
        assert learning_rate(settings, epoch) == pytest.approx(reference.param_groups[0]["lr"])
        reference.step()
        scheduler.step()


def test_cosine_stays_at_its_end() -> None:
    settings = Optimizer(lr=0.4, schedule=ScheduleModel(name="cosine", epochs=8))
    assert learning_rate(settings, 9) == learning_rate(settings, 20) == pytest.approx(0.0)
