"""Handwritten digits, 8 × 8 pixels: real data that comes with scikit-learn."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from testbed.train.tasks.base import Samples

_SPLIT = 20
"""Fixes which samples are for testing; not a setting, so that results stay comparable."""


class Digits:
    """1,797 digits of 43 writers (UCI ML hand-written digits), grey values scaled to 0-1.

    1,438 to learn from, 359 to test on, the same for everybody.
    """

    name = "digits"
    inputs = (1, 8, 8)
    classes = 10

    def __init__(self, data: Path | None = None) -> None:
        self._data = data  # needs no files; takes the argument like every task

    def train_set(self) -> Samples:
        """``x`` (1438, 1, 8, 8)."""
        return _part(test=False)

    def test_set(self) -> Samples:
        """``x`` (359, 1, 8, 8)."""
        return _part(test=True)


@cache
def _part(*, test: bool) -> Samples:
    """Read once however many nodes there are; nobody writes into it."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = list(range(len(digits.target)))
    Random(_SPLIT).shuffle(order)
    cut = len(order) // 5
    chosen = order[:cut] if test else order[cut:]
    x = torch.from_numpy(digits.images[chosen]).to(torch.float32).div_(16.0).unsqueeze(1)
    return x.contiguous(), torch.from_numpy(digits.target[chosen]).to(torch.int64)
