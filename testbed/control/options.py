"""What options of controllers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.options import Model, Options, read

__all__ = ["Density", "Options", "Share", "check_initial", "read_options"]

Density = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of the elements to send."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability, or a weight between old and new."""


def check_initial(initial_k: float, k_min: float, k_max: float) -> None:
    """For validators: raises ValueError where the first density is outside the limits."""
    if not k_min <= initial_k <= k_max:
        raise ValueError(f"initial_k {initial_k} is outside [k_min {k_min}, k_max {k_max}]")


def read_options(controller: str, model: type[Model], given: Mapping[str, Any]) -> Model:
    """``given`` as ``model``. Raises InputError that names every wrong option and lists the known ones."""
    return read(f"controller {controller!r}", model, given)
