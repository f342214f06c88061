"""Stochastic gradient descent on a flat vector, as every replica applies it to the same mean gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from testbed.scenario.model import Optimizer

if TYPE_CHECKING:
    from torch import Tensor

_ALL = slice(None)


class Sgd:
    """g ← g + λ·x;  v ← μ·v + g;  x ← x − η·v (with Nesterov: x − η·(g + μ·v)); as ``torch.optim.SGD``.

    Products are rounded before they are added, never fused into one instruction, so that replicas stay
    equal bit by bit on different processors and accelerators.
    """

    def __init__(self, settings: Optimizer, parameters: Tensor) -> None:
        self._settings, self._parameters = settings, parameters
        self._velocity = parameters.new_zeros(parameters.shape) if settings.momentum else None
        self._scratch = parameters.new_empty(parameters.shape)

    @property
    def velocity(self) -> Tensor | None:
        """v, float32 (size,); None without momentum."""
        return self._velocity

    def apply(self, gradient: Tensor, epoch: int, place: slice = _ALL) -> None:
        """One step with ``gradient`` (float32 (size,), consumed) for the elements ``place``; ``epoch`` counts from 1."""
        settings, scratch = self._settings, self._scratch[place]
        parameters = self._parameters[place]
        if settings.weight_decay:
            gradient.add_(scratch.copy_(parameters).mul_(settings.weight_decay))
        direction = gradient
        if self._velocity is not None:
            velocity = self._velocity[place]
            velocity.mul_(settings.momentum).add_(gradient)
            direction = velocity
            if settings.nesterov:
                direction = gradient.add_(scratch.copy_(velocity).mul_(settings.momentum))
        rate = learning_rate(settings, epoch)
        parameters.sub_(scratch.copy_(direction).mul_(rate))


def learning_rate(settings: Optimizer, epoch: int) -> float:
    """η in ``epoch`` (counted from 1) under the schedule."""
    schedule = settings.schedule
    if schedule.name == "step":
        return float(settings.lr * schedule.gamma ** ((epoch - 1) // schedule.every))
    if schedule.name == "cosine":
        progress = min(epoch - 1, schedule.epochs) / schedule.epochs
        return settings.lr * (1 + math.cos(math.pi * progress)) / 2
    return settings.lr
