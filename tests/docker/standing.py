"""A fabric as tests hold it, and what the engine has of a run."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.fabric.base import Networks, RunContext, new_id
from testbed.fabric.docker.fabric import DockerFabric
from testbed.fabric.netns import run_tag
from testbed.journal import journals
from testbed.links.network.namespaces import NAMED
from testbed.topology import CONTROL_PORT, NodePlacement, NodeSpec, RackSpec

SPECS = [
    NodeSpec("server", "server", "server", 0, 0),
    NodeSpec("worker-0", "worker", "worker", 0, 1),
]
FOUR = [NodeSpec(f"worker-{n}", "worker", "worker", n, n) for n in range(4)]
CONNECTED_S = 60.0
"""Containers on a busy machine take as long as that to load Python."""


@dataclass
class Standing:
    """A fabric that was created and started. Its nodes have found a session that never speaks to them."""

    id: str
    fabric: DockerFabric
    networks: Networks
    places: dict[str, NodePlacement]

    def inside(self, node: str, *command: str, check: bool = True) -> str:
        """What ``command`` writes in a node's container."""
        name = f"narrows-{self.id}-{node}"
        done = subprocess.run(
            ["docker", "exec", name, *command], check=check, capture_output=True, text=True
        )
        return done.stdout.strip()


@contextmanager
def standing(
    folder: Path,
    specs: Sequence[NodeSpec] = SPECS,
    racks: Sequence[RackSpec] = (),
    *,
    multicast: bool = False,
) -> Iterator[Standing]:
    """Nothing of it may be left afterwards."""
    run = new_id()
    context = RunContext(run, folder / run, "a-token", quiet=True, multicast=multicast)
    fabric = DockerFabric(context)
    try:
        networks = fabric.create(list(specs), racks)
        # Without it they would end after half a minute. Who is connected hears signals.
        with ExitStack() as connected:
            session = socket.create_server((networks.control_host, CONTROL_PORT))
            connected.enter_context(session).settimeout(CONNECTED_S)
            made = Standing(run, fabric, networks, fabric.start())
            for _ in specs:
                connected.enter_context(session.accept()[0])
            yield made
    finally:
        fabric.destroy()
    assert_gone(run)


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


def assert_gone(run: str, patience_s: float = 10.0) -> None:
    """Wait until nothing is left of a run, on the host and in the engine; what others do meanwhile is theirs."""
    give_up = time.monotonic() + patience_s
    while left := everything(run):
        assert time.monotonic() < give_up, left
        time.sleep(0.1)


def everything(run: str) -> list[str]:
    """What a run has in the engine, its namespaces, its devices on the host, its journal."""
    tag = run_tag(run)
    names = [path.name for path in NAMED.glob(f"nw-{tag}-*")]
    names += [path.name for path in Path("/sys/class/net").glob(f"nw{tag[:6]}*")]
    names += [str(journal.path) for journal in journals() if journal.run == run]
    return names + left_of(run)
