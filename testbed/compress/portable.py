"""Arrays in a state as tensors, so that ``torch.load`` reads a checkpoint without trusting its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def as_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of all arrays in ``state``, as tensors; everything else as it is."""
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


def as_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """What ``as_tensors`` was given."""
    return {
        name: value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }
