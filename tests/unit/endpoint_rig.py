"""Endpoints of either kind over loopback, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from testbed.node import Kind, Message
from testbed.transport.epoll_endpoint import EpollEndpoint
from testbed.transport.threaded_endpoint import ThreadedEndpoint

NAMES = {0: "server", 1: "worker-0", 2: "worker-1"}
RUN = 0xFEED
SOON_S = 60.0
"""Limit of what takes a moment: threads of a busy machine may stand still for seconds."""
Either = ThreadedEndpoint | EpollEndpoint
KINDS: tuple[type[Either], ...] = (ThreadedEndpoint, EpollEndpoint)


def endpoint(kind: type[Either], number: int, **others: Any) -> Either:
    """One that waits for silent peers for ``SOON_S``."""
    settings = {"names": NAMES, "clock": lambda ns: ns / 1e9, "silence_s": SOON_S, **others}
    return kind(number, RUN, **settings)


def listening(server: Either) -> int:
    """The port that ``server`` listens on from now on, which the kernel chose."""
    server.listen("127.0.0.1", 0)
    assert server._listener is not None
    return int(server._listener.getsockname()[1])


def hello(peer: int) -> Message:
    """A peer's first frame."""
    return Message(Kind.HELLO, 0, 0, peer, b"")


@contextmanager
def star(
    kind: type[Either], workers: int, silence_s: float = SOON_S, **server: Any
) -> Iterator[tuple[list[Either], int]]:
    """A server, number 0, that so many workers have greeted, and its port. ``silence_s``: what workers wait for it."""
    with ExitStack() as stack:
        everybody = [endpoint(kind, 0, **server)]
        stack.callback(everybody[0].close)
        port = listening(everybody[0])
        for number in range(1, workers + 1):
            worker = endpoint(kind, number, silence_s=silence_s)
            stack.callback(worker.close)
            worker.connect(0, "127.0.0.1", port, SOON_S)
            worker.send([0], hello(number))
            everybody.append(worker)
        greeted = {everybody[0].receive(SOON_S).sender for _ in range(workers)}
        assert greeted == set(range(1, workers + 1))
        yield everybody, port
