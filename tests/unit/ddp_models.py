"""Small models for training by DistributedDataParallel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = (3, 8, 8)
CLASSES = 5


def wide() -> nn.Module:
    """Four layers, 3 kB to 300 kB."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 300), nn.ReLU(),
        nn.Linear(300, 250), nn.ReLU(),
        nn.Linear(250, 40), nn.ReLU(),
        nn.Linear(40, CLASSES),
    )  # fmt: skip


def convolutional() -> nn.Module:
    """Kernels whose elements lie in memory by channel last."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, CLASSES),
    ).to(memory_format=torch.channels_last)  # fmt: skip


class Branching(nn.Module):
    """One of two last layers is used, as ``right`` says."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU())
        self.left, self.right = nn.Linear(32, CLASSES), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, right: bool) -> Tensor:
        return (self.right if right else self.left)(self.body(x))


class Mixed(nn.Module):
    """A layer in bfloat16, and one in float32: DistributedDataParallel keeps their gradients apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(192, 50, dtype=torch.bfloat16)
        self.second = nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(1).bfloat16()).float().relu())


MODELS = {"wide": wide, "convolutional": convolutional, "branching": Branching, "mixed": Mixed}


def made(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(5)
    return MODELS[model]().to(device, dtype)


def batch(
    step: int, rank: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Sixteen images with a class that can be learned."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    y = torch.randint(CLASSES, (16,), generator=generator)
    x = torch.randn(16, *IMAGE, generator=generator)
    x[torch.arange(16), 0, 0, y] += 3.0
    return x.to(device, dtype), y.to(device)
