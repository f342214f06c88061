"""Models by name, with the module that builds each, and one way to initialise them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from testbed.errors import InputError
from testbed.registry import Registry
from testbed.training.data import derive
from testbed.training.tasks.base import tasks

if TYPE_CHECKING:
    from torch import nn


Inputs = tuple[int, int, int]


class ModelBuilder(Protocol):
    """How a model is made. It maps (batch, *inputs) float32 to logits (batch, classes). It is
    called with torch's default device ``meta``: shapes only, nothing is drawn or allocated."""

    def __call__(self, inputs: Inputs, classes: int, width: float) -> nn.Module:
        """The model; ``width`` is the factor on its numbers of channels or hidden units."""
        ...


models: Registry[ModelBuilder] = Registry("model", "narrows.models")


def build(model: str, task: str, width: float, seed: int) -> nn.Module:
    """The model with its initial parameters: float32, on the CPU, the same on every node. Raises
    InputError when it does not fit the task, or keeps state that replicas would not share."""
    module = _allocated(outline(model, task, width))
    _initialise(module, derive(seed, "parameters"))
    return module


def parameter_count(model: str, task: str, width: float) -> int:
    """Number of parameters, without allocating them."""
    return sum(parameter.numel() for parameter in outline(model, task, width).parameters())


def outline(model: str, task: str, width: float) -> nn.Module:
    """The model without contents, on torch's device ``meta``. Raises InputError as ``build``."""
    import torch

    shape = tasks.get(task, where="train.task")
    builder = models.get(model, where="train.model")
    with torch.device("meta"):
        module = builder(shape.inputs, shape.classes, width)
    for name, _ in module.named_buffers():
        raise InputError(
            f"model {model!r} has the buffer {name!r}, which no exchange keeps equal on all "
            "replicas",
            where="train.model",
            hint="Use a normalisation without running statistics, such as GroupNorm, or "
            "testbed.training.models.architectures.BatchNorm",
        )
    return module


def _allocated(module: nn.Module) -> nn.Module:
    """A module on ``meta`` with room for its parameters on the CPU; those that are one stay one.
    ``to_empty`` does this, too, but imports PyTorch's symbolic shapes, which takes a second."""
    import torch
    from torch import nn

    rooms: dict[int, nn.Parameter] = {}
    for parameter in module.parameters():
        room = torch.empty(parameter.shape, dtype=parameter.dtype)
        rooms[id(parameter)] = nn.Parameter(room, requires_grad=parameter.requires_grad)
    state = module.state_dict(keep_vars=True)
    module.load_state_dict({name: rooms[id(value)] for name, value in state.items()}, assign=True)
    return module


def _initialise(module: nn.Module, seed: int) -> None:
    """He's normal initialisation for matrices and kernels (He et al. 2015), scales 1, biases 0."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2:
                fan_in = parameter[0].numel()
                parameter.normal_(0.0, (2.0 / fan_in) ** 0.5, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


@dataclass(frozen=True, slots=True)
class _Later:
    """A builder whose module is imported when it is first called, because that loads torch."""

    function: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, inputs: Inputs, classes: int, width: float) -> nn.Module:
        builder = getattr(import_module("testbed.training.models.architectures"), self.function)
        built: nn.Module = builder(inputs, classes, width, **self.options)
        return built


def register() -> None:
    """Add every model of ours."""
    for name in ("mlp", "dnn", "mlp12", "cnn"):
        models.add(name, _Later(name))
    normalised: dict[str, tuple[str, dict[str, Any]]] = {
        "vgg19": ("vgg19", {}),
        "resnet18": ("resnet", {"blocks": (2, 2, 2, 2)}),
        "resnet34": ("resnet", {"blocks": (3, 4, 6, 3)}),
        "resnet50": ("resnet", {"blocks": (3, 4, 6, 3), "bottleneck": True}),
    }
    for name, (function, options) in normalised.items():
        models.add(name, _Later(function, options))
        models.add(f"{name}-bn", _Later(function, {**options, "by_batch": True}))
