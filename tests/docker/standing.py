"""A fabric as tests hold it, and what the engine has of a run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from testbed.fabric.base import Networks, NodeSpec, Place
from testbed.fabric.docker import DockerFabric

SPECS = [
    NodeSpec("server", "server", "server", 0, 0),
    NodeSpec("worker-0", "worker", "worker", 0, 1),
]


@dataclass
class Standing:
    """A fabric that was created and started. Its nodes look for a session that is not there."""

    id: str
    fabric: DockerFabric
    networks: Networks
    places: dict[str, Place]

    def inside(self, node: str, *command: str, check: bool = True) -> str:
        """What ``command`` writes in a node's container."""
        name = f"narrows-{self.id}-{node}"
        done = subprocess.run(
            ["docker", "exec", name, *command], check=check, capture_output=True, text=True
        )
        return done.stdout.strip()


def left_of(run: str) -> list[str]:
    """Names of the engine's objects that bear the run's label."""
    label = ["--filter", f"label=narrows.run={run}"]
    listings = [
        ["docker", "ps", "-a", "--format", "{{.Names}}", *label],
        ["docker", "network", "ls", "--format", "{{.Name}}", *label],
        ["docker", "volume", "ls", "--format", "{{.Name}}", *label],
    ]
    found = [subprocess.run(c, check=True, capture_output=True, text=True) for c in listings]
    return [name for done in found for name in done.stdout.split()]
