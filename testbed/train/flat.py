"""A model's parameters and gradients, each as one contiguous vector."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from testbed.compress.layout import Layout

if TYPE_CHECKING:
    from torch import nn


class FlatModel:
    """``module`` on ``device``, its parameters and their gradients being views into two flat vectors.

    ``parameters``, ``gradients``: float32 (size,), contiguous, in the order of
    ``module.named_parameters()``. Nothing is allocated per step: backward adds into the views.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        named = list(module.named_parameters())
        self.module = module.to(device)
        self.size = sum(parameter.numel() for _, parameter in named)
        self.parameters = torch.empty(self.size, device=device)
        self.gradients = torch.zeros(self.size, device=device)
        self.layout = Layout.of((name, tuple(parameter.shape)) for name, parameter in named)
        for part, (_, parameter) in zip(self.layout, named, strict=True):
            offset, end = part.offset, part.offset + part.size
            place = self.parameters[offset:end].view(parameter.shape)
            place.copy_(parameter.detach())
            parameter.data = place
            parameter.grad = self.gradients[offset:end].view(parameter.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Logits float32 (batch, classes) for ``x`` (batch, *inputs)."""
        logits: Tensor = self.module(x)
        return logits


def parameter_hash(flat: Tensor) -> str:
    """32 hexadecimal digits that are equal exactly when all bits of ``flat`` (any device) are."""
    return blake2b(flat.detach().cpu().numpy().data, digest_size=16).hexdigest()
