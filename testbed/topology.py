"""Nodes, racks, cables and interfaces, the ports on which nodes listen, and limits of a node's
processes and memory."""

from __future__ import annotations

import os
import resource
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

_KERNEL = Path("/proc/sys/kernel")
_FEWEST_PROCESSES, _MOST_PROCESSES = 4096, 16_384
_LEAST_MEMORY = 1 << 30
_GENEROUS = 2
"""A node may have so many times its share: not all need as much at the same time."""


@dataclass(frozen=True, slots=True)
class RequestedLimits:
    """Limits that a scenario asks for; None: generous. ``processes`` counts threads, too."""

    processes: int | None = None
    memory_bytes: int | None = None
    tmp_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a node. ``tmp_bytes`` is part of its memory."""

    processes: int
    memory_bytes: int
    tmp_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's resources to share out: processes and threads, and bytes of memory."""

    processes: int
    memory_bytes: int

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        numbers = [int((_KERNEL / name).read_text()) for name in ("pid_max", "threads-max")]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(min(numbers), memory)


def limits(requested: RequestedLimits, nodes: int, machine: Machine | None = None) -> Limits:
    """A node's limits, of which there are ``nodes``.

    By default twice its share of seven eighths of the memory (at least 1 GiB, and never more than
    seven eighths) and of half the processes (4,096 to 16,384); ``/tmp`` has half the node's memory.
    """
    shared = machine or Machine.here()
    most = shared.memory_bytes // 8 * 7
    memory = requested.memory_bytes or min(most, max(_LEAST_MEMORY, most * _GENEROUS // nodes))
    share = shared.processes // 2 * _GENEROUS // nodes
    processes = requested.processes or min(_MOST_PROCESSES, max(_FEWEST_PROCESSES, share))
    return Limits(processes, memory, requested.tmp_bytes or memory // 2)


def bound_by_rlimits(bounds: Limits, nodes: int, *, alone: bool) -> None:
    """Bound this process and what it starts where no control group can be made, as far as that
    goes. Raises OSError.

    Memory is bounded for each process by itself. ``alone``: this is a user namespace of the run's
    own (whose processes Linux counts by themselves from 5.14 on), or a user that only nodes have;
    ``nodes`` together are bounded in processes then, too.
    """
    _lower(resource.RLIMIT_DATA, bounds.memory_bytes)
    if alone:
        _lower(resource.RLIMIT_NPROC, bounds.processes * nodes)


def to_json(bounds: Limits) -> dict[str, int]:
    """For records: ``{"processes", "memory_bytes", "tmp_bytes"}``."""
    return asdict(bounds)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (least, least))


VIRTUAL = "sim"
"""The fabric that is a clock and a model."""

CONTROL_PORT = 7077
"""Where a run listens on its control network, at an address of its own."""

DATA_PORT = 7078
"""Where a server listens on the data network."""

GROUP_PORT = 7079
"""Where the first member of a process group answers the others, on its data address."""

MULTICAST_PORT = 7080
"""Where multicasts, and reports on them, arrive on the data network (UDP)."""

AGENT_PORT = 7076
"""Where links agents of other hosts connect to on the control network."""

METRICS_PORT = 9464
"""Where every node's Prometheus exporter answers, on its control address."""


NODE_ACTIONS_SOCKET = "\0narrows-node"
"""Where a task's first process takes requests: a name in the network of its node, not a file."""

TOKEN_FILE = Path("/run/secrets/token")
"""Where tasks of a swarm find the secret that they show on the control network."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as the scenario asks for it. ``peer``: its number in frames; server 0, workers 1…"""

    name: str
    group: str
    role: Literal["server", "worker", "host"]
    rank: int
    peer: int
    device: Literal["cpu", "cuda"] = "cpu"
    limits: RequestedLimits = field(default_factory=RequestedLimits)


@dataclass(frozen=True, slots=True)
class Interface:
    """A network device: ``netns`` is a path to its namespace (None: the agent's own)."""

    netns: str | None
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class RackSpec:
    """Nodes that share one link to the rest of the network; link id and name are the same."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cable:
    """The two ends of a link: ``up`` leaves ``nic`` (or a rack), ``down`` leaves ``port``."""

    nic: Interface
    port: Interface


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """A running node: addresses, its data NIC, and the switch-side peer of that NIC."""

    spec: NodeSpec
    data_address: str
    control_address: str
    nic: Interface
    port: Interface

    @property
    def cable(self) -> Cable:
        """Its access link."""
        return Cable(self.nic, self.port)
