"""Options of controllers: frozen models, read from a scenario's keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import InputError

Density = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of the elements to send."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability, or a weight between old and new."""


class Options(BaseModel):
    """Base of every controller's options: frozen, strict about types, no key that we do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def check_initial(initial_k: float, k_min: float, k_max: float) -> None:
    """For validators: raises ValueError where the first density is outside the limits."""
    if not k_min <= initial_k <= k_max:
        raise ValueError(f"initial_k {initial_k} is outside [k_min {k_min}, k_max {k_max}]")


Model = TypeVar("Model", bound=Options)


def read_options(controller: str, model: type[Model], given: Mapping[str, Any]) -> Model:
    """``given`` as ``model``. Raises InputError that names every wrong option and lists the known ones."""
    try:
        return model(**given)
    except ValidationError as error:
        wrong = "; ".join(_complaint(detail) for detail in error.errors())
        known = ", ".join(
            f"{field.alias or name} ({field.default})" for name, field in model.model_fields.items()
        )
        raise InputError(
            f"controller {controller!r}: {wrong}", hint=f"Options and their defaults: {known}"
        ) from error


def _complaint(detail: Any) -> str:
    """One of pydantic's findings as a clause."""
    if detail["type"] == "extra_forbidden":
        return f"unknown option {detail['loc'][0]!r}"
    name = str(detail["loc"][0]) + ": " if detail["loc"] else ""
    reason = detail["msg"].removeprefix("Value error, ")
    return f"{name}{reason}" + (f", got {detail['input']!r}" if name else "")
