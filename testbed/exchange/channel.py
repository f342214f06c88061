"""One TCP connection that carries frames, for a loop that waits for many of them."""

from __future__ import annotations

import socket

from testbed.exchange.frame import Frame
from testbed.exchange.stream import Stream, Terms
from testbed.node import Message

_JOINED_BYTES = 1 << 14
"""Bodies up to this size are copied behind their header."""


class Channel(Stream):
    """Frames over one socket that never blocks. At most one frame is on its way out, and none is copied for it."""

    def __init__(self, connected: socket.socket, terms: Terms, most_bytes: int) -> None:
        connected.setblocking(False)
        super().__init__(connected, terms, most_bytes)
        self.peer: int | None = None
        """Whose it is, once it has said so."""
        self.said_goodbye = self.ended = False
        self.events = 0
        """What the loop waits for on it; 0: it has been taken out of the loop."""
        self.failure: OSError | None = None
        """Why what was on its way out is not any more."""
        self._out: list[bytes | memoryview] = []

    @property
    def sends(self) -> bool:
        """Whether some of a frame is still to be handed over."""
        return bool(self._out)

    @property
    def staged(self) -> bool:
        """Whether more can be read though the socket may have nothing."""
        return self._inflow.staged

    def read(self) -> Message | None:
        """The next frame as far as it is there; see ``Inflow.read``, but None where nothing is there."""
        try:
            return self._inflow.read()
        except BlockingIOError:
            return None

    def begin(self, frame: Frame) -> bool:
        """Hand over as much of a frame as the kernel takes; whether that is all of it.

        For the holder of ``sending``, until nothing is left. Raises OSError when the peer is gone.
        """
        self.failure = None
        header, body = frame
        sent, total = self._send([header, body]), len(header) + len(body)
        if sent == total:
            return True
        if sent < len(header):
            self._out = [header[sent:], body]
        else:
            self._out = [body[sent - len(header) :]]
        return False

    def flush(self) -> bool:
        """Hand over more of what is left; whether that is all of it. Raises OSError as ``begin``."""
        sent = self._send(self._out)
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.pop(0))
        if self._out:
            self._out[0] = self._out[0][sent:]
        return not self._out

    def fail(self, error: OSError) -> None:
        """What is on its way out will not arrive."""
        self.failure, self._out = error, []

    def _send(self, parts: list[bytes | memoryview]) -> int:
        try:
            if len(parts) == 2 and len(parts[1]) <= _JOINED_BYTES:  # one piece is less work
                return self.socket.send(bytes(parts[0]) + parts[1])
            return self.socket.sendmsg(parts)
        except BlockingIOError:
            return 0
