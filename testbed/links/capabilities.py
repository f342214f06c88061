"""Capabilities of this kernel, tried out in a namespace that lives for milliseconds."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.errors import MachineError
from testbed.links.network.namespaces import apart, available_congestion
from testbed.links.tc.parameters import LARGEST_CHARGE_BYTES, pace
from testbed.process import NEW_NETWORK, become_realtime, unshare
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
            unshare(NEW_NETWORK)
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
        channel.send(htb.set_class(index, charging, htb.ADD))
        # Kernels that do not charge a packet for more than its length ignore it without a word.
        if htb.decode_class(channel.ask(htb.read_class(index))).pace == charging:
            kinds.add("htb-charge")
        works("bfifo", lambda: channel.send(htb.set_leaf(index, 0x10, 10_000, htb.PUT)))
        channel.send(htb.delete_root(index))
    if works(
        "netem",
        lambda: channel.send(netem.set_line(index, netem.NetemState(_SEEDED, 1000), htb.ADD)),
    ):
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
    try:
        known = platform.freedesktop_os_release()
    except OSError:
        known = {}
    return kernel_package(known, platform.release())


def kernel_package(known: Mapping[str, str], release: str) -> str:
    """Return which package has the kernel's modules, by a system's ``os-release`` and its kernel's
    ``release``, which in a container may be another distribution's."""
    names = f"{known.get('ID')} {known.get('ID_LIKE')}"
    if "ubuntu" in names and re.fullmatch(r"[0-9.]+-[0-9]+-[a-z0-9-]+", release):
        return f"Install it with 'apt-get install linux-modules-extra-{release}'."
    if "ubuntu" in names:
        return "Install Ubuntu's own kernel with 'apt-get install linux-image-generic' and boot it."
    if any(name in names for name in ("fedora", "rhel", "centos")):
        return f"Install it with 'dnf install kernel-modules-extra-{release}'."
    if "debian" in names:
        own = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine := platform.machine(), machine)
        return f"Install Debian's own kernel with 'apt-get install linux-image-{own}' and boot it."
    return "Boot your distribution's standard kernel, with all its network modules."
