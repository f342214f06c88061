"""Checks of the options that selectors, value codings and memories are made with."""

from __future__ import annotations

from testbed.errors import InputError


def whole_number(name: str, value: object, least: int, most: int = 1_000_000_000) -> int:
    """Raises InputError unless it is an integer in [``least``, ``most``]."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name} {value!r} is not a whole number from {least} to {most}")
    return value


def yes_or_no(name: str, value: object) -> bool:
    """Raises InputError unless it is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} {value!r} is neither true nor false")
    return value
