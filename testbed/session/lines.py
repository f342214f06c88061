"""JSON objects over a socket, one a line: the control network's whole protocol.

From a node: hello {node, token, pid}, up, ready, event {event}, burst {record}, done {summary, counters}, ended,
             error {…}, alive.
To a node:   job {job, peers, traffic, …}, start {t0_ns}, end, link {sample}, flow {…}, keep.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from testbed.errors import WireError

MAX_LINE = 16 << 20
"""Longest line in bytes that is accepted."""
_Needs = dict[str, type | tuple[type, ...]]
_SAYS: dict[str, _Needs] = {
    "hello": {}, "up": {}, "ready": {}, "alive": {}, "event": {"event": dict}, "burst": {"record": dict},
    "done": {"summary": dict}, "ended": {"part": str}, "error": {"message": str, "exit_code": int},
}  # fmt: skip
"""By type of a node's message: what it has at least."""
_NUMBER = (int, type(None))
_EVENTS: dict[str, _Needs] = {
    "lost": {"lost": str, "step": _NUMBER, "reason": str},
    "step": {"step": int},
}
_NODE_LOST: _Needs = {"node": str, "step": _NUMBER}


def check_said(message: dict[str, Any]) -> None:
    """Raise WireError for what no node of ours says."""
    kind = message["type"]
    if kind not in _SAYS:
        raise WireError(f"no node says {kind[:40]!r}")
    _check(message, _SAYS[kind], kind)
    if kind == "event":
        event = message["event"]
        _check(event, {"kind": str}, kind)
        _check(event, {"step": _NUMBER, **_EVENTS.get(event["kind"], {})}, event["kind"])
    if message.get("error") == "NodeLost":
        _check(message, _NODE_LOST, kind)


def _check(fields: dict[str, Any], needs: _Needs, kind: str) -> None:
    for name, types in needs.items():
        value = fields.get(name)
        if not isinstance(value, types) or isinstance(value, bool):
            raise WireError(f"no {name!r} that can be used in {kind[:40]!r}, as a node says it")


class Lines:
    """A connected socket that speaks in lines; sending is safe from any thread. ``most_bytes``: of a line that comes.

    ``patience_s``: how long the other side may read nothing of a line that is sent; None: for ever.
    """

    def __init__(
        self, connected: socket.socket, most_bytes: int = MAX_LINE, patience_s: float | None = None
    ) -> None:
        self.socket, self.most_bytes, self._patience_s = connected, most_bytes, patience_s
        self.line_bytes = 0
        """Size of the line that came last."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = connected.makefile("rb")
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Send one object; raises OSError when the other side is gone, TimeoutError when it does not read.

        Nothing can be sent after that: part of a line is out.
        """
        line = json.dumps({"type": kind, **fields}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._patience_s is None:
                self.socket.sendall(line)
            else:
                self._send_soon(line, self._patience_s)

    def _send_soon(self, line: bytes, patience_s: float) -> None:
        """The socket itself has no time limit: whoever reads from it waits for as long as there is nothing to say."""
        rest = memoryview(line)
        give_up = time.monotonic() + patience_s
        while rest:
            try:
                rest = rest[self.socket.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if time.monotonic() > give_up:
                    self.shut()
                    raise TimeoutError(f"it has not read for {patience_s:g} s") from None
                with suppress(ValueError):  # closed here meanwhile: the next try says so
                    room = select.poll()
                    room.register(self.socket, select.POLLOUT)
                    room.poll(max(1.0, 1000 * (give_up - time.monotonic())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Objects as they come, until the other side closes. Raises WireError for anything else."""
        while line := self._line():
            self.line_bytes = len(line)
            if len(line) >= self.most_bytes and not line.endswith(b"\n"):
                raise WireError(
                    f"a line of more than {self.most_bytes} bytes on the control network"
                )
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise WireError(f"not a line of JSON on the control network: {error}") from error
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise WireError("a control message is an object with a 'type'")
            yield message

    def _line(self) -> bytes:
        """The next line; nothing once the connection is closed, from whichever side."""
        try:
            return self._reader.readline(self.most_bytes)
        except ValueError:  # closed here meanwhile
            return b""

    def shut(self) -> None:
        """End both directions; whoever reads sees the end, and closes it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both directions."""
        self.shut()
        self._reader.close()  # it holds the descriptor; whoever reads has been woken
        self.socket.close()
