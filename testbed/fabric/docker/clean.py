"""Removing what a run left in the engine, from its journal."""

from __future__ import annotations

from typing import Any

from testbed.fabric.docker.objects import Objects
from testbed.links.journal import cleaners

KIND = "docker"
"""Of journal entries: ``{"kind": "docker", "run": <id>}`` stands for everything with that run's label."""


def clean(entry: dict[str, Any]) -> list[str]:
    """Remove what is left of the entry's run; returns what that was. Raises MachineError."""
    objects = Objects(str(entry["run"]))
    try:
        return objects.remove()
    finally:
        objects.close()


def register() -> None:
    """Make this known to whoever sweeps journals. Safe to call twice."""
    cleaners[KIND] = clean
