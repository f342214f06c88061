"""Two nodes at a switch, whose links an agent shapes; and what it takes to count and time packets on them."""

from __future__ import annotations

import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from testbed.links.agent.client import AgentClient, LinkReport
from testbed.links.agent.protocol import LinkSettings
from testbed.links.network import devices, namespaces
from testbed.links.tc.netlink import NetlinkChannel
from testbed.scenario.link_state import Impairments, LinkChange, LinkDirection, LinkState
from testbed.topology import Cable, Interface
from testbed.transport.frame_reader import stamp

MBIT, MS = 1_000_000, 1_000_000
PORT, ECHO_PORT = 9000, 9001
UP, DOWN = LinkDirection("a", "up"), LinkDirection("a", "down")
_UDP_SEGMENT, _BUFFER_FORCE = 103, 33
_STAMP = struct.Struct("=Iq")
BUNDLE = 60


@dataclass
class Lines:
    """``a`` and ``b``: the namespaces of two nodes. ``address``: by name, on their network."""

    agent: AgentClient
    netns: dict[str, str]
    address: dict[str, str]
    cables: dict[str, Cable]
    samples: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    """In the switch, before anything was shaped."""

    def in_the_switch(self) -> set[str]:
        with NetlinkChannel(self.cables["a"].port.netns) as switch:
            return {device.name for device in devices.all_devices(switch)}

    def restore(self) -> None:
        """Have nothing shaped any more; the agent must have left no device behind."""
        assert self.agent.tear_down() == []
        assert self.in_the_switch() == self.devices
        self.samples.clear()

    def close(self) -> None:
        _remove(self.agent, self.names)

    def prepare(
        self,
        shapes: Mapping[LinkDirection, LinkState],
        impaired: tuple[LinkDirection, ...] = (),
        **settings: Any,
    ) -> dict[LinkDirection, dict[str, Any]]:
        chosen = LinkSettings(**{"segments": 1, "congestion": "cubic", **settings})
        held = self.agent.prepare(self.cables, shapes, chosen, impaired)
        return {LinkDirection(link["link"], link["direction"]): link for link in held["links"]}

    def impair(
        self, impairments: Impairments, end: LinkDirection = UP, **settings: Any
    ) -> dict[str, Any]:
        """That end impaired and no other; fast, with a queue that holds all that a test sends at once."""
        return self.prepare({end: shape(impairments)}, **settings)[end]

    def start(self, changes: list[LinkChange], lead_s: float = 0.1) -> int:
        t0 = time.monotonic_ns() + int(lead_s * 1e9)
        self.agent.start(t0, iter(changes))
        return t0

    def report(self, changes: list[LinkChange] | None = None) -> LinkReport:
        """What became of it all, after a replay of changes that is stopped at once."""
        self.start(changes or [], 0.0)
        return self.agent.stop()

    def changes(self) -> list[dict[str, Any]]:
        """What the agent has told of the changes that it made."""
        return [record for record in self.samples if record["kind"] == "change"]

    @contextmanager
    def sender(self, node: str = "a") -> Iterator[socket.socket]:
        with namespaces.inside(self.netns[node]):
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with made:
            other = "b" if node == "a" else "a"
            made.connect((self.address[other], PORT))
            made.settimeout(5)
            yield made

    @contextmanager
    def receiver(self, node: str = "b", port: int = PORT) -> Iterator[socket.socket]:
        with namespaces.inside(self.netns[node]):
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with made:
            made.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, 1 << 29)
            made.bind((self.address[node], port))
            made.settimeout(2)
            yield made

    @contextmanager
    def echo(self) -> Iterator[socket.socket]:
        """A socket at ``a`` that gets back what it sends to ``b``."""
        with self.receiver("b", ECHO_PORT) as far, self.sender() as near:
            near.connect((self.address["b"], ECHO_PORT))
            thread = threading.Thread(target=_echo, args=(far,), daemon=True)
            thread.start()
            try:
                yield near
            finally:
                near.send(b"")
                thread.join(5)

    def counted(self, count: int, size: int = 64) -> int:
        """Send so many datagrams from ``a``; how many of them came to ``b``, whose socket is too small for them."""
        with self.receiver() as far, self.sender() as near:
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            before = self._overflowed()
            flood(near, count, size)
            return len(numbers(far)) + self._overflowed() - before

    def _overflowed(self) -> int:
        with namespaces.inside(self.netns["b"]):
            lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("Udp:"))
        return int(dict(zip(names, values, strict=True))["RcvbufErrors"])


def shape(impairments: Impairments, rate_bits: int = 2000 * MBIT, **others: Any) -> LinkState:
    return LinkState(rate_bits, 4_000_000, impairments=impairments, **others)


def flood(sender: socket.socket, count: int, size: int = 64, bundle: int = BUNDLE) -> None:
    """Send so many numbered datagrams, in bundles that cost as one and are taken apart as they leave."""
    sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
    padding = bytes(size - 4)
    for first in range(0, count, bundle):
        numbers = range(first, min(count, first + bundle))
        sender.send(b"".join(struct.pack("=I", number) + padding for number in numbers))
    sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)


class Arrival(NamedTuple):
    """A datagram by its number, and how long it was on its way, in milliseconds."""

    number: int
    took_ms: float


def send_stamped(
    sender: socket.socket, numbers: Iterable[int], every_s: float, size: int = 64
) -> dict[int, int]:
    """Send numbered datagrams that say when they were sent; returns that by the monotonic clock, too."""
    due, sent = time.monotonic(), {}
    for number in numbers:
        sent[number] = time.monotonic_ns()
        sender.send(_STAMP.pack(number, sent[number]) + bytes(size - _STAMP.size))
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))
    return sent


def arrivals(receiver: socket.socket, quiet_s: float = 0.5) -> list[Arrival]:
    """Stamped datagrams as they came, timed by the kernel; ``ask_for_stamps`` must have been called before."""
    receiver.settimeout(quiet_s)
    found = []
    with suppress(TimeoutError):
        while True:
            data, ancillary, _, _ = receiver.recvmsg(2048, 64)
            number, sent_ns = _STAMP.unpack_from(data)
            found.append(Arrival(number, (stamp(ancillary) - sent_ns) / 1e6))
    return found


def numbers(receiver: socket.socket, quiet_s: float = 0.5) -> list[int]:
    """The numbers of the datagrams that come until there is silence."""
    receiver.settimeout(quiet_s)
    found = []
    with suppress(TimeoutError):
        while True:
            found.append(struct.unpack_from("=I", receiver.recv(2048))[0])
    return found


def _echo(far: socket.socket) -> None:
    far.settimeout(20)
    with suppress(TimeoutError):
        while True:
            data, source = far.recvfrom(2048)
            if not data:
                return
            far.sendto(data, source)


def make_lines() -> Lines:
    """Everything made, and nothing shaped. ``close`` removes it."""
    tag = secrets.token_hex(3)
    names = {name: f"nw-{tag}-{name}" for name in ("switch", "a", "b")}
    agent = AgentClient.local()
    try:
        lines = _lay(agent, {name: namespaces.make(full) for name, full in names.items()})
    except BaseException:
        _remove(agent, names.values())
        raise
    lines.names = list(names.values())
    agent.on_sample = lines.samples.extend
    lines.devices = lines.in_the_switch()
    return lines


def _remove(agent: AgentClient, names: Iterable[str]) -> None:
    agent.close()
    for name in names:
        namespaces.remove(name)


def _lay(agent: AgentClient, paths: dict[str, str]) -> Lines:
    lines = Lines(agent, {name: paths[name] for name in "ab"}, {}, {})
    hardware: dict[str, str] = {}
    with NetlinkChannel(paths["switch"]) as switch:
        bridge = devices.add_bridge(switch, "switch")
        devices.silence(switch, bridge.index)
        devices.set_up(switch, bridge.index)
        for number, name in enumerate("ab", start=1):
            port = devices.add_veth(switch, f"port-{name}", "data", paths[name])
            devices.silence(switch, port.index)
            devices.set_link(switch, port.index, MASTER=bridge.index)
            devices.set_up(switch, port.index)
            with NetlinkChannel(paths[name]) as node:
                nic = devices.find(node, "data")
                assert nic is not None
                devices.silence(node, nic.index)
                lines.address[name] = f"192.0.2.{number}"
                devices.add_address(node, nic.index, lines.address[name], 24)
                devices.set_up(node, 1)
                devices.set_up(node, nic.index)
            lines.cables[name] = Cable(
                Interface(paths[name], nic.index, "data"),
                Interface(paths["switch"], port.index, port.name),
            )
            hardware[name] = nic.mac
    for name, other in ("ab", "ba"):
        _introduce(lines, name, other, hardware[other])
    return lines


def _introduce(lines: Lines, name: str, other: str, hardware: str) -> None:
    """So that nobody asks: the questions would be delayed and lost, too."""
    command = f"ip neighbour replace {lines.address[other]} lladdr {hardware} dev data"
    with namespaces.inside(lines.netns[name]):
        subprocess.run([*command.split(), "nud", "permanent"], check=True)


def least_ms(near: socket.socket, enough_ms: float, patience_s: float = 20.0) -> float:
    """The least round trip of many: until one takes no more than ``enough_ms``, which a busy machine prevents for a
    while, and a wrong delay for good."""
    give_up = time.monotonic() + patience_s
    least = min(round_trip_ms(near) for _ in range(10))
    while least > enough_ms and time.monotonic() < give_up:
        least = min(least, round_trip_ms(near))
    return least


def round_trip_ms(near: socket.socket) -> float:
    """Of one small datagram, in ms."""
    began = time.monotonic()
    near.send(b"ping")
    near.recv(100)
    return (time.monotonic() - began) * 1e3
