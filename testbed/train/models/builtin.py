"""The models that ship, by name, with the module that builds each."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from testbed.train.models.base import Inputs, models

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class _Later:
    """A builder whose module is imported when it is first called, because that loads torch."""

    module: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, inputs: Inputs, classes: int, width: float) -> nn.Module:
        builder = getattr(import_module(f"testbed.train.models.{self.module}"), self.function)
        built: nn.Module = builder(inputs, classes, width, **self.options)
        return built


def register() -> None:
    """Add every model of ours."""
    models.add("mlp", _Later("dense", "mlp"))
    models.add("dnn", _Later("dense", "dnn"))
    models.add("mlp12", _Later("dense", "mlp12"))
    models.add("cnn", _Later("convolutional", "cnn"))
    models.add("vgg19", _Later("convolutional", "vgg19"))
    models.add("resnet18", _Later("residual", "resnet", {"blocks": (2, 2, 2, 2)}))
    models.add("resnet34", _Later("residual", "resnet", {"blocks": (3, 4, 6, 3)}))
    models.add(
        "resnet50", _Later("residual", "resnet", {"blocks": (3, 4, 6, 3), "bottleneck": True})
    )
