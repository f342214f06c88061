"""PyTorch's gloo among the nodes of a run, bound to the data network: ``testbed.group.Group``.

Left to itself gloo takes the address that the host's name stands for, which may be the loopback's or the control
network's. Here it is given the interface that has the node's data address, and its rendezvous takes place there too.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from testbed.errors import NodeLost
from testbed.fabric.interface import carried, interface_of
from testbed.group import Carried

if TYPE_CHECKING:
    from torch import Tensor

_THREADS = 2
"""Operations that may be under way at a time; PyTorch's own default."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ``members`` (all of them, by rank) meet: at ``address`` and ``port`` of the first one.

    ``own``: this node's rank; ``own_address``: its data address. ``patience_s``: how long members are waited for;
    ``timeout_s``: how long an operation may take.
    """

    members: Sequence[str]
    own: int
    own_address: str
    address: str
    port: int
    patience_s: float
    timeout_s: float


class GlooGroup:
    """One node's membership. Raises NodeLost when the others do not come."""

    def __init__(self, meeting: Meeting, now: Callable[[], float]) -> None:
        self._meeting, self._now = meeting, now
        self._interface = interface_of(meeting.own_address)
        try:
            self._store: Any = _store(meeting)
            self._group: Any = self._join(self._store)
        except (RuntimeError, OSError) as error:  # DistError is a RuntimeError
            raise self._lost("cannot meet: ", error) from error
        self._before = carried(self._interface)

    def add_up(self, values: Tensor) -> Operation:
        """See ``testbed.group.Group``."""
        return self._begin(lambda: self._group.allreduce([values]))

    def gather(self, own: Tensor, everybodys: Tensor) -> Operation:
        """See ``testbed.group.Group``."""
        return self._begin(lambda: self._group._allgather_base(everybodys, own))

    def carried(self) -> Carried:
        """See ``testbed.group.Group``."""
        return carried(self._interface).since(self._before)

    def close(self) -> None:
        """See ``testbed.group.Group``."""
        self._group = self._store = None  # what they hold ends with them

    def _join(self, store: Any) -> Any:
        meeting, many = self._meeting, len(self._meeting.members)
        here = [f"here/{rank}" for rank in range(many)]
        store.set(here[meeting.own], "")
        store.wait(here, timedelta(seconds=meeting.patience_s))
        gloo: Any = dist.ProcessGroupGloo  # its options are not in PyTorch's type stubs
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=self._interface)]
        options._timeout = timedelta(seconds=meeting.timeout_s)
        options._threads = _THREADS
        return gloo(store, meeting.own, many, options)

    def _begin(self, action: Callable[[], Any]) -> Operation:
        try:
            return Operation(action(), self._now, self._lost)
        except RuntimeError as error:
            raise self._lost("", error) from error

    def _lost(self, prefix: str, error: Exception) -> NodeLost:
        """Gloo does not say whom: it may be any of the others."""
        members = self._meeting.members
        others = ", ".join(name for rank, name in enumerate(members) if rank != self._meeting.own)
        return NodeLost(others, None, f"gloo: {prefix}{_said(error)}")


class Operation:
    """One that is under way (``testbed.group.Pending``)."""

    def __init__(
        self, work: Any, now: Callable[[], float], lost: Callable[[str, Exception], NodeLost]
    ) -> None:
        self._work, self._now, self._lost = work, now, lost
        self._ended_s: float | None = None
        work.get_future().add_done_callback(self._end)

    def wait(self) -> float:
        """See ``testbed.group.Pending``."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._lost("", error) from error
        return self._now() if self._ended_s is None else self._ended_s

    def _end(self, _: Any) -> None:
        """In a thread of gloo's, as soon as it has ended."""
        self._ended_s = self._now()


def _store(meeting: Meeting) -> Any:
    """The first member's answers on its data address alone."""
    make: Any = dist.TCPStore  # type: ignore[attr-defined]
    patience, many = timedelta(seconds=meeting.patience_s), len(meeting.members)
    if meeting.own:
        return make(meeting.address, meeting.port, many, False, patience, wait_for_workers=False)
    listener = socket.create_server((meeting.address, meeting.port), backlog=128)
    return make(
        meeting.address, meeting.port, many, True, patience, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def _said(error: Exception) -> str:
    """What happened, without the place in its source and the advice that follows."""
    text = str(error).splitlines()[0].partition("] ")
    return (text[2] or text[0]).partition(". This is")[0]
