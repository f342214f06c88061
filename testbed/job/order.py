"""What is to be run in every node, and what its processes find in their environment. Pure.

Rank and world are told under the names that torchrun (``PET_…``), PyTorch, gloo, NCCL, TensorPipe and programs made for
Open MPI's ``mpirun`` read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Any

MASTER_PORT = 29500
"""Where the first process answers the others: PyTorch's own choice."""
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}")
"""What a job may be called."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command for all nodes that are not hosts. ``processes``: of each node; ``seconds``: the most, in wall time."""

    command: tuple[str, ...]
    name: str = "job"
    processes: int = 1
    await_begin: bool = False
    """The links' history starts when every process has called ``testbed.mark.begin``."""
    seconds: float | None = None
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables besides, the last of a name being the one that counts. Values may be secrets."""

    @property
    def launches(self) -> bool:
        """Whether the command starts a node's processes itself, as torchrun does."""
        if PurePath(self.command[0]).name == "torchrun":
            return True
        return any(
            first == "-m" and module in _LAUNCHERS for first, module in pairwise(self.command)
        )

    @property
    def started(self) -> int:
        """How many processes of a node are started by us."""
        return 1 if self.launches else self.processes

    def threads(self, processors: int, nodes: int) -> int:
        """With how many each process should compute, whoever starts it."""
        return max(1, processors // (nodes * self.processes))

    def to_json(self) -> dict[str, Any]:
        """What a manifest says of it, as the row of an algorithm: of variables their names alone."""
        row = {"name": self.name, "command": list(self.command), "nproc": self.processes}
        names = sorted(dict(self.environment))
        return {**row, "variables": names} if names else row


@dataclass(frozen=True, slots=True)
class Seat:
    """One process's place: ``nodes`` are all nodes' names, by rank; addresses and interface are the data network's."""

    nodes: Sequence[str]
    node_rank: int
    local_rank: int
    address: str
    master: str
    interface: str

    @property
    def node(self) -> str:
        """Its node's name."""
        return self.nodes[self.node_rank]


def variables(order: Order, seat: Seat, marks: str, threads: int) -> dict[str, str]:
    """The environment of the process in ``seat``. ``marks``: where ``testbed.mark`` finds its listener;
    ``threads``: that it should compute with."""
    return {
        **dict(_ranks(order, seat)),
        **_network(seat, alone=order.processes == 1),
        "NARROWS_NODE": seat.node,
        "NARROWS_ADDRESS": seat.address,
        "NARROWS_INTERFACE": seat.interface,
        "NARROWS_MARKS": marks,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **dict(order.environment),
    }


def _ranks(order: Order, seat: Seat) -> Iterator[tuple[str, str]]:
    nodes, each = len(seat.nodes), order.processes
    rank, world = seat.node_rank * each + seat.local_rank, nodes * each
    if order.launches:
        yield "PET_NNODES", str(nodes)
        yield "PET_NPROC_PER_NODE", str(each)
        yield "PET_NODE_RANK", str(seat.node_rank)
        yield "PET_MASTER_ADDR", seat.master
        yield "PET_MASTER_PORT", str(MASTER_PORT)
    for name, value in (
        ("RANK", rank),
        ("WORLD_SIZE", world),
        ("LOCAL_RANK", seat.local_rank),
        ("LOCAL_WORLD_SIZE", each),
    ):
        yield name, str(value)
        mpi = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
        yield f"OMPI_COMM_WORLD_{mpi.get(name, name)}", str(value)
    for name in ("NODE_RANK", "GROUP_RANK"):
        yield name, str(seat.node_rank)
    yield "MASTER_ADDR", seat.master
    yield "MASTER_PORT", str(MASTER_PORT)


def _network(seat: Seat, *, alone: bool) -> dict[str, str]:
    """Libraries left to themselves take the address of the host's name, or pass data through memory.

    ``alone``: a node's only process has nobody whom memory would be the right way to.
    """
    around = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"} if alone else {}
    return {
        **around,
        "GLOO_SOCKET_IFNAME": seat.interface,
        "TP_SOCKET_IFNAME": seat.interface,
        "NCCL_SOCKET_IFNAME": seat.interface,
        "NCCL_HOSTID": seat.node,  # nodes are hosts of their own, though they share one
        "NCCL_IB_DISABLE": "1",
    }
