"""The delay line of one link direction: a netem, never on its queue's device."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

from testbed.links.tc import netem
from testbed.links.tc.htb import ADD, Passed, QdiscDevice, RootQdisc, passed
from testbed.links.tc.netem import LineCounters, NetemState
from testbed.links.tc.netlink import KernelRefused
from testbed.links.tc.parameters import LINE_HANDLE, limit_packets, netem_probabilities
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState


class NetemConfig(NamedTuple):
    """A state of a line and the message that sets it. ``number``: how many came before."""

    impairments: Impairments
    state: NetemState
    number: int
    message: bytes


class PacketCounts(NamedTuple):
    """Counts of the packets that came to a line since it was installed, by what became of them."""

    packets: int
    """Packets that came. Where the line is a sender's own device its duplicates are among them."""
    lost: int
    """Packets lost by the loss model; with ``ecn`` those marked instead are counted too."""
    refused: int | None
    """Packets lost for want of room: there must be none. None: not known."""


class NetemStage(RootQdisc):
    """Installed once, changed in place, read back, removed. Not thread-safe."""

    handle = LINE_HANDLE

    def __init__(self, end: LinkDirection, where: QdiscDevice) -> None:
        super().__init__(end, where)
        self.setting: NetemConfig | None = None
        """The setting that the kernel was last told."""
        self._zero = LineCounters(0, 0, 0, 0)
        self._zero_in = Passed(0, 0, 0)
        self._read = netem.read(where.index)

    def install(self, shape: LinkState) -> None:
        """Bring the line to what ``shape`` asks of it: a new one, or in place if nothing is on its
        way.

        Raises LinkError for a root that is not ours, and for what the kernel does not take.
        """
        first = self._first(shape)
        try:
            if self.installed and not self.read().backlog_packets:
                self.apply(first)
            else:
                self._make_room()
                self.send(netem.set_line(self.where.index, first.state, ADD))
                self.installed, self.setting = True, first
                self._lead_in()
        except KernelRefused as error:
            raise self._mismatch(describe(first.state), f"nothing: {error.strerror}") from error
        self._zero, self._zero_in = self.read(), self._passed_in() or self._zero_in

    def following(self, before: NetemConfig, shape: LinkState) -> NetemConfig | None:
        """The state that comes after another one; None if that stays.

        A line only ever grows longer: so a rate that goes up and down changes it a few times at
        most.
        """
        limit = limit_packets(shape.rate_bits, shape.queue_bytes, shape.impairments)
        limit = max(limit, before.state.limit_packets)
        if (shape.impairments, limit) == (before.impairments, before.state.limit_packets):
            return None
        new_table = shape.impairments.distribution != before.impairments.distribution
        return self._setting(shape.impairments, limit, before.number + 1, new_table)

    def apply(self, setting: NetemConfig) -> None:
        """Have the kernel take a prepared state. Raises KernelRefused."""
        self.send(setting.message)
        self.setting = setting

    def read(self) -> LineCounters:
        """The line's counters now."""
        return netem.decode_counters(self._channel.ask(self._read))

    def passage(self) -> PacketCounts:
        """Counts since the line was installed. Raises KernelRefused."""
        now, before = self.read(), self._zero
        dropped, came_in = now.lost - before.lost, self._passed_in()
        if came_in is None:
            sent = now.packets - before.packets + now.backlog_packets
            return PacketCounts(sent + dropped, dropped, None)
        refused = came_in.refused - self._zero_in.refused
        return PacketCounts(came_in.packets - self._zero_in.packets, dropped - refused, refused)

    def _passed_in(self) -> Passed | None:
        if self.where.redirect is None:
            return None
        (redirect,) = passed(self._channel, self.where.redirect)
        return redirect

    def verify(self) -> dict[str, Any]:
        """Read the line back. Returns what is held; raises LinkError where it differs."""
        setting, actual, right = self._compared()
        if actual is None or not right:
            raise self._mismatch(describe(setting.state), describe(actual))
        return {
            "device": self.where.name,
            "impairments": setting.impairments.to_json(),
            "limit_packets": actual.limit_packets,
            "read_back": actual.impairments.to_json(),
        }

    def look(self) -> tuple[str, str]:
        """Return both settings in words, the same twice if they agree. Raises KernelRefused."""
        setting, actual, right = self._compared()
        return describe(setting.state), describe(setting.state if right else actual)

    def _compared(self) -> tuple[NetemConfig, NetemState | None, bool]:
        assert self.setting is not None, "a line is read back after it was installed"
        actual = netem.decode(self._channel.ask(self._read))
        return self.setting, actual, actual is not None and netem.same(self.setting.state, actual)

    def _first(self, shape: LinkState) -> NetemConfig:
        limit = limit_packets(shape.rate_bits, shape.queue_bytes, shape.impairments)
        return self._setting(shape.impairments, limit, 0, with_table=True)

    def _setting(
        self, requested: Impairments, limit: int, number: int, with_table: bool
    ) -> NetemConfig:
        seed = seed_of(self.end, requested.seed, number)
        state = NetemState(replace(netem_probabilities(requested), seed=seed), limit)
        message = netem.set_line(self.where.index, state, with_table=with_table)
        return NetemConfig(requested, state, number, message)


def seed_of(end: LinkDirection, seed: int | None, number: int) -> int | None:
    """The seed that the kernel gets with the ``number``-th state of an end; None: its own choice.

    The kernel begins its random numbers anew at every change: with the same seed a changing link
    would see the same few over and over, and links that share a seed the same as each other.
    """
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{end}/{number}".encode()).digest()
    return int.from_bytes(digest[:8])


def describe(state: NetemState | None) -> str:
    """A line in words, for messages; None: it is none of ours."""
    if state is None:
        return "another discipline"
    return f"a delay line of {state.limit_packets} packets with {state.impairments.to_json()}"
