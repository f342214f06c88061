"""Workers some of whom may be lost, over loopback: real sockets, peers that take nothing and peers that go."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any

import pytest
from endpoint_rig import NAMES, RUN, SOON_S, Either, endpoint, hello, listening, star

from testbed.errors import NodeLost, WireError
from testbed.exchange.base import Membership
from testbed.exchange.collect import MessageCollector
from testbed.exchange.parameter_server import WorkerSetServer
from testbed.exchange.parameter_server_backup import BackupPsServer
from testbed.fabric.host_node import HostClock, HostNode
from testbed.node import Kind, Message
from testbed.runner.session import LostWorkerBudget
from testbed.transport.frame import FrameHeader
from testbed.transport.threaded_endpoint import ThreadedEndpoint

LARGE = bytes(64 << 20)
"""More than the sockets of both ends hold."""
MEMBERS = Membership(0, [0], [1, 2], NAMES, SOON_S)


@pytest.fixture
def trio() -> Iterator[tuple[WorkerSetServer, Either, Either]]:
    with closing(endpoint(ThreadedEndpoint, 0, lockstep=False)) as server:
        port = listening(server)
        with (
            closing(endpoint(ThreadedEndpoint, 1)) as one,
            closing(endpoint(ThreadedEndpoint, 2)) as two,
        ):
            for worker in (one, two):
                worker.connect(0, "127.0.0.1", port, SOON_S)
                worker.send([0], hello(worker.number))
            node = HostNode("server", 1, server, HostClock(), lambda _: None)
            hub = BackupPsServer(node, MEMBERS)
            hub.await_workers()
            yield hub, one, two
            hub.close()
            node.close()


def test_a_peer_that_takes_nothing_holds_up_nobody() -> None:
    with closing(endpoint(ThreadedEndpoint, 0, lockstep=False)) as server:
        port = listening(server)
        with (
            socket.create_connection(("127.0.0.1", port)) as stuck,
            closing(endpoint(ThreadedEndpoint, 2)) as two,
        ):
            header = FrameHeader(Kind.HELLO, 1, RUN, 0, 0, 0, time.monotonic_ns())
            stuck.sendall(header.pack())  # and it never reads
            two.connect(0, "127.0.0.1", port, SOON_S)
            two.send([0], hello(2))
            node = HostNode("server", 1, server, HostClock(), lambda _: None)
            hub = BackupPsServer(node, MEMBERS)
            hub.await_workers()
            hub.enqueue(1, Kind.UPDATE, 1, LARGE)
            hub.enqueue(2, Kind.UPDATE, 1, b"parameters")
            assert bytes(two.receive(SOON_S).body) == b"parameters"
            node.close()


def test_who_goes_is_lost_once_and_nobody_more(
    trio: tuple[WorkerSetServer, Either, Either],
) -> None:
    hub, one, two = trio
    one.close()
    assert hub.receive(Kind.GRADIENT, 3, SOON_S, [1, 2]) is None
    assert hub.alive == [2] and [lost.node for lost in hub.lost] == ["worker-0"]
    assert hub.lost[0].step == 3
    two.send([0], Message(Kind.GRADIENT, 3, 0, 2, b"late"))
    message = hub.receive(Kind.GRADIENT, 3, SOON_S, [2])
    assert message is not None and bytes(message.body) == b"late"
    two.close()
    with pytest.raises(NodeLost, match="'worker-1' was lost at step 3, while gathering"):
        hub.receive(Kind.GRADIENT, 3, SOON_S, [2])


def test_one_too_many_that_goes_before_its_goodbye_is_lost_at_the_goodbye(
    trio: tuple[WorkerSetServer, Either, Either],
) -> None:
    hub, one, two = trio
    one.close()
    two.close()
    with pytest.raises(NodeLost, match="was lost at step 3, while goodbye"):
        hub.await_goodbyes(3)


def test_what_is_collected_is_that_of_those_who_are_left() -> None:
    """One who is lost meanwhile is not waited for any more, whichever of several it is."""
    members, left = [1, 2, 3], [Message(Kind.GRADIENT, 4, 0, sender, b"g") for sender in (3, 1)]
    awaited: list[list[int]] = []

    def receive(kind: Kind, step: int, _: float, missing: Collection[int], *_more: object) -> Any:
        assert (kind, step) == (Kind.GRADIENT, 4)
        awaited.append(sorted(missing))
        if len(awaited) == 2:
            members.remove(2)
            return None
        return left.pop(0)

    collector = MessageCollector(NAMES, members, receive)
    messages = collector.collect(Kind.GRADIENT, 4, 0, [1, 2, 3], 5.0)
    assert [message.sender for message in messages] == [1, 3]
    assert awaited == [[1, 2, 3], [1, 2], [1]]


def test_who_may_be_ahead_is_so_by_as_many_steps_and_by_none_more() -> None:
    """Nor may anything come of a step that is over, or twice."""

    def sent(sender: int, step: int) -> Message:
        return Message(Kind.GRADIENT, step, 0, sender, bytes([sender, step]))

    def collector(*coming: Message) -> MessageCollector:
        messages = iter(coming)
        return MessageCollector(NAMES, [1, 2], lambda *_: next(messages), ahead=2)

    allowed = collector(sent(1, 4), sent(1, 5), sent(1, 6), sent(2, 4), sent(2, 5), sent(2, 6))
    for step in (4, 5, 6):
        came = allowed.collect(Kind.GRADIENT, step, 0, [1, 2], 5.0)
        assert came == [sent(1, step), sent(2, step)]
    for wrong in (sent(1, 7), sent(1, 3), sent(1, 5)):
        refused = collector(sent(1, 4), sent(1, 5), wrong)
        with pytest.raises(WireError, match=f"sent GRADIENT of step {wrong.step}"):
            refused.collect(Kind.GRADIENT, 4, 0, [1, 2], 5.0)


def test_out_of_lockstep_every_message_keeps_its_bytes() -> None:
    with star(ThreadedEndpoint, 1, lockstep=False) as ((server, worker), _):
        for step in range(6):
            worker.send([0], Message(Kind.GRADIENT, step, 0, 1, bytes([step]) * 100_000))
        came = [server.receive(SOON_S) for _ in range(6)]
    assert [bytes(message.body) for message in came] == [bytes([n]) * 100_000 for n in range(6)]


def test_as_many_may_be_lost_as_are_spare() -> None:
    spare = LostWorkerBudget(["worker-0", "worker-1"], 1)
    assert not spare.lose("server")
    assert spare.lose("worker-1") and spare.lose("worker-1")
    assert not spare.lose("worker-0")
    assert spare.lost == ["worker-1"]
