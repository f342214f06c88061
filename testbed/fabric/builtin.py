"""The fabrics that come with the package. Each is imported when it is asked for, with what it needs."""

from __future__ import annotations

from importlib import import_module

from testbed.errors import InputError
from testbed.fabric.base import Fabric, FabricClass, RunContext, fabrics

__all__ = ["fabrics"]

_FABRICS = {
    "netns": "testbed.fabric.netns:NetnsFabric",
    "docker": "testbed.fabric.docker.fabric:DockerFabric",
}


def _when_wanted(place: str) -> FabricClass:
    module, _, name = place.partition(":")

    def make(context: RunContext) -> Fabric:
        fabric: FabricClass = getattr(import_module(module), name)
        return fabric(context)

    return make


for _name, _place in _FABRICS.items():
    fabrics.add(_name, _when_wanted(_place))


def _no_processes(context: RunContext) -> Fabric:  # noqa: ARG001
    raise InputError(
        "the fabric 'sim' has neither processes nor links: `run` and `compare` can be carried out on it",
        where="--fabric",
        hint="Real links have 'netns' and 'docker'",
    )


fabrics.add("sim", _no_processes)
