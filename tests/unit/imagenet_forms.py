"""ResNet and VGG as they were published for 224 × 224 pixels: the forms whose operations and throughput are known."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

VGG16, VGG19 = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
RESNET50, RESNET152 = (3, 4, 6, 3), (3, 8, 36, 3)
RESNET18, RESNET34 = (2, 2, 2, 2), (3, 4, 6, 3)


def vgg(counts: tuple[int, ...]) -> nn.Module:
    """Configurations D and E of Simonyan and Zisserman 2015: without normalisation, three linear layers."""
    parts: list[nn.Module] = []
    channels = 3
    for wide, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        for _ in range(count):
            parts += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
            channels = wide
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def resnet(counts: tuple[int, ...], bottleneck: bool) -> nn.Module:
    """He et al. 2016, with the stride in the 3 × 3 convolution, as most frameworks have it."""
    channels = 64
    parts: list[nn.Module] = [*_normalised(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(counts):
        for index in range(count):
            stride = 2 if stage and not index else 1
            block = _Block(channels, 64 << stage, stride, bottleneck)
            parts.append(block)
            channels = block.channels
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class _Block(nn.Module):
    def __init__(self, channels: int, narrow: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.channels = narrow * 4 if bottleneck else narrow
        if bottleneck:
            layers = [
                *_normalised(channels, narrow, 1), nn.ReLU(),
                *_normalised(narrow, narrow, 3, stride), nn.ReLU(), *_normalised(narrow, self.channels, 1),
            ]  # fmt: skip
        else:
            layers = [
                *_normalised(channels, narrow, 3, stride),
                nn.ReLU(),
                *_normalised(narrow, narrow, 3),
            ]
        self.layers = nn.Sequential(*layers)
        same = channels == self.channels and stride == 1
        self.shortcut = nn.Sequential(
            *([] if same else _normalised(channels, self.channels, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.layers(x) + self.shortcut(x))


def _normalised(inside: int, outside: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outside, track_running_stats=False)]
