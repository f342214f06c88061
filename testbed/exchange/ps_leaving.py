"""A parameter server whose workers leave and return while the run goes on.

Beside the frames of ``testbed.exchange.ps``: who leaves says so with an AWAY of the first step that it will miss, in the
place of its gradient, and gets nothing from then on. With a BACK it asks for the parameters; it gets them, as an UPDATE
of the step they are of, when the server has applied that, and takes part in the next.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.errors import WireError
from testbed.exchange.kinds import Peers
from testbed.exchange.ps import ParameterServer, ParameterServerHub
from testbed.node import Buffer, Kind, Message, Node


class LeavingWorker(ParameterServer):
    """A worker's side (``testbed.exchange.kinds.LeavingSide``)."""

    def leave(self, step: int) -> None:
        """Say that nothing comes of ``step`` and those after it."""
        self._send(self._peers.servers[0], Kind.AWAY, step, 0, b"")

    def come_back(self, step: int) -> Message:
        """See ``LeavingSide``."""
        self._send(self._peers.servers[0], Kind.BACK, step, 0, b"")
        while (message := self._receive(step)).kind is Kind.BYE:
            self._last_step = message.step
        if message.kind is not Kind.UPDATE or message.step < step:
            raise WireError(
                f"{self._peers.names[message.sender]} sent {message.kind.name} of step {message.step} "
                f"where parameters of step {step} or later were asked for"
            )
        return message


class LeavingHub(ParameterServerHub):
    """The server's side. ``state``: gives what a returning worker is sent, as the last step has left it."""

    def __init__(self, node: Node, peers: Peers) -> None:
        super().__init__(node, peers)
        self.state: Callable[[], Buffer] = bytes
        self._away: set[int] = set()
        self._back: list[int] = []
        self._ended: int | None = None

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The GRADIENT of everyone who is there, by rank."""
        timeout_s = self._peers.timeout_s
        return self._collect(Kind.GRADIENT, step, bucket, timeout_s, self._receivers())

    def welcome_back(self, step: int, *, last: bool) -> None:
        """Send the parameters, which are those of ``step``, to whoever has asked for them."""
        returning, self._back = self._back, []
        if not returning:
            return
        self._away.difference_update(returning)
        if last:
            self._post(returning, Kind.BYE, step, 0, b"")
        self._post(returning, Kind.UPDATE, step, 0, self.state())

    def farewell(self, step: int) -> None:
        """See ``ParameterServerHub``; those who are away are told when they return."""
        self._ended = step
        self._collect(Kind.BYE, step, 0, self._peers.timeout_s + self._peers.away_s)

    def _receivers(self) -> list[int]:
        return [peer for peer in self._peers.workers if peer not in self._away]

    def _moved(
        self, message: Message, step: int, missing: dict[int, None], waiting: dict[int, None]
    ) -> bool:
        sender = message.sender
        if message.kind is Kind.AWAY and message.step == step and sender in missing:
            del missing[sender]
            self._away.add(sender)
            return True
        if message.kind is not Kind.BACK or sender not in self._away:
            return False
        self._back.append(sender)
        waiting[sender] = None
        if self._ended is not None:
            self.welcome_back(self._ended, last=True)
        return True
