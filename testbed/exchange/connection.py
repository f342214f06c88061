"""One TCP connection that carries frames, for threads that wait for it."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable

from testbed.exchange.stream import Stream, Terms
from testbed.node import Message

_Job = tuple[Message, threading.Event, list[OSError]]


class Connection(Stream):
    """Frames over one blocking socket. One thread may receive; any thread may send."""

    def __init__(self, connected: socket.socket, terms: Terms, most_bytes: int) -> None:
        super().__init__(connected, terms, most_bytes)
        self._later: queue.SimpleQueue[_Job | None] | None = None

    def send(self, message: Message) -> None:
        """Hand a frame over to the kernel, all of it. Raises OSError when the peer is gone."""
        with self.sending:
            header, body = self.frame(message)
            _send_all(self.socket, header, body)

    def send_later(self, message: Message) -> Callable[[], None]:
        """Begin to send in this connection's own thread; call the result to wait for the end of it."""
        if self._later is None:
            self._later = queue.SimpleQueue()
            threading.Thread(target=self._write, args=(self._later,), daemon=True).start()
        finished, errors = threading.Event(), list[OSError]()
        self._later.put((message, finished, errors))

        def wait() -> None:
            finished.wait()
            if errors:
                raise errors[0]

        return wait

    def receive(self) -> Message | None:
        """The next frame, or None at the end of the stream.

        Raises WireError for bytes that are not a frame of this run, OSError when the peer is lost.
        """
        try:
            while (message := self._inflow.read()) is None:
                pass
        except EOFError:
            return None
        return message

    def close(self) -> None:
        """End the stream in both directions."""
        if self._later is not None:
            self._later.put(None)
        super().close()

    def _write(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            message, finished, errors = job
            try:
                self.send(message)
            except OSError as error:
                errors.append(error)
            finished.set()


def _send_all(connected: socket.socket, header: bytes, body: memoryview) -> None:
    sent = connected.sendmsg([header, body])
    if sent < len(header):
        connected.sendall(header[sent:])
        sent = len(header)
    if sent < len(header) + len(body):
        connected.sendall(body[sent - len(header) :])
