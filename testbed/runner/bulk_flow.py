"""Bulk TCP flows that fill a link: ``python -m testbed.runner.bulk_flow serve|blast ADDRESS PORT
STOP_AT_NS``.

Times are nanoseconds of the monotonic clock. Nothing here needs a privilege. A flow connects as
soon as it can and begins to send at a time of its own, so that all flows of a replay find idle
links to measure the round trip on.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from testbed.process import die_with
from testbed.transport.connection import TcpInfo

CHUNK_BYTES = 1 << 16
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class FlowSent:
    """Bytes that a flow sent. ``least_rtt_us``: on idle links, before it sent; None: not known."""

    bytes: int
    least_rtt_us: int | None = None


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


def blast(address: str, port: int, stop_at_ns: int, begin_at_ns: int = 0) -> FlowSent:
    """From ``begin_at_ns`` on send as fast as the network takes it until the time comes; waits for
    a listener.

    The bytes are the payload that the network took; what is still under way then is thrown away, so
    that nothing of one flow is left in a queue for the next. A connection that breaks ends the
    flow.
    """
    connection = _connect(address, port, stop_at_ns)
    if connection is None:
        return FlowSent(0)
    chunk = memoryview(bytes(CHUNK_BYTES))
    sent = 0
    with connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        # Once others have begun to send, a late connection would see their queues.
        early = time.monotonic_ns() < begin_at_ns
        least_rtt_us = TcpInfo.of(connection).counters().least_rtt_us if early else None
        time.sleep(max(0.0, _left_s(min(begin_at_ns, stop_at_ns))))
        try:
            while (left := _left_s(stop_at_ns)) > 0:
                connection.settimeout(left)
                sent += connection.send(chunk)
        except OSError:
            pass  # the time has come, or the other side has gone: the bytes tell
    return FlowSent(sent, least_rtt_us)


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
    """Run one flow; ``{"bytes": …, "least_rtt_us": …}`` on standard output."""
    parser = argparse.ArgumentParser(prog="testbed.runner.bulk_flow")
    parser.add_argument("what", choices=("serve", "blast"))
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("stop_at_ns", type=int)
    parser.add_argument("--begin", type=int, default=0, help="when to begin to send")
    parser.add_argument("--parent", type=int, help="process to die with")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with(options.parent)
    where = (options.address, options.port, options.stop_at_ns)
    moved = FlowSent(serve(*where)) if options.what == "serve" else blast(*where, options.begin)
    try:
        sys.stdout.write(json.dumps(asdict(moved)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever wanted to know has just been killed; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
