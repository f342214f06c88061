"""A TCP stream whose arrivals are timed, one reading after the other: for suites that ask when, not how much."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from testbed.bench.lab import Lab
from testbed.links.namespaces import inside

_PORT, _CHUNK = 5200, bytes(1 << 15)


class Stream:
    """From a node to its switch until ``end``; ``came`` holds ``(monotonic ns, payload bytes)``."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.came: list[tuple[int, int]] = []
        self._ended = False
        address = (lab.networks.switch_address, _PORT)
        with inside(lab.switch):
            listener = socket.create_server(address)
        with listener:
            with inside(lab.netns(node)):
                self._sender = socket.create_connection(address, timeout=10)
            self._receiver, _ = listener.accept()
        for each in (self._sender, self._receiver):
            each.settimeout(0.1)
        self._threads = [Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Break it off."""
        self._ended = True
        for thread in self._threads:
            thread.join()
        # What still waits is thrown away: nothing of it may be left in the link for the next one.
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._sender.close()
        self._receiver.close()

    def _send(self) -> None:
        while not self._ended:
            try:
                self._sender.send(_CHUNK)
            except TimeoutError:
                continue
            except OSError:
                return

    def _receive(self) -> None:
        while not self._ended:
            try:
                count = len(self._receiver.recv(1 << 18))
            except TimeoutError:
                continue
            except OSError:
                return
            self.came.append((time.monotonic_ns(), count))


@contextmanager
def stream(lab: Lab, node: str) -> Iterator[Stream]:
    """A stream for the length of a ``with`` block."""
    made = Stream(lab, node)
    try:
        yield made
    finally:
        made.end()
