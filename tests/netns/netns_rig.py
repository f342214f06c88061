"""A run's namespaces without the nodes' processes, for tests."""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groups_rig import no_groups_left

from testbed.fabric.base import ExecEnvironment, Networks, RunContext, new_id
from testbed.fabric.netns import NetnsFabric
from testbed.links.agent.client import AgentClient, LinkReport
from testbed.links.agent.protocol import LinkSettings
from testbed.links.network import namespaces
from testbed.runner import bulk_flow
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.topology import NodePlacement, NodeSpec
from testbed.user_files import OpenedPath

MBIT = 1_000_000
STALL_LOOK_S = 0.002


@dataclass
class Rig:
    """A run's namespaces without the nodes' processes; flows are threads inside the namespaces."""

    fabric: NetnsFabric
    networks: Networks
    places: dict[str, NodePlacement]
    samples: list[dict[str, Any]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def agent(self) -> AgentClient:
        return self.fabric.agent

    def ends(self, *links: str) -> list[LinkDirection]:
        return [LinkDirection(link, way) for link in links or self.places for way in ("up", "down")]

    def prepare(self, shapes: Mapping[LinkDirection, LinkState], **settings: Any) -> dict[str, Any]:
        chosen = {"segments": 1, "congestion": "cubic", **settings}
        cables = {name: place.cable for name, place in self.places.items()}
        return self.agent.prepare(cables, shapes, LinkSettings(**chosen))

    def start(self, changes: list[LinkChange] | Iterator[LinkChange], lead_s: float = 0.5) -> int:
        t0 = time.monotonic_ns() + int(lead_s * 1e9)
        self.agent.start(t0, iter(changes))
        return t0

    def inside(self, netns: str | None, action: Callable[..., object], *arguments: object) -> None:
        def run() -> None:
            namespaces.enter(netns or "/proc/self/ns/net")
            action(*arguments)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)

    def fill(self, node: str, direction: str, stop_at_ns: int, port: int = 7078) -> None:
        """A bulk flow over one link direction."""
        place, switch = self.places[node], self.networks.switch_netns
        if direction == "up":
            address = self.networks.switch_address
            port += 1 + place.spec.peer
            self.inside(switch, bulk_flow.serve, address, port, stop_at_ns)
            self.inside(place.nic.netns, bulk_flow.blast, address, port, stop_at_ns)
        else:
            address = place.data_address
            self.inside(place.nic.netns, bulk_flow.serve, address, port, stop_at_ns)
            self.inside(switch, bulk_flow.blast, address, port, stop_at_ns)

    def wait(self, stop_at_ns: int) -> None:
        time.sleep(max(0.0, (stop_at_ns - time.monotonic_ns()) / 1e9))

    def stop(self) -> LinkReport:
        report = self.agent.stop()
        for thread in self.threads:
            thread.join(10)
        return report

    def tc(self, netns: str | None, *arguments: str) -> str:
        command = ["nsenter", f"--net={netns}", "tc", "-s", "-d", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Stalls:
    """For a ``with`` block: how long this machine lets a thread wait that only wants to wake up."""

    def __init__(self) -> None:
        self.worst_s, self.total_s = 0.0, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            asleep_s = time.monotonic()
            time.sleep(STALL_LOOK_S)
            waited_s = time.monotonic() - asleep_s - STALL_LOOK_S
            self.worst_s = max(self.worst_s, waited_s)
            self.total_s += waited_s if waited_s > STALL_LOOK_S else 0.0


def specs(workers: int = 1) -> list[NodeSpec]:
    nodes = [NodeSpec("server", "server", "server", 0, 0)]
    return nodes + [NodeSpec(f"worker-{n}", "worker", "worker", n, n + 1) for n in range(workers)]


def rate_of(bits: int, queue_s: float = 0.05) -> LinkState:
    return LinkState(bits, int(bits / 8 * queue_s))


def host_objects() -> dict[str, set[str]]:
    """What a test could leave behind on the host, but for what engines and other tests come and go with."""
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    names = {line.split(": ")[1].split("@")[0] for line in links.splitlines()}
    folder = namespaces.NAMED
    return {
        "links": {name for name in names if name.startswith("nw")},
        "namespaces": {path.name for path in folder.glob("nw-*")} if folder.exists() else set(),
    }


def make_rig(
    tmp_path: Path, workers: int = 1, *, staffed: bool = False, read: tuple[OpenedPath, ...] = ()
) -> Rig:
    """``staffed``: nodes can be started, which train nothing. ``read``: what nodes are shown besides."""
    exec_environment = None if staffed else ExecEnvironment(tmp_path, tmp_path, "0:0")
    context = RunContext(
        new_id(),
        tmp_path,
        secrets.token_hex(8),
        folders=read,
        exec_environment=exec_environment,
        trains=False,
    )
    fabric = NetnsFabric(context)
    nodes = specs(workers)
    try:
        networks = fabric.create(nodes)
    except BaseException:
        fabric.destroy()
        raise
    assert fabric._plan is not None
    rig = Rig(fabric, networks, fabric._places(fabric._plan))
    rig.agent.on_sample = rig.samples.extend
    return rig


@contextmanager
def standing(
    tmp_path: Path,
    state: Path,
    workers: int = 1,
    *,
    staffed: bool = False,
    read: tuple[OpenedPath, ...] = (),
) -> Iterator[Rig]:
    """A rig of which nothing may be left, nor of its journal in ``state``."""
    with no_groups_left():
        made = make_rig(tmp_path, workers, staffed=staffed, read=read)
        mine = names_of(made)
        try:
            yield made
        finally:
            made.fabric.destroy()
            assert_nothing_left(mine)
            assert not list(state.glob("*.journal"))


def names_of(made: Rig) -> list[str]:
    assert made.fabric.journal is not None
    return [entry["name"] for entry in made.fabric.journal.entries if "name" in entry]


def assert_nothing_left(names: list[str]) -> None:
    left = host_objects()
    assert not [name for name in names if name in left["links"] | left["namespaces"]]
