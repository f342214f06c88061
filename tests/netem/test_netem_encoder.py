"""Our netem against the ``tc`` program's: for the same link the kernel must tell the same bytes."""

from __future__ import annotations

import secrets
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.cli.tc_commands import netem_arguments
from testbed.links.network import devices, namespaces
from testbed.links.tc import htb, netem, parameters
from testbed.links.tc.netem import NetemState
from testbed.links.tc.netlink import KernelRefused, NetlinkChannel
from testbed.links.tc.parameters import LINE_HANDLE
from testbed.scenario.link_state import NONE, FourState, GilbertElliott, Impairments, Slot

MS = 1_000_000
LIMIT = 2048
ORDERED = "rate 8000000gbit"
"""How ``tc`` is told what keeps packets in order."""

DISTRIBUTIONS: tuple[parameters.Distribution, ...] = ("normal", "pareto", "paretonormal")

CASES: dict[str, tuple[Impairments, str]] = {
    "nothing": (Impairments(ordered=False), ""),
    "order": (Impairments(), ORDERED),
    "delay": (Impairments(delay_ns=10 * MS), f"{ORDERED} delay 10ms"),
    "long delay": (Impairments(delay_ns=250_000 * MS), f"{ORDERED} delay 250s"),
    "jitter": (
        Impairments(delay_ns=10 * MS, jitter_ns=2 * MS, ordered=False),
        "delay 10ms 2ms",
    ),
    "jitter with correlation": (
        Impairments(delay_ns=10 * MS, jitter_ns=2 * MS, delay_correlation=0.25),
        f"{ORDERED} delay 10ms 2ms 25%",
    ),
    **{
        name: (
            Impairments(delay_ns=10 * MS, jitter_ns=2 * MS, distribution=name, ordered=False),
            f"delay 10ms 2ms distribution {name}",
        )
        for name in DISTRIBUTIONS
    },
    "loss": (Impairments(loss=0.01), f"{ORDERED} loss 1%"),
    "all lost": (Impairments(loss=1.0), f"{ORDERED} loss 100%"),
    "rare loss": (Impairments(loss=1e-6), f"{ORDERED} loss 0.0001%"),
    "gilbert-elliott": (
        Impairments(loss=GilbertElliott(0.01, 0.3, 0.9, 0.001)),
        f"{ORDERED} loss gemodel 1% 30% 90% 0.1%",
    ),
    "gilbert": (
        Impairments(loss=GilbertElliott(0.02, 0.25)),
        f"{ORDERED} loss gemodel 2% 25%",
    ),
    "four-state": (
        Impairments(loss=FourState(p13=0.01, p31=0.5, p32=0.2, p23=0.1, p14=0.05)),
        f"{ORDERED} loss state 1% 50% 20% 10% 5%",
    ),
    "mark": (Impairments(loss=0.05, ecn=True), f"{ORDERED} loss 5% ecn"),
    "reorder": (
        Impairments(delay_ns=10 * MS, reorder=0.25),
        f"{ORDERED} delay 10ms reorder 25%",
    ),
    "reorder with correlation and gap": (
        Impairments(delay_ns=10 * MS, reorder=0.25, reorder_correlation=0.5, reorder_gap=5),
        f"{ORDERED} delay 10ms reorder 25% 50% gap 5",
    ),
    "duplicate": (Impairments(duplicate=0.02), f"{ORDERED} duplicate 2%"),
    # By itself ``tc`` forgets to send the correlation of duplicates; with another one it does.
    "duplicate with correlation": (
        Impairments(
            delay_ns=10 * MS,
            jitter_ns=2 * MS,
            delay_correlation=0.1,
            duplicate=0.02,
            duplicate_correlation=0.3,
        ),
        f"{ORDERED} delay 10ms 2ms 10% duplicate 2% 30%",
    ),
    "corrupt": (
        Impairments(corrupt=0.03, corrupt_correlation=0.1),
        f"{ORDERED} corrupt 3% 10%",
    ),
    "slot": (
        Impairments(slot=Slot(1 * MS, 5 * MS, 32, 64_000)),
        f"{ORDERED} slot 1ms 5ms packets 32 bytes 64000",
    ),
    "slot without end": (Impairments(slot=Slot(2 * MS, 2 * MS)), f"{ORDERED} slot 2ms"),
    "everything": (
        Impairments(
            delay_ns=20 * MS,
            jitter_ns=3 * MS,
            distribution="pareto",
            delay_correlation=0.1,
            loss=GilbertElliott(0.01, 0.2, 0.5, 0.01),
            reorder=0.1,
            reorder_correlation=0.3,
            reorder_gap=3,
            duplicate=0.01,
            duplicate_correlation=0.4,
            corrupt=0.02,
            corrupt_correlation=0.5,
            slot=Slot(1 * MS, 2 * MS, 7, 9_000),
            ecn=True,
        ),
        f"{ORDERED} delay 20ms 3ms 10% distribution pareto loss gemodel 1% 20% 50% 1% ecn "
        "reorder 10% 30% gap 3 duplicate 1% 40% corrupt 2% 50% slot 1ms 2ms packets 7 bytes 9000",
    ),
}


@dataclass
class Scratch:
    """A namespace with a cable whose two ends are nobody's."""

    netns: str
    channel: NetlinkChannel
    index: dict[str, int]

    def by_tc(self, device: str, arguments: str) -> bytes:
        command = f"tc qdisc add dev {device} root handle {LINE_HANDLE >> 16:x}: netem"
        with namespaces.inside(self.netns):
            subprocess.run(
                [*shlex.split(f"{command} limit {LIMIT} {arguments}")], check=True, timeout=20
            )
        return self.held(device)

    def by_us(self, device: str, impairments: Impairments) -> bytes:
        self.channel.send(
            netem.set_line(self.index[device], NetemState(impairments, LIMIT), htb.ADD)
        )
        return self.held(device)

    def change(self, device: str, impairments: Impairments, with_table: bool = True) -> bytes:
        told = NetemState(impairments, LIMIT)
        self.channel.send(netem.set_line(self.index[device], told, with_table=with_table))
        return self.held(device)

    def held(self, device: str) -> bytes:
        """The options as the kernel dumps them; the seed is its own."""
        message = tcmsg(self.channel.ask(netem.read(self.index[device])))
        message.decode()
        options = message.get_attr("TCA_OPTIONS")
        told = options.dump()
        told["attrs"] = [one for one in told["attrs"] if one[0] != "TCA_NETEM_PRNG_SEED"]
        return repr(told).encode()

    def decoded(self, device: str) -> NetemState:
        held = netem.decode(self.channel.ask(netem.read(self.index[device])))
        assert held is not None
        return held

    def clear(self, device: str) -> None:
        self.channel.send(htb.delete_root(self.index[device], LINE_HANDLE))


@pytest.fixture(scope="module")
def cable() -> Iterator[Scratch]:
    name = f"nw-test-{secrets.token_hex(3)}"
    path = namespaces.make(name)
    try:
        with NetlinkChannel(path) as channel:
            devices.add_veth(channel, "theirs", "ours", path)
            found = {device.name: device.index for device in devices.all_devices(channel)}
            yield Scratch(path, channel, found)
    finally:
        namespaces.remove(name)


@pytest.fixture
def scratch(cable: Scratch) -> Iterator[Scratch]:
    """A netem is gone with all that it held."""
    yield cable
    for device in ("theirs", "ours"):
        with suppress(KernelRefused):
            cable.clear(device)


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_tells_the_same_of_ours_as_of_tcs(scratch: Scratch, case: str) -> None:
    impairments, arguments = CASES[case]
    assert scratch.by_us("ours", impairments) == scratch.by_tc("theirs", arguments)
    read_back = scratch.decoded("ours")
    assert netem.same(NetemState(impairments, LIMIT), read_back)
    assert not netem.same(NetemState(impairments, LIMIT + 1), read_back)
    assert not netem.same(NetemState(replace(impairments, delay_ns=1), LIMIT), read_back)


@pytest.mark.parametrize("case", CASES)
def test_what_is_changed_and_cleared_is_as_if_it_had_never_been(
    scratch: Scratch, case: str
) -> None:
    impairments, _ = CASES[case]
    wanted = scratch.by_us("theirs", impairments)
    untouched = scratch.by_us("ours", NONE)
    assert scratch.change("ours", impairments) == wanted
    assert scratch.change("ours", CASES["everything"][0], with_table=False) != untouched
    assert scratch.change("ours", impairments) == wanted
    assert scratch.change("ours", NONE) == untouched


@pytest.mark.parametrize("case", CASES)
def test_the_commands_that_are_shown_do_the_same(scratch: Scratch, case: str) -> None:
    impairments, _ = CASES[case]
    by_tc = scratch.by_tc("theirs", " ".join(netem_arguments(impairments)))
    assert scratch.by_us("ours", impairments) == by_tc


@pytest.mark.parametrize("delay_ns", [1, 123_457, 400_000 * MS + 1])
def test_delays_are_exact_where_tc_counts_in_microseconds(scratch: Scratch, delay_ns: int) -> None:
    scratch.by_us("ours", Impairments(delay_ns=delay_ns, jitter_ns=delay_ns // 1000))
    held = scratch.decoded("ours").impairments
    assert (held.delay_ns, held.jitter_ns) == (delay_ns, delay_ns // 1000)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_our_tables_of_delays_are_tcs(distribution: parameters.Distribution) -> None:
    """To 1 % of the jitter, and 3 % of the value beyond three times it: the tails are steep."""
    theirs = _shipped(distribution)
    ours = parameters.entries(distribution)
    assert len(ours) == len(theirs) == parameters.ENTRIES
    for mine, shipped in list(zip(ours, sorted(theirs), strict=True))[100:-100]:
        assert abs(mine - shipped) <= max(0.01 * parameters.DELAY_UNIT, 0.03 * abs(shipped))


def _shipped(distribution: str) -> list[int]:
    folders = (Path("/usr/lib/tc"), *Path("/usr/lib").glob("*/tc"))
    found = next(path for f in folders if (path := f / f"{distribution}.dist").exists())
    lines = found.read_text().splitlines()
    return [int(word) for line in lines if not line.startswith("#") for word in line.split()]
