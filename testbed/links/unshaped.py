"""Rate of TCP through a plain veth between two scratch namespaces, in a fifth of a second."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain

from testbed.errors import MachineError
from testbed.links.network import devices
from testbed.links.network.bridges import Neighbour, add_neighbour
from testbed.links.network.namespaces import OWN, apart, enter, inside, leave_for_new, opened
from testbed.links.tc.netlink import NetlinkChannel
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES

_SETTLE_S, _MEASURE_S = 0.04, 0.08
_OPEN_S, _RETRY_S = 5.0, 0.01
_CHUNK_BYTES = 1 << 20
_MOST_FLOWS = 32
_NEAR, _FAR = "192.0.2.1", "192.0.2.2"
"""Addresses of the block for documentation, which nobody routes."""

_PORT = 5001


def _send(sender: socket.socket) -> None:
    chunk = memoryview(bytes(_CHUNK_BYTES))
    with sender, suppress(OSError):
        while True:
            sender.send(chunk)


def _receive(receiver: socket.socket, sizes: list[int]) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    with receiver, suppress(OSError):
        while size := receiver.recv_into(buffer):
            sizes.append(size)


def measure(flows: int, segments: int) -> int:
    """Bit/s, frames counted, that so many flows move through a veth in bundles of ``segments``
    packets.

    Nothing on the host is touched, nothing is left. Raises MachineError where that is not
    permitted.
    """
    try:
        return apart(lambda: _attempt(min(flows, _MOST_FLOWS), segments))
    except OSError as error:
        raise MachineError(
            f"what a veth carries here could not be measured: {error.strerror}",
            fix="Run `testbed doctor`",
        ) from error


def _attempt(count: int, segments: int) -> int:
    with _fresh() as near, _fresh() as far, ThreadPoolExecutor(2 * count) as pool:
        enter(near)
        _lay(near, far, segments)
        flows, sizes = _connect(far, count), list[int]()
        try:
            for sender, receiver in flows:
                pool.submit(_send, sender)
                pool.submit(_receive, receiver, sizes)
            time.sleep(_SETTLE_S)
            before, began = sum(sizes), time.monotonic()
            time.sleep(_MEASURE_S)
            moved, took = sum(sizes) - before, time.monotonic() - began
        finally:
            for end in chain(*flows):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
    return int(8 * moved * FRAME_BYTES / SEGMENT_BYTES / took)


@contextmanager
def _fresh() -> Iterator[str]:
    """A namespace for the length of a ``with`` block; the calling thread is in it."""
    leave_for_new()
    with opened(OWN) as descriptor:
        yield f"/proc/self/fd/{descriptor}"


def _lay(near: str, far: str, segments: int) -> None:
    with NetlinkChannel(near) as here, NetlinkChannel(far) as remote:
        cable = devices.add_veth(here, "near", "far", far)
        other = devices.named(remote, "far")
        for channel, own, address, peer in (
            (here, cable, _NEAR, Neighbour(_FAR, other.mac)),
            (remote, other, _FAR, Neighbour(_NEAR, cable.mac)),
        ):
            devices.set_link(channel, own.index, GSO_MAX_SEGS=segments)
            devices.add_address(channel, own.index, address, 24)
            devices.set_up(channel, own.index)
            add_neighbour(channel, own.index, peer)


def _connect(far: str, count: int) -> list[tuple[socket.socket, socket.socket]]:
    with inside(far):
        listener = socket.create_server((_FAR, _PORT))
    flows = []
    with listener:
        for _ in range(count):
            sender = _patiently()
            receiver, _ = listener.accept()
            for end in (sender, receiver):
                end.settimeout(None)
            flows.append((sender, receiver))
    return flows


def _patiently() -> socket.socket:
    """Connect: what is sent at once after a cable was switched on is lost."""
    give_up = time.monotonic() + _OPEN_S
    while True:
        try:
            return socket.create_connection((_FAR, _PORT), timeout=_RETRY_S)
        except TimeoutError:
            if time.monotonic() > give_up:
                raise
