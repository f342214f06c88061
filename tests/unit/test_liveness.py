"""Who is taken for lost, and when: of peers that send, that are silent, and that wait themselves."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event

import pytest
from endpoint_rig import KINDS, NAMES, SOON_S, Either, star

from testbed.errors import NodeLost
from testbed.exchange.base import Membership
from testbed.exchange.parameter_server import ElasticPsServer
from testbed.fabric.host_node import HostClock, HostNode
from testbed.node import Kind, Message
from testbed.transport.connection import BlockingConnection, ConnectionConfig
from testbed.transport.endpoint import LivenessMonitor
from testbed.transport.frame import HEADER_BYTES

T = 8.0


@dataclass
class Peer:
    progress: float = 0.0
    wait_notice: tuple[float, float] = (0.0, 0.0)

    def last_progress_s(self, now_s: float) -> float:  # noqa: ARG002
        return self.progress


def watching(*awaited: int, begun_s: float = 100.0) -> LivenessMonitor:
    monitor = LivenessMonitor()
    monitor.look(awaited, begun_s, begun_s)
    return monitor


def test_a_silent_peer_is_lost_though_others_send() -> None:
    peers = {1: Peer(), 2: Peer(progress=107.0)}
    assert watching(1, 2).lost(peers, T, 107.9) == []
    assert watching(1, 2).lost(peers, T, 108.0) == [1]


def test_a_wait_goes_on_from_one_look_to_the_next_until_a_message_comes() -> None:
    monitor, peers = watching(1, 2), {1: Peer(), 2: Peer()}
    monitor.look([1, 2], 107.0, 107.0)
    assert monitor.lost(peers, T, 108.0) == [1, 2]
    monitor.on_message(2)
    monitor.look([1, 2], 107.0, 107.0)
    assert monitor.lost(peers, T, 108.0) == [1]


def test_one_that_waits_itself_is_given_time_to_find_out() -> None:
    peers = {1: Peer(wait_notice=(108.0, 100.0))}
    assert watching(1).lost(peers, T, 111.9) == []
    assert watching(1).lost(peers, T, 112.0) == [1]


def test_one_that_hears_of_whom_it_waits_for_is_waited_for() -> None:
    peers = {1: Peer(wait_notice=(120.0, 119.0))}
    assert watching(1).lost(peers, T, 123.0) == []


def test_one_that_says_nothing_any_more_is_not_excused() -> None:
    peers = {1: Peer(wait_notice=(104.0, 104.0))}
    assert watching(1).lost(peers, T, 112.0) == [1]


def test_the_next_look_is_in_time() -> None:
    peers = {1: Peer(progress=103.0), 2: Peer()}
    assert watching(1).next_check_s(peers, T, 103.0) == T / 4
    assert watching(1, 2).next_check_s(peers, T, 107.5) == 0.5
    assert watching(1, 2).next_check_s(peers, T, 109.0) == 0.0


def test_others_are_told_only_of_waits_that_last() -> None:
    monitor = watching(1)
    assert not monitor.waits_long(T, 101.9) and monitor.waits_long(T, 102.0)
    assert monitor.silent_s({1: Peer(progress=101.0)}, 104.0) == 3.0
    monitor.on_message(1)
    assert not monitor.waits_long(T, 102.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_silent_one_is_named_between_messages_of_another(kind: type[Either]) -> None:
    with star(kind, 2) as ((server, talker, _), _port), ThreadPoolExecutor(1) as beside:
        named = Event()
        talking = beside.submit(talk, talker, named)
        try:
            with pytest.raises(NodeLost, match=r"'worker-1'.*nothing was received for"):
                while not talking.done():
                    assert server.receive(2.0, [1, 2]).sender == 1
        finally:
            named.set()


def talk(peer: Either, named: Event) -> None:
    """For longer than anybody is waited for, unless somebody was named before."""
    for step in range(200):
        peer.send([0], Message(Kind.GRADIENT, step, 0, 1, b"g"))
        if named.wait(0.05):
            return


@pytest.mark.parametrize("kind", KINDS)
def test_those_who_wait_are_told_and_roles_see_nothing_of_it(kind: type[Either]) -> None:
    with star(kind, 2) as ((server, worker, _), _port):
        with pytest.raises(NodeLost, match="'worker-1'"):
            server.receive(2.0, [2], [1])
        server.send([1], Message(Kind.UPDATE, 1, 0, 0, b"u"))
        assert worker.receive(SOON_S, [0]).kind is Kind.UPDATE
        told, heard = server.wait_notice_bytes[0], worker.wait_notice_bytes[1]
        assert told == heard > 0 and told % HEADER_BYTES == 0
        counted = worker.counters()[0].bytes_received
        assert counted == heard + HEADER_BYTES + 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_whose_message_waits_to_be_received_is_not_lost(kind: type[Either]) -> None:
    """Its role was away for longer than anybody may be silent."""
    with star(kind, 2) as ((server, early, other), _port):
        other.send([0], Message(Kind.GRADIENT, 1, 0, 2, b"g"))
        assert server.receive(SOON_S, [1, 2]).sender == 2  # and from now on 1 is waited for
        early.send([0], Message(Kind.GRADIENT, 1, 0, 1, b"g"))
        while server._peers[1].delivered == server._peers[1].taken:
            time.sleep(0.01)
        time.sleep(0.7)
        assert server.receive(0.5, [1, 2]).sender == 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_heard_of_while_it_is_looked_for_has_not_been_silent(kind: type[Either]) -> None:
    """What a reader notes during a look is later than the look's own time."""
    with star(kind, 2) as ((server, worker, _), _port):
        soon_s = time.monotonic() + 60.0
        server._peers[2].wait_notice = soon_s, soon_s
        server._look(2.0, [2], [1], time.monotonic() - 1.0)
        assert server.wait_notice_bytes[0] == HEADER_BYTES
        server.send([1], Message(Kind.UPDATE, 1, 0, 0, b"u"))
        assert worker.receive(SOON_S, [0]).kind is Kind.UPDATE
        said_s, heard_s = worker._peers[0].wait_notice
        assert said_s == heard_s > 0.0


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_one_that_has_left_is_told_nothing_until_it_returns(
    kind: type[Either], returns: bool
) -> None:
    with star(kind, 2) as ((own, steady, leaving), _port):
        node = HostNode("server", 1, own, HostClock(), lambda _: None)
        server = ElasticPsServer(node, Membership(0, [0], [1, 2], NAMES, SOON_S))
        leaving.send([0], Message(Kind.LEAVE, 1, 0, 2, b""))
        if returns:
            leaving.send([0], Message(Kind.REJOIN, 1, 0, 2, b""))
        steady.send([0], Message(Kind.GRADIENT, 1, 0, 1, b"g"))
        assert [message.sender for message in server.gather(1, 0)] == [1]
        server._peers = replace(server._peers, timeout_s=1.0)
        with pytest.raises(NodeLost, match="'worker-0'"):
            server.gather(2, 0)
        assert (own.wait_notice_bytes[0] > 0) is returns


def test_what_says_that_a_peer_waits_is_no_sign_of_life_of_its_own() -> None:
    """Else two who wait for each other would do so for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    config = ConnectionConfig(run=7, clock=lambda ns: ns / 1e9, silence_s=5.0)
    here, there = (BlockingConnection(each, config, 1 << 20) for each in (near, far))
    try:
        for step in (100, 200):
            there.send(Message(Kind.WAIT_NOTICE, step, 0, 1, b""))
            notice = here.receive()
            assert notice is not None
            here.on_wait_notice(notice, 500.0)
            assert here.last_progress_s(500.0) == 0.0
        assert here.wait_notice == (500.0, 499.8)
        there.send(Message(Kind.GRADIENT, 1, 0, 1, b"abc"))
        assert here.receive() is not None
        assert 400.0 < here.last_progress_s(500.0) <= 500.0
    finally:
        here.close()
        there.close()
