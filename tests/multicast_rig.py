"""Nodes that multicast, all in this process, each with its sockets in its own namespace."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import NodeLost
from testbed.links.network import namespaces
from testbed.node import Kind, Message
from testbed.topology import MULTICAST_PORT, NodePlacement
from testbed.transport.multicast.endpoint import Multicaster

REPORT_MS = 40
Inbox = queue.SimpleQueue[Message | NodeLost]


class Casters:
    """A multicaster for each place, by the place's number; all are in ``groups``."""

    def __init__(self, places: Mapping[str, NodePlacement], silence_s: float = 20.0) -> None:
        by_number = {place.spec.peer: place for place in places.values()}
        run = random.getrandbits(64)
        self.names = {number: place.spec.name for number, place in by_number.items()}
        self.inboxes: dict[int, Inbox] = {number: queue.SimpleQueue() for number in by_number}
        self.nodes: dict[int, Multicaster] = {}
        for number, place in by_number.items():
            with namespaces.inside(place.nic.netns):
                self.nodes[number] = Multicaster(
                    number, run, names=self.names, clock=lambda ns: ns / 1e9, silence_s=silence_s,
                    addresses={n: p.data_address for n, p in by_number.items()},
                    port=MULTICAST_PORT, deliver=self.inboxes[number].put,
                )  # fmt: skip

    def form(self, groups: Sequence[frozenset[int]]) -> None:
        for node in self.nodes.values():
            node.form_groups(groups)

    def send(self, sender: int, group: int, step: int, body: bytes) -> None:
        self.nodes[sender].send(group, Message(Kind.GRADIENT, step, 0, sender, body))

    def receive(self, node: int, timeout: float = 60.0) -> Message:
        item = self.inboxes[node].get(timeout=timeout)
        if isinstance(item, NodeLost):
            raise item
        return item

    def exchange(self, steps: int, body: bytes) -> None:
        """Everybody sends to group 0, which all are in, and receives from all others, step by step."""

        def take_part(number: int) -> None:
            others = self.nodes.keys() - {number}
            for step in range(steps):
                self.send(number, 0, step, body)
                got = [self.receive(number) for _ in others]
                assert {message.sender for message in got} == others
                assert {message.step for message in got} == {step}
                assert all(bytes(message.body) == body for message in got)

        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(take_part, self.nodes))

    def settle(self) -> None:
        """Wait until everything has been confirmed, and the last report has come."""
        for node in self.nodes.values():
            while not node.idle:
                time.sleep(0.01)
        time.sleep(0.1)

    def total(self, kind: str) -> int:
        """Packets of a kind that all have sent."""
        return sum(int(getattr(node.counters(), kind).packets) for node in self.nodes.values())


def wait_until_quiet(places: Mapping[str, NodePlacement], quiet_s: float = 0.4) -> None:
    """Wait until no node has sent anything for a while: all have said which groups they are in.

    They say it twice, at a random moment of ``REPORT_MS`` each.
    """
    before, since, give_up = -1, time.monotonic(), time.monotonic() + 60
    while time.monotonic() - since < quiet_s:
        assert time.monotonic() < give_up, "nodes do not fall silent"
        now = sum(carried(place)["packets_sent"] for place in places.values())
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.02)


def hasten_reports(places: Mapping[str, NodePlacement]) -> None:
    """Have nodes say within ``REPORT_MS`` that they join a group, not within a second."""
    for place in places.values():
        with namespaces.inside(place.nic.netns):
            folder = Path("/proc/sys/net/ipv4/conf/data")
            (folder / "igmpv3_unsolicited_report_interval").write_text(str(REPORT_MS))


@contextmanager
def casters(places: Mapping[str, NodePlacement], silence_s: float = 20.0) -> Iterator[Casters]:
    made = Casters(places, silence_s)
    try:
        yield made
    finally:
        with ThreadPoolExecutor(len(made.nodes)) as threads:
            list(threads.map(Multicaster.close, made.nodes.values()))


def carried(place: NodePlacement) -> dict[str, int]:
    """What a node's data NIC has received and sent: bytes and packets."""
    with namespaces.inside(place.nic.netns):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith("data:"))
    names = {"received": 0, "packets_received": 1, "sent": 8, "packets_sent": 9}
    return {name: int(fields[column]) for name, column in names.items()}
