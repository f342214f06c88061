"""Making a profile: of a model on this machine, or for an accelerator that is not here."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from testbed.record.machine import cpu_model
from testbed.scenario.model import Train
from testbed.session.profiled import layers_of
from testbed.train.profile import Profile
from testbed.train.profile_file import ProfileFile, file_of
from testbed.train.tasks import tasks

if TYPE_CHECKING:
    import torch

    from testbed.train.flat import FlatModel


def measured_file(train: Train, device: str, threads: int, passes: int) -> ProfileFile:
    """Of random samples: what they show does not matter. Raises MachineError without that device."""
    import torch

    from testbed.train.device import settle
    from testbed.train.flat import FlatModel
    from testbed.train.models import build
    from testbed.train.profile_measured import WARM_UP, measure

    flat = FlatModel(build(train.model, train.task, train.width, 0), settle(device, threads))
    step = _Step(flat, *_samples(train, flat.parameters.device))
    about = f"median of {passes} passes after {WARM_UP} to warm up, PyTorch {torch.__version__}"
    found = measure(flat, step, perf_counter, passes=passes, about=about)
    return _file(train, found, _device(device, threads))


def estimated_file(train: Train, accelerator: str) -> ProfileFile:
    """Raises InputError for an accelerator that is not known."""
    from testbed.train.models import outline
    from testbed.train.profile_estimated import accelerator_of, estimate

    its = accelerator_of(accelerator)
    module = outline(train.model, train.task, train.width)
    shape = tasks.get(train.task, where="train.task").inputs
    return _file(train, estimate(module, shape, train.batch, its), its.name)


class _Step:
    """One forward and backward pass over the same samples."""

    def __init__(self, flat: FlatModel, x: torch.Tensor, y: torch.Tensor) -> None:
        self._flat, self._x, self._y = flat, x, y

    def __call__(self) -> None:
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(self._flat.forward(self._x), self._y)
        loss.backward()  # type: ignore[no-untyped-call]


def _samples(train: Train, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    task, generator = tasks.get(train.task, where="train.task"), torch.Generator().manual_seed(0)
    x = torch.randn((train.batch, *task.inputs), generator=generator)
    y = torch.randint(task.classes, (train.batch,), generator=generator)
    return x.to(device), y.to(device)


def _file(train: Train, found: Profile, device: str) -> ProfileFile:
    sizes = {layer.name: layer.end - layer.begin for layer in layers_of(train)}
    return file_of(
        found, sizes, device=device, model=train.model, task=train.task, width=train.width, batch=train.batch,
    )  # fmt: skip


def _device(device: str, threads: int) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return f"{threads} thread{'s' * (threads > 1)} of {cpu_model() or 'a processor'}"
