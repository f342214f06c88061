"""Nodes as containers, made by Docker Compose. ``DockerFabric`` is imported when it is asked
for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.fabric.docker.fabric import DockerFabric

__all__ = ["DockerFabric"]


def __getattr__(name: str) -> object:
    if name != "DockerFabric":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from testbed.fabric.docker.fabric import DockerFabric

    return DockerFabric
