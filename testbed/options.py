"""Options of parts of an algorithm: frozen models, read from a scenario's keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.errors import InputError


class Options(BaseModel):
    """Base of all options: frozen, strict about types, no key that we do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=Options)


def read(part: str, model: type[Model], given: Mapping[str, Any]) -> Model:
    """``given`` as ``model``. Raises InputError that names every wrong option of ``part`` and lists the known ones."""
    try:
        return model(**given)
    except ValidationError as error:
        wrong = "; ".join(_complaint(detail) for detail in error.errors())
        known = ", ".join(
            f"{field.alias or name} ({field.default})" for name, field in model.model_fields.items()
        )
        hint = f"Options and their defaults: {known}" if known else "It has no options"
        raise InputError(f"{part}: {wrong}", hint=hint) from error


def _complaint(detail: Any) -> str:
    """One of pydantic's findings as a clause."""
    if detail["type"] == "extra_forbidden":
        return f"unknown option {detail['loc'][0]!r}"
    name = str(detail["loc"][0]) + ": " if detail["loc"] else ""
    reason = detail["msg"].removeprefix("Value error, ")
    return f"{name}{reason}" + (f", got {detail['input']!r}" if name else "")
