"""Bulk TCP flows that fill a link: ``python -m testbed.links.flow serve|blast ADDRESS PORT STOP_AT_NS``.

Times are nanoseconds of the monotonic clock. Nothing here needs a privilege.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Sequence

from testbed.links.process import die_with

CHUNK_BYTES = 1 << 16
_RETRY_S = 0.05


def serve(listen_address: str, port: int, stop_at_ns: int) -> int:
    """Receive from whoever connects, one after the other, until the time comes.

    Returns the payload bytes that came. Raises OSError where the address cannot be listened on.
    """
    received = 0
    with socket.create_server((listen_address, port)) as listener:
        while (left := _left_s(stop_at_ns)) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                break
            with connection:
                received += _drain(connection, stop_at_ns)
    return received


def blast(address: str, port: int, stop_at_ns: int) -> int:
    """Send as fast as the network takes it until the time comes; waits for a listener before.

    Returns the payload bytes that the network took; what is still under way then is thrown away, so that
    nothing of one flow is left in a queue for the next. A connection that breaks ends the flow.
    """
    connection = _connect(address, port, stop_at_ns)
    if connection is None:
        return 0
    chunk = memoryview(bytes(CHUNK_BYTES))
    sent = 0
    with connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        try:
            while (left := _left_s(stop_at_ns)) > 0:
                connection.settimeout(left)
                sent += connection.send(chunk)
        except OSError:
            pass  # the time has come, or the other side has gone: the bytes tell
    return sent


def _drain(connection: socket.socket, stop_at_ns: int) -> int:
    buffer, received = bytearray(4 * CHUNK_BYTES), 0
    try:
        while (left := _left_s(stop_at_ns)) > 0:
            connection.settimeout(left)
            count = connection.recv_into(buffer)
            if not count:
                break
            received += count
    except OSError:
        pass  # the time has come, or the sender has thrown the rest away
    return received


def _connect(address: str, port: int, stop_at_ns: int) -> socket.socket | None:
    while (left := _left_s(stop_at_ns)) > 0:
        try:
            return socket.create_connection((address, port), timeout=left)
        except OSError:
            time.sleep(min(_RETRY_S, left))
    return None


def _left_s(stop_at_ns: int) -> float:
    return (stop_at_ns - time.monotonic_ns()) / 1e9


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one flow; ``{"bytes": …}`` on standard output."""
    parser = argparse.ArgumentParser(prog="testbed.links.flow")
    parser.add_argument("what", choices=("serve", "blast"))
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("stop_at_ns", type=int)
    parser.add_argument("--parent", type=int, help="process to die with")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with(options.parent)
    flow = serve if options.what == "serve" else blast
    moved = flow(options.address, options.port, options.stop_at_ns)
    sys.stdout.write(json.dumps({"bytes": moved}) + "\n")


if __name__ == "__main__":
    main()
