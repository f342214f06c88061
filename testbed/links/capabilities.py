"""Capabilities of this kernel, tried out in a namespace that lives for milliseconds, and the rates
that this machine can move.

A link is shaped by making its packets wait; where the machine is slower than the rate that was
asked for, what is measured is the machine. So a run whose rates come near to what a plain veth
carries with the same offload bundles (``gso_max_segs``) gets longer ones, as far as its links allow
them, or is refused before anything is made. Slow scenarios are not measured.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import MachineError
from testbed.journal import folder, start_of_boot
from testbed.links.network.namespaces import apart, available_congestion, leave_for_new
from testbed.links.tc.parameters import LARGEST_CHARGE_BYTES, pace
from testbed.process import become_realtime
from testbed.scenario.link_state import Impairments, LinkDirection

if TYPE_CHECKING:
    from testbed.links.tc.netlink import NetlinkChannel


REQUIRED = ("veth", "bridge", "htb", "bfifo")
"""Without these no link is shaped; ``ifb`` and the rest only where something asks for them."""

_OPTION = {
    "veth": "CONFIG_VETH",
    "bridge": "CONFIG_BRIDGE",
    "htb": "CONFIG_NET_SCH_HTB",
    "bfifo": "CONFIG_NET_SCHED",
    "netem": "CONFIG_NET_SCH_NETEM",
    "ifb": "CONFIG_IFB",
    "ingress": "CONFIG_NET_SCH_INGRESS",
    "u32": "CONFIG_NET_CLS_U32",
    "mirred": "CONFIG_NET_ACT_MIRRED",
}
_WORDS = {"seed": "netem-seed", "charge": "htb-charge"}
_SEEDED = Impairments(seed=7)
_IN_THE_GUEST = {"netem", "ifb", "ingress", "u32", "mirred"}
_NEEDED_FOR_NETWORK = ("ifb", "ingress", "u32", "mirred")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities that were found. ``"netem" in capabilities`` asks for one kind."""

    kinds: frozenset[str]
    """The kinds that work, of those in ``_OPTION`` and ``_WORDS``."""
    realtime: bool
    """SCHED_FIFO is permitted."""
    congestion: tuple[str, ...]
    """TCP congestion controls that are loaded."""
    kernel: str
    privileged: bool
    """Network namespaces can be made at all."""

    def __contains__(self, kind: object) -> bool:
        return kind in self.kinds

    def missing(self, needs: Iterable[str] = REQUIRED) -> MachineError | None:
        """Return what to raise if a need is not met: its first word is the kind (``seed`` for
        netem-seed, ``charge`` for htb-charge). None if all are met."""
        if not self.privileged:
            return MachineError(
                "network namespaces cannot be made without root's privileges",
                fix="Run as root (sudo), or with --fabric docker as a member of the group docker.",
            )
        words = ((need, need.split(maxsplit=1)[0]) for need in needs)
        requested = {need: _WORDS.get(word, word) for need, word in words}
        absent = {need: kind for need, kind in requested.items() if kind not in self.kinds}
        if not absent:
            return None
        said = f"kernel {self.kernel} lacks {'; '.join(absent)}"
        return MachineError(said, fix=_how_to_get(set(absent.values())))


def probe() -> Capabilities:
    """Find out. Nothing is left behind, nothing on the host is touched."""
    from testbed.links.tc.netlink import NetlinkChannel

    def attempt() -> Capabilities:
        kinds: set[str] = set()
        known, release = available_congestion(), platform.release()
        try:
            leave_for_new()
        except OSError:
            return Capabilities(frozenset(), False, known, release, False)
        with NetlinkChannel() as channel:
            _try_kinds(channel, kinds)
        return Capabilities(frozenset(kinds), become_realtime(), known, release, True)

    return apart(attempt)


def needs_of_network() -> tuple[str, ...]:
    """Return what ``at: network`` needs beyond ``REQUIRED``."""
    return tuple(f"{kind} (for links with at: network)" for kind in _NEEDED_FOR_NETWORK)


def needs_of_lines(
    ends: Sequence[LinkDirection] = (), seeded: Sequence[LinkDirection] = ()
) -> tuple[str, ...]:
    """Return the needs of delay, loss and the like; ``seeded``: with seeds of their own."""
    words = f"for {_listed(ends)}" if ends else "for delay, loss and the like"
    needs = [f"{kind} ({words})" for kind in ("netem", *_NEEDED_FOR_NETWORK)]
    return (*needs, f"netem-seed (for {_listed(seeded)})") if seeded else tuple(needs)


def _listed(ends: Sequence[LinkDirection]) -> str:
    first = min(ends)
    return str(first) if len(ends) == 1 else f"{first} and {len(ends) - 1} more"


def _try_kinds(channel: NetlinkChannel, kinds: set[str]) -> None:
    from testbed.links.network import devices
    from testbed.links.tc import htb, netem

    def works(kind: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except OSError:
            return False
        kinds.add(kind)
        return True

    works("bridge", lambda: devices.add_bridge(channel, "bridge0"))
    works("ifb", lambda: devices.add_ifb(channel, "probe-ifb"))
    works("veth", lambda: devices.add_veth(channel, "near", "far", "/proc/thread-self/ns/net"))
    works("ingress", lambda: htb.redirect(channel, 1, 1))
    index = next((d.index for d in devices.all_devices(channel) if d.name in ("near", "lo")), 1)
    if works("htb", lambda: channel.send(htb.add_root(index))):
        charging = pace(1_000_000)._replace(mpu_bytes=LARGEST_CHARGE_BYTES)
        channel.send(htb.add_class(index, charging))
        # Kernels that do not charge a packet for more than its length ignore it without a word.
        if htb.decode_class(channel.ask(htb.read_class(index))).pace == charging:
            kinds.add("htb-charge")
        works("bfifo", lambda: channel.send(htb.add_leaf(index, 0x10, 10_000)))
        channel.send(htb.delete_root(index))
    if works("netem", lambda: channel.send(netem.add(index, netem.NetemState(_SEEDED, 1000)))):
        # Kernels that know no seed ignore it without a word.
        state = netem.decode(channel.ask(netem.read(index)))
        if state is not None and state.impairments.seed == _SEEDED.seed:
            kinds.add("netem-seed")
    if "ingress" in kinds:
        kinds.update(("u32", "mirred"))


def _how_to_get(absent: set[str]) -> str:
    """Return advice on how to get the kinds that are absent."""
    hints = []
    if options := sorted(_OPTION.get(kind, kind) for kind in absent - set(_WORDS.values())):
        hints.append(f"{_distribution()} The kernel's options are called {', '.join(options)}.")
        if absent & _IN_THE_GUEST:
            hints.append("Or run it with --guest, in a kernel of its own.")
    if "netem-seed" in absent:
        hints.append("Seeds of delay lines need Linux 6.6 or later: leave out `seed` on others.")
    if "htb-charge" in absent:
        hints.append(
            "Outages need a kernel whose HTB charges a least packet size (`mpu`): Linux 5.17 or "
            "later, or an update of an older one. Or leave out outages, partitions and rates of 0."
        )
    return " ".join(hints)


def _distribution() -> str:
    release = os.uname().release
    try:
        known = Path("/etc/os-release").read_text()
    except OSError:
        known = ""
    words = {line.partition("=")[2].strip('"') for line in known.splitlines() if line[:2] == "ID"}
    names = " ".join(words)
    if "ubuntu" in names:
        return f"Install it with 'apt-get install linux-modules-extra-{release}'."
    if any(name in names for name in ("fedora", "rhel", "centos")):
        return f"Install it with 'dnf install kernel-modules-extra-{release}'."
    if "debian" in names:
        return "Install Debian's own kernel with 'apt-get install linux-image-amd64' and boot it."
    return "Boot your distribution's standard kernel, with all its network modules."


FLOOR_BITS = 500_000_000
"""Up to this rate, any machine that runs the rest carries a link: nothing is measured."""

SHARE = 0.7
"""Share of a plain veth's rate that may be asked for: the rest is for shaping and for the nodes."""

DILATIONS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Time dilations that are suggested where a scenario does not fit."""

_known: dict[int, tuple[int, int]] = {}


def check_capacity(
    highest: Mapping[LinkDirection, int],
    at_once_bits: int,
    sizes: Callable[[float], Sequence[int]],
    *,
    dilation: float = 1.0,
) -> int:
    """The bundle that this machine needs at least, in packets: 1 where the preferred one will do.

    Raises MachineError for what it cannot carry in any, with asked, measured, and what fits.

    ``highest``: the highest rate of every link direction, wall bit/s; ``at_once_bits``: the most
    that can be under way at one instant (``busy_at_once``); ``sizes``: the bundles that the run may
    have, ascending, the preferred one first, if it were slowed down by a factor more (``sizes(1)``:
    as it is); ``dilation``: the scenario's own, which the rates have in them. Costs nothing up to
    ``FLOOR_BITS``.
    """
    end = max(highest, key=lambda each: highest[each], default=None)
    if end is None or max(highest[end], at_once_bits) <= FLOOR_BITS:
        return 1
    preferred, *longer = sizes(1)
    flow = machine = bundle = 0
    # what was measured on a busy machine refuses nobody, and makes no bundle longer
    for bundle, fresh in product((preferred, *longer), (False, True)):
        flow, machine = measured(bundle, fresh=fresh)
        if highest[end] <= SHARE * flow and at_once_bits <= SHARE * machine:
            return 1 if bundle == preferred else bundle
    if highest[end] > SHARE * flow:
        requested, can, what, where = highest[end], flow, f"link {str(end)!r}", "one flow"
    else:
        requested, can, what, where = at_once_bits, machine, "all links together", "all processors"
    raise MachineError(
        f"{what} would have {_rate(requested)}, but {where} here can move {_rate(can)} through an "
        f"unshaped veth in bundles of {bundle} packets, the longest that the scenario allows, and "
        f"only {SHARE:.0%} of that can be emulated",
        fix=_fitting(highest[end], at_once_bits, sizes, dilation),
    )


def busy_at_once(
    highest: Mapping[LinkDirection, int], servers: Iterable[str], others: Iterable[str]
) -> int:
    """The most bits per second that training on a star can have under way, all links at their
    highest.

    Workers send to servers and servers to workers; ``others`` (hosts with traffic of their own) to
    anyone.
    """
    serving, apart = set(servers), set(others)
    nodes = {end.link for end in highest}
    working = nodes - serving - apart

    def total(links: set[str], direction: str) -> int:
        return sum(
            rate
            for end, rate in highest.items()
            if end.link in links and end.direction == direction
        )

    pushed = min(total(working, "up"), total(serving, "down"))
    pulled = min(total(serving, "up"), total(working, "down"))
    across = min(total(apart, "up") + total(apart, "down"), total(nodes, "down"))
    return pushed + pulled + across


def measured(segments: int, *, fresh: bool = False) -> tuple[int, int]:
    """Bit/s of one flow through a veth, and of a flow per processor, in bundles of ``segments``
    packets.

    Remembered by this process, and on disk until the next boot; ``fresh``: measured again, the
    higher kept. Raises MachineError where namespaces cannot be made.
    """
    known = _known.get(segments) or _read(segments)
    if known is None or fresh:
        from testbed.links.unshaped import measure

        flow, machine = measure(1, segments), measure(os.cpu_count() or 1, segments)
        before = known or (0, 0)
        known = (max(flow, before[0]), max(flow, machine, before[1]))
        _write(segments, known)
    _known[segments] = known
    return known


def _read(segments: int) -> tuple[int, int] | None:
    try:
        kept = json.loads(_file().read_text())
    except (OSError, ValueError):
        return None
    flow, machine = (
        kept.get(str(segments), (None, None)) if _boot() == kept.get("boot") else (None, None)
    )
    return (flow, machine) if isinstance(flow, int) and isinstance(machine, int) else None


def _write(segments: int, rates: tuple[int, int]) -> None:
    """Keeping it is a convenience: where that is impossible, the next run measures again."""
    path = _file()
    with suppress(OSError, ValueError):
        kept = json.loads(path.read_text()) if path.exists() else {}
        kept = kept if kept.get("boot") == _boot() else {"boot": _boot()}
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({**kept, str(segments): rates}))
        new.replace(path)


def _file() -> Path:
    return folder() / "capacity.json"


def _boot() -> str:
    return f"{platform.release()} {start_of_boot()}"


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.2f} Gbit/s"


def _fitting(
    highest_bits: int,
    at_once_bits: int,
    sizes: Callable[[float], Sequence[int]],
    dilation: float,
) -> str:
    """The least dilation with which it fits; bundles may shrink with the rates."""
    for factor in DILATIONS:
        flow, machine = measured(sizes(factor)[-1])
        if highest_bits <= factor * SHARE * flow and at_once_bits <= factor * SHARE * machine:
            return f"With `dilation: {factor * dilation:g}` in the scenario it would fit."
    return "Ask for lower rates, or take a faster machine."
