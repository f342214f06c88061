"""The tasks that need no files, and how workers share their samples."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from testbed.errors import InputError
from testbed.scenario.model import Train
from testbed.training.data import Batches, derive, on_device, open_task, subset
from testbed.training.models.base import build
from testbed.training.tasks.base import tasks
from testbed.training.tasks.datasets import _signals

torch.set_num_threads(1)


def test_names_are_known_without_torch() -> None:
    code = (
        "import sys; from testbed.training.tasks.base import tasks; from testbed.training.models.base import models;"
        "assert 'digits' in tasks and 'resnet50' in models;"
        "tasks.get('cifar10').inputs;"
        "assert not {'torch', 'sklearn', 'mnist1d'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_task_tells_its_shape() -> None:
    for name in (
        "cifar10",
        "cifar100",
        "digits",
        "mnist",
        "mnist1d",
        "synthetic",
        "synthetic-cifar",
    ):
        task = tasks.get(name)
        assert task.name == name
        assert len(task.inputs) == 3
        assert task.classes in (10, 100)


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"train\.task: unknown task 'digit'.*Did you mean 'digits'"
    ):
        open_task(Train(task="digit"))


@pytest.mark.parametrize("name", ["digits", "mnist1d", "synthetic", "synthetic-cifar"])
def test_samples_are_what_the_task_promises(name: str) -> None:
    task = open_task(Train(task=name))
    shape = tasks.get(name)
    for x, y in (task.train_set(), task.test_set()):
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert x.shape == (len(y), *shape.inputs)
        assert x.is_contiguous()
        assert torch.isfinite(x).all()
        assert set(y.tolist()) == set(range(shape.classes))


def test_digits_are_split_once_and_for_all() -> None:
    task = open_task(Train(task="digits"))
    (x, y), (test_x, test_y) = task.train_set(), task.test_set()
    assert (len(y), len(test_y)) == (1438, 359)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    seen = {sample.numpy().tobytes() for sample in x}
    assert sum(sample.numpy().tobytes() in seen for sample in test_x) == 0
    assert torch.equal(x, open_task(Train(task="digits")).train_set()[0])


def test_mnist1d_is_the_published_one_with_more_to_test_on() -> None:
    """Figures of the file that its authors published."""
    task = open_task(Train(task="mnist1d"))
    (x, y), (test_x, test_y) = task.train_set(), task.test_set()
    assert (len(y), len(test_y)) == (4000, 10_000)
    assert y[:10].tolist() == [2, 6, 4, 5, 6, 6, 6, 0, 3, 1]
    assert x[0, 0, 0, :3].tolist() == pytest.approx([-0.332006, -0.471910, -0.778697], abs=1e-6)
    assert test_y[:10].tolist() == [2, 6, 3, 9, 4, 3, 1, 9, 5, 2]
    assert test_x[0, 0, 0, :3].tolist() == pytest.approx(
        [-0.078771, -0.210732, -0.091751], abs=1e-6
    )
    seen = {sample.numpy().tobytes() for sample in [*x, *test_x]}
    assert len(seen) == 14_000, "no sample twice"
    assert abs(float(test_x[1000:].std()) - float(test_x[:1000].std())) < 0.03


def test_mnist1d_leaves_the_global_generators_as_they_were() -> None:
    random.seed(7)
    np.random.seed(7)
    wanted = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    assert len(_signals(3, num_samples=20)["y"]) == 16
    assert (random.random(), np.random.random()) == wanted


@pytest.mark.parametrize("model", ["mlp", "dnn", "mlp12", "cnn", "resnet18"])
def test_models_take_mnist1d(model: str) -> None:
    x, _ = open_task(Train(task="mnist1d")).test_set()
    assert build(model, "mnist1d", 0.25, 1)(x[:2]).shape == (2, 10)


def test_synthetic_can_be_learned_but_not_by_heart() -> None:
    task = open_task(Train(task="synthetic"))
    (x, y), (test_x, test_y) = task.train_set(), task.test_set()
    assert len(test_y) >= 20_000
    assert abs(float(x.mean())) < 0.1
    assert 0.9 < float(x.std()) < 1.1
    # a linear classifier by least squares: far above chance, far from perfect, and better at home
    targets = torch.nn.functional.one_hot(y, 10).float()
    weights = torch.linalg.lstsq(x.flatten(1), targets).solution
    train = float(((x.flatten(1) @ weights).argmax(1) == y).float().mean())
    test = float(((test_x.flatten(1) @ weights).argmax(1) == test_y).float().mean())
    assert 0.3 < test < 0.95
    assert train > test + 0.02


def test_synthetic_is_the_same_every_time() -> None:
    first, second = (open_task(Train(task="synthetic")).test_set() for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_workers_never_share_a_sample_in_an_epoch() -> None:
    batches = [Batches(1000, 32, 4, seed=3) for _ in range(4)]
    steps = batches[0].steps_per_epoch
    assert steps == 7
    seen = [
        index
        for step in range(1, steps + 1)
        for rank in range(4)
        for index in batches[rank].indices(step, rank).tolist()
    ]
    assert len(seen) == len(set(seen)) == 7 * 128
    assert set(seen) <= set(range(1000))


def test_batches_follow_from_seed_epoch_step_and_rank() -> None:
    one, two = Batches(1000, 32, 4, seed=3), Batches(1000, 32, 4, seed=3)
    two.indices(40, 1)
    assert torch.equal(one.indices(9, 2), two.indices(9, 2))
    different = [Batches(1000, 32, 4, seed=4).indices(9, 2), one.indices(9, 3), one.indices(2, 2)]
    assert all(not torch.equal(one.indices(9, 2), other) for other in different)


def test_epochs_count_from_one() -> None:
    batches = Batches(100, 10, 2, seed=1)
    assert [batches.epoch(step) for step in (1, 5, 6, 10, 11)] == [1, 1, 2, 2, 3]
    assert [step for step in range(1, 12) if batches.ends_epoch(step)] == [5, 10]


def test_a_training_set_too_small_for_one_step_is_refused() -> None:
    with pytest.raises(InputError, match=r"need 128 samples a step, the training set has 100.*25"):
        Batches(100, 32, 4, seed=1)


def test_samples_of_the_wrong_type_are_refused() -> None:
    x, y = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    for wrong in ((x.double(), y), (x, y.int()), (x[0], y), (x, y[:3]), (x[:0], y[:0])):
        with pytest.raises(InputError):
            on_device(wrong, torch.device("cpu"), "train.task")


def test_a_subset_is_always_the_same() -> None:
    x, y = torch.arange(50.0).view(50, 1, 1, 1), torch.arange(50)
    first, second = subset((x, y), 20), subset((x, y), 20)
    assert len(set(first[1].tolist())) == 20
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[0].flatten().long(), first[1])
    assert subset((x, y), 50)[1] is y


def test_a_subset_of_samples_in_order_of_their_labels_has_all_labels_alike() -> None:
    y = torch.arange(10).repeat_interleave(100)
    x = y.float().view(-1, 1, 1, 1)
    chosen, labels = subset((x, y), 300)
    assert torch.equal(chosen.flatten().long(), labels)
    assert all(15 < count < 45 for count in torch.bincount(labels, minlength=10).tolist())


def test_derived_seeds_differ_by_purpose() -> None:
    seeds = {derive(1, "a"), derive(2, "a"), derive(1, "b"), derive(1, "a", 1), derive(11, "a")}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, "a") == derive(1, "a")
