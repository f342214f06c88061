"""Multicast among four nodes on the loopback interface: real sockets, and strangers on them."""

from __future__ import annotations

import queue
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from loopback import own_address, own_place

from testbed.errors import NodeLost
from testbed.node import Kind, Message
from testbed.transport.multicast.endpoint import Multicaster
from testbed.transport.multicast.packet import LAYOUT, MAGIC, Flag, fold
from testbed.transport.multicast.udp import group_address
from testbed.transport.threaded_endpoint import ThreadedEndpoint

NAMES = {n: f"worker-{n}" for n in range(4)}
ADDRESSES = {n: own_address(n + 2) for n in range(4)}
EVERYBODY, PAIR = frozenset(range(4)), frozenset({0, 1})


@dataclass
class Quartet:
    run: int
    port: int
    nodes: list[Multicaster] = field(default_factory=list)
    inboxes: list[queue.SimpleQueue[Message | NodeLost]] = field(default_factory=list)

    def receive(self, node: int) -> Message:
        item = self.inboxes[node].get(timeout=60)
        assert isinstance(item, Message)
        return item


@pytest.fixture
def four() -> Iterator[Quartet]:
    _, port = own_place()
    made = Quartet(random.getrandbits(64), port)
    for number in range(4):
        made.inboxes.append(queue.SimpleQueue())
        made.nodes.append(node(made, number))
    yield made
    with ThreadPoolExecutor(4) as side_by_side:
        list(side_by_side.map(Multicaster.close, made.nodes))


def node(
    quartet: Quartet, number: int, groups: Sequence[frozenset[int]] = (EVERYBODY, PAIR)
) -> Multicaster:
    made = Multicaster(
        number, quartet.run, names=NAMES, clock=lambda ns: ns / 1e9, silence_s=1.0,
        addresses=ADDRESSES, port=quartet.port, deliver=quartet.inboxes[number].put,
    )  # fmt: skip
    made.form_groups(groups)
    return made


@pytest.mark.parametrize("length", [0, 1000, 300_000])
def test_one_message_reaches_every_member_with_its_times(four: Quartet, length: int) -> None:
    body = random.Random(1).randbytes(length)
    assert four.nodes[0].send(0, Message(Kind.GRADIENT, 7, 3, 0, body)) == 40 + length
    for member in (1, 2, 3):
        got = four.receive(member)
        assert bytes(got.body) == body
        assert (got.kind, got.step, got.bucket, got.sender) == (Kind.GRADIENT, 7, 3, 0)
        assert got.sent_s <= got.first_s <= got.last_s <= time.monotonic()
        assert got.sent_s <= got.arrived_s <= got.last_s
    counted = four.nodes[0].counters()
    assert counted.frame_bytes_sent == 40 + length
    assert counted.data.bytes >= 40 + length
    assert four.nodes[1].counters().frame_bytes_received == 40 + length


def test_only_members_get_it(four: Quartet) -> None:
    four.nodes[0].send(1, Message(Kind.GRADIENT, 0, 0, 0, b"for two"))
    four.nodes[2].send(0, Message(Kind.GRADIENT, 0, 0, 2, b"for all"))
    assert {bytes(four.receive(1).body) for _ in range(2)} == {b"for two", b"for all"}
    assert bytes(four.receive(3).body) == b"for all"
    assert four.inboxes[3].empty()


def test_what_is_for_nobody_is_not_counted() -> None:
    """A worker that is alone sends its gradients to a group of itself."""
    _, port = own_place()
    alone = node(Quartet(random.getrandbits(64), port, inboxes=[queue.SimpleQueue()]), 0, [frozenset({0})])  # fmt: skip
    try:
        assert alone.send(0, Message(Kind.GRADIENT, 1, 0, 0, b"for nobody")) == 0
        assert alone.counters().frame_bytes_sent == alone.counters().data.bytes == 0
    finally:
        alone.close()


def test_everybody_at_once_and_in_order(four: Quartet) -> None:
    for step in range(30):
        for number, one in enumerate(four.nodes):
            one.send(0, Message(Kind.GRADIENT, step, 0, number, bytes([number]) * 5000))
    for member in range(4):
        steps: dict[int, list[int]] = {}
        for _ in range(90):
            got = four.receive(member)
            assert bytes(got.body) == bytes([got.sender]) * 5000
            steps.setdefault(got.sender, []).append(got.step)
        assert all(one == list(range(30)) for one in steps.values())


def test_strangers_are_dropped_and_counted(four: Quartet) -> None:
    tag = fold(four.run)
    data, report = Flag.ASK, Flag.REPORT
    wrong = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(3000),
        LAYOUT.pack(MAGIC, data, 1, tag ^ 1, 0, 0, 0, 0) + bytes(100),  # of another run
        LAYOUT.pack(MAGIC ^ 1, data, 1, tag, 0, 0, 0, 0) + bytes(100),
        LAYOUT.pack(MAGIC, data, 9, tag, 0, 0, 0, 0) + bytes(100),  # nobody
        LAYOUT.pack(MAGIC, data, 1, tag, 900, 0, 0, 0) + bytes(100),  # no group
        LAYOUT.pack(MAGIC, data, 2, tag, 1, 0, 0, 0) + bytes(100),  # not in that group
        LAYOUT.pack(MAGIC, data, 1, tag, 0, 30_000, 0, 0) + bytes(1452),  # far ahead
        LAYOUT.pack(MAGIC, data, 1, tag, 0, 0, 1 << 30, 0) + bytes(1452),
        LAYOUT.pack(MAGIC, report, 1, tag, 0, 0, 0, 0) + bytes(5),
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for words in wrong:
            stranger.sendto(words, (ADDRESSES[0], four.port))
        _until(lambda: four.nodes[0].counters().received.packets >= len(wrong))
    assert four.nodes[0].counters().strangers == len(wrong)
    four.nodes[1].send(0, Message(Kind.GRADIENT, 1, 0, 1, b"still here"))
    assert bytes(four.receive(0).body) == b"still here"


def test_a_replayed_packet_is_not_delivered_twice(four: Quartet) -> None:
    group, port = group_address(four.run, 1), four.port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ear.bind((group, port))
        ear.settimeout(60)
        membership = socket.inet_aton(group) + socket.inet_aton(ADDRESSES[0])
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        four.nodes[0].send(1, Message(Kind.GRADIENT, 1, 0, 0, b"once"))
        raw = ear.recv(2000)
        for _ in range(3):
            ear.sendto(raw, (ADDRESSES[1], port))
    assert bytes(four.receive(1).body) == b"once"
    _until(lambda: four.nodes[1].counters().duplicates >= 3)
    assert four.inboxes[1].empty()


def test_a_member_that_is_gone_is_named(four: Quartet) -> None:
    four.nodes[2].close()
    four.nodes[0].send(0, Message(Kind.GRADIENT, 0, 0, 0, b"hello?"))
    lost = four.inboxes[0].get(timeout=60)
    assert isinstance(lost, NodeLost)
    assert lost.node == "worker-2"
    with pytest.raises(NodeLost, match="worker-2"):
        four.nodes[0].send(0, Message(Kind.GRADIENT, 1, 0, 0, b"hello?"))
    four.nodes[0].send(1, Message(Kind.GRADIENT, 1, 0, 0, b"we are fine"))
    assert [bytes(four.receive(1).body) for _ in range(2)] == [b"hello?", b"we are fine"]


def test_an_endpoint_hands_groups_on(four: Quartet) -> None:
    one, two = (
        ThreadedEndpoint(n, four.run, names=NAMES, clock=lambda ns: ns / 1e9, silence_s=1.0)
        for n in (0, 1)
    )
    one.listen(ADDRESSES[0], four.port)
    two.connect(0, ADDRESSES[0], four.port, 60.0)
    two.send([0], Message(Kind.HELLO, 0, 0, 1, b""))
    assert one.receive(60.0).kind is Kind.HELLO
    for number, endpoint in enumerate((one, two)):
        four.nodes[number].close()
        endpoint.multicaster = four.nodes[number] = Multicaster(
            number, four.run, names=NAMES, clock=lambda ns: ns / 1e9, silence_s=1.0,
            addresses=ADDRESSES, port=four.port, deliver=endpoint.deliver,
        )  # fmt: skip
        endpoint.form_groups([EVERYBODY, PAIR])
    assert one.multicast(1, Message(Kind.GRADIENT, 4, 0, 0, b"there")) == 45
    assert bytes(two.receive(60.0).body) == b"there"
    two.multicast(1, Message(Kind.GRADIENT, 4, 0, 1, b"and back"))
    assert bytes(one.receive(60.0).body) == b"and back"
    for endpoint in (one, two):
        endpoint.close()


def _until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)
