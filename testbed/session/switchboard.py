"""Where nodes report: the session's end of the control network.

Every node's messages arrive in one queue. A closed connection or ``SILENCE_S`` without a sign of life is
the loss of that node, whatever its data connections do: an emulated outage is not a crash. Before it is
told to start it may be silent for ``PREPARING_S``. Whoever connects has to say who it is, soon, in few bytes, and from
that node's address where it is known.
"""

from __future__ import annotations

import hmac
import queue
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from testbed.errors import NodeLost, WireError
from testbed.exchange.doorway import GREETING_BYTES, Doorway
from testbed.links.namespaces import inside
from testbed.session.lines import MAX_LINE, Lines, check_said

SILENCE_S = 6.0
PREPARING_S = 60.0
"""A node that has not been told to start may be silent for so long: while it loads a library, none of its threads
may speak, and on a slow machine several nodes load at once. That its process ended is heard of all the same."""
HEARTBEAT_S = 1.0
UNREAD_S = 60.0
"""A node may leave what it is sent unread for so long, when the kernel has no room for more: as long as it may prepare."""
MOST_WAITING, MOST_WAITING_BYTES = 50_000, 64 << 20
"""Messages that may wait to be received, and bytes of their lines. Beyond them nodes are read no further until some have been:
their own sends block."""
_LOOK_S, _PAUSE_S = 0.5, 0.01
"""Between two looks for strangers that say nothing; after somebody could not be let in."""

Inbound = tuple[str, dict[str, Any]]
_Waiting = tuple[str, dict[str, Any], int]
"""The same with the bytes of its line."""


class Switchboard:
    """Accepts the nodes called ``names`` on ``address``; ``token`` is what a node must show.

    ``addresses``: where nodes connect from, by name, as far as that is known. ``netns``: the namespace to listen in.
    """

    def __init__(
        self,
        address: str,
        port: int,
        token: str,
        names: Iterable[str],
        addresses: Mapping[str, str] | None = None,
        netns: str | None = None,
    ) -> None:
        self.strangers = 0
        """Connections that were closed because whoever connected was no node of this run, or said nothing."""
        self._token, self._names, self._addresses = token, frozenset(names), addresses or {}
        self._counting = threading.Lock()
        with inside(netns):
            self._listener = socket.create_server((address, port), backlog=256)
        self._listener.settimeout(_LOOK_S)
        self._doorway: Doorway[Lines] = Doorway()
        self._nodes: dict[str, Lines] = {}
        self._heard: dict[str, float] = {}
        self._excused: set[str] = set()
        self._started: set[str] = set()
        self._inbox: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._closing, self._ended = False, threading.Event()
        self._looked = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, node: str, kind: str, **fields: Any) -> None:
        """Send to one node. Raises NodeLost when it is gone, or has not read for ``UNREAD_S``."""
        if kind == "start":
            self._started.add(node)
        try:
            self._nodes[node].send(kind, **fields)
        except TimeoutError as error:
            raise NodeLost(node, None, str(error)) from error
        except (OSError, KeyError) as error:
            raise NodeLost(node, None, "its control connection is closed") from error

    def receive(self, timeout_s: float) -> Inbound | None:
        """The next message as (node, message); None after ``timeout_s``.

        Raises NodeLost for a node that has gone or fallen silent; its step is for the caller to fill in.
        """
        if time.monotonic() - self._looked > HEARTBEAT_S:
            self._check_silence()  # also while others have much to say
        try:
            node, message, size = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            self._check_silence()
            return None
        with self._counting:
            self._waiting_bytes -= size
        if message["type"] == "lost":
            raise NodeLost(node, None, str(message["reason"]))
        return node, message

    def post(self, node: str, message: dict[str, Any]) -> None:
        """Put in a message as if ``node`` had sent it."""
        self._put(node, message)

    def excuse(self, node: str) -> None:
        """A paused node is silent, and not lost."""
        self._excused.add(node)

    def expect(self, node: str) -> None:
        """It goes on: from now on it must be heard of again."""
        self._heard[node] = time.monotonic()
        self._excused.discard(node)

    def dismiss(self, node: str) -> None:
        """A node is about to be killed: its end is no loss, and it may come back."""
        self._heard.pop(node, None)
        self._excused.discard(node)
        self._started.discard(node)
        self._nodes.pop(node, None)

    def connected(self) -> list[str]:
        """Names of the nodes that have said hello."""
        return sorted(self._nodes)

    def close(self) -> None:
        """Close the listener and every connection: nodes end when they see it."""
        self._closing = True
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stranger in self._doorway.all():
            stranger.shut()
        for lines in list(self._nodes.values()):
            lines.close()

    def _check_silence(self) -> None:
        now = self._looked = time.monotonic()
        for node, heard in list(self._heard.items()):
            most_s = SILENCE_S if node in self._started else PREPARING_S
            if now - heard > most_s and node not in self._excused:
                raise NodeLost(node, None, f"it gave no sign of life for {now - heard:.1f} s")

    def _accept(self) -> None:
        while not self._closing:
            for silent in self._doorway.overdue(time.monotonic()):
                silent.shut()
            try:
                accepted, (address, *_) = self._listener.accept()
                self._let_in(accepted, address)
            except TimeoutError:
                continue
            except (
                OSError,
                RuntimeError,
            ):  # the end, somebody who is gone again, or too many of them
                self._ended.wait(_PAUSE_S)

    def _let_in(self, accepted: socket.socket, address: str) -> None:
        """Raises OSError or RuntimeError where there is no socket or thread for it."""
        try:
            lines = Lines(accepted, GREETING_BYTES, UNREAD_S)
        except Exception:
            accepted.close()
            raise
        if (out := self._doorway.admit(lines, address, time.monotonic())) is not None:
            out.shut()
        try:
            threading.Thread(target=self._listen, args=(lines, address), daemon=True).start()
        except RuntimeError:
            self._doorway.leave(lines)
            lines.close()
            raise

    def _listen(self, lines: Lines, address: str) -> None:
        node, reason = None, "its process ended"
        try:
            for message in lines:
                if node is None:
                    node = self._admit(lines, message, address)
                    continue
                if self._nodes.get(node) is not lines:
                    continue  # dismissed: it is killed in a moment, and must not end by itself before
                self._heard[node] = time.monotonic()
                check_said(message)
                if message["type"] != "alive":
                    self._wait_for_room(node)
                    self._put(node, message, lines.line_bytes)
        except (OSError, WireError) as error:
            reason = str(error)
        self._doorway.leave(lines)
        if node is None and not self._closing:
            with self._counting:
                self.strangers += 1
        if node is not None and self._nodes.get(node) is lines and not self._closing:
            self._put(node, {"type": "lost", "reason": reason})
        lines.close()

    def _wait_for_room(self, node: str) -> None:
        """A node is no less alive while it is not read."""
        while self._is_full() and not self._ended.wait(_PAUSE_S):
            self._heard[node] = time.monotonic()

    def _is_full(self) -> bool:
        return self._inbox.qsize() >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES

    def _put(self, node: str, message: dict[str, Any], size: int = 0) -> None:
        with self._counting:
            self._waiting_bytes += size
        self._inbox.put((node, message, size))

    def _admit(self, lines: Lines, hello: dict[str, Any], address: str) -> str:
        """Raises WireError for whoever does not know the run's token, or comes from another node's place."""
        name, token = hello.get("node"), str(hello.get("token")).encode(errors="replace")
        if hello["type"] != "hello" or not hmac.compare_digest(token, self._token.encode()):
            raise WireError("a stranger on the control network")
        if not isinstance(name, str) or name not in self._names or name in self._nodes:
            raise WireError(f"node {name!r} is not expected, or here already")
        if address != self._addresses.get(name, address):
            raise WireError(f"{address} is not the address of node {name!r}")
        self._doorway.leave(lines)
        lines.most_bytes = MAX_LINE
        self._nodes[name] = lines
        self._heard[name] = time.monotonic()
        self._put(name, hello)
        return name
