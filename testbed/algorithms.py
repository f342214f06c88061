"""Algorithms are rows of data: what is sent, what is remembered, how much, and how it travels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to exchange gradients. Names in it are looked up in the registries."""

    name: str
    selector: str = "dense"
    memory: str = "none"
    controller: str = "fixed"
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the controller; ``fixed`` takes ``density``."""
    exchange: str = "ps"
    buckets: str = "whole"
    overlap: bool = False
