"""Loops with assertions in them must have something to go through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def not_empty(items: Iterable[T]) -> list[T]:
    """All of them, of which there is at least one."""
    found = list(items)
    assert found, "there is nothing to look at"
    return found
