"""How much TCP moves through a plain veth between two scratch namespaces, in a fifth of a second."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread

from testbed.errors import MachineError
from testbed.links import devices
from testbed.links.bridges import Neighbour, add_neighbour
from testbed.links.channel import Channel
from testbed.links.namespaces import OWN, apart, enter, inside, leave_for_new
from testbed.scenario.shape import FRAME_BYTES, SEGMENT_BYTES

_SETTLE_S, _MEASURE_S = 0.04, 0.08
_OPEN_S, _RETRY_S = 5.0, 0.01
_CHUNK_BYTES = 1 << 20
_MOST_FLOWS = 32
_NEAR, _FAR = "192.0.2.1", "192.0.2.2"
"""Of the block for documentation, which nobody routes."""

_PORT = 5001


@dataclass
class _Flow:
    """Bulk TCP, a thread at either end; ``received`` grows as payload comes."""

    sender: socket.socket
    receiver: socket.socket
    received: int = 0
    threads: list[Thread] = field(default_factory=list)

    def start(self) -> None:
        self.threads = [Thread(target=self._send), Thread(target=self._receive)]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        for end in (self.sender, self.receiver):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.sender.close()
        self.receiver.close()

    def _send(self) -> None:
        chunk = memoryview(bytes(_CHUNK_BYTES))
        with suppress(OSError):
            while True:
                self.sender.send(chunk)

    def _receive(self) -> None:
        buffer = bytearray(_CHUNK_BYTES)
        with suppress(OSError):
            while count := self.receiver.recv_into(buffer):
                self.received += count


def measure(flows: int, segments: int) -> int:
    """Bit/s, frames counted, that so many flows move through a veth in bundles of ``segments`` packets.

    Nothing on the host is touched, nothing is left. Raises MachineError where that is not permitted.
    """
    try:
        return apart(lambda: _attempt(min(flows, _MOST_FLOWS), segments))
    except OSError as error:
        raise MachineError(
            f"what a veth carries here could not be measured: {error.strerror}",
            fix="Run `testbed doctor`",
        ) from error


def _attempt(count: int, segments: int) -> int:
    with _fresh() as near, _fresh() as far:
        enter(near)
        _lay(near, far, segments)
        flows = _connect(far, count)
        try:
            for flow in flows:
                flow.start()
            time.sleep(_SETTLE_S)
            before, began = sum(flow.received for flow in flows), time.monotonic()
            time.sleep(_MEASURE_S)
            moved, took = sum(flow.received for flow in flows) - before, time.monotonic() - began
        finally:
            for flow in flows:
                flow.end()
    return int(8 * moved * FRAME_BYTES / SEGMENT_BYTES / took)


@contextmanager
def _fresh() -> Iterator[str]:
    """A namespace that lives for the length of a ``with`` block; the calling thread is in it then."""
    leave_for_new()
    descriptor = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _lay(near: str, far: str, segments: int) -> None:
    with Channel(near) as here, Channel(far) as there:
        made = devices.add_veth(here, "near", "far", far)
        other = devices.named(there, "far")
        for channel, own, address, peer in (
            (here, made, _NEAR, Neighbour(_FAR, other.mac)),
            (there, other, _FAR, Neighbour(_NEAR, made.mac)),
        ):
            devices.set_link(channel, own.index, GSO_MAX_SEGS=segments)
            devices.add_address(channel, own.index, address, 24)
            devices.set_up(channel, own.index)
            add_neighbour(channel, own.index, peer)


def _connect(far: str, count: int) -> list[_Flow]:
    with inside(far):
        listener = socket.create_server((_FAR, _PORT))
    flows = []
    with listener:
        for _ in range(count):
            sender = _patiently()
            receiver, _ = listener.accept()
            for end in (sender, receiver):
                end.settimeout(None)
            flows.append(_Flow(sender, receiver))
    return flows


def _patiently() -> socket.socket:
    """The kernel opens a cable a moment after it was switched on: what was sent before it is lost."""
    give_up = time.monotonic() + _OPEN_S
    while True:
        try:
            return socket.create_connection((_FAR, _PORT), timeout=_RETRY_S)
        except TimeoutError:
            if time.monotonic() > give_up:
                raise
