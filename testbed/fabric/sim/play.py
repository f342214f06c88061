"""Roles on a virtual clock, from their preparation over the common start to their end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from testbed.fabric.sim.clock import Activity
from testbed.fabric.sim.network import VirtualNetwork
from testbed.train.roles import Role


def play(network: VirtualNetwork, roles: Mapping[str, Role]) -> dict[str, Any]:
    """Prepare all ``roles``, start them together, and return their summaries by name.

    t0 is the instant at which the last one is ready. Raises what the first failing role raised.
    """
    start = _Start(network, len(roles))

    def body(role: Role) -> Callable[[], dict[str, Any]]:
        def act() -> dict[str, Any]:
            role.prepare()
            start.wait()
            return role.run()

        return act

    bodies = {name: body(role) for name, role in roles.items()}
    return network.clock.run(bodies, owners={name: name for name in roles})


class _Start:
    """The barrier that makes t0."""

    def __init__(self, network: VirtualNetwork, count: int) -> None:
        self._network, self._missing = network, count
        self._ready: list[Activity] = []

    def wait(self) -> None:
        clock = self._network.clock
        self._missing -= 1
        if self._missing:
            self._ready.append(clock.current())
            clock.wait("the start of the run")
            return
        self._network.start()
        for activity in self._ready:
            clock.wake(activity)
