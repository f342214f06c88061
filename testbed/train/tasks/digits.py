"""Handwritten digits, 8 × 8 pixels: real data that comes with scikit-learn."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

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

    images, labels = _read()
    order = list(range(len(labels)))
    Random(_SPLIT).shuffle(order)
    cut = len(order) // 5
    chosen = order[:cut] if test else order[cut:]
    x = torch.from_numpy(images[chosen]).to(torch.float32).div_(16.0).unsqueeze(1)
    return x.contiguous(), torch.from_numpy(labels[chosen]).to(torch.int64)


def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All images (1797, 8, 8), 0 to 16, and labels (1797,): scikit-learn's file, read without importing the library,
    which takes over a second; by the library where the file is elsewhere."""
    found = importlib.util.find_spec("sklearn")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    file = Path(*folders[:1], "datasets", "data", "digits.csv.gz")
    if not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
