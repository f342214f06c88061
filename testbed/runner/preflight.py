"""Checks that this machine can do what a scenario asks for, before anything is made.

A link is shaped by making its packets wait; where the machine is slower than the rate that was
asked for, what is measured is the machine. So a run whose rates come near to what a plain veth
carries with the same offload bundles (``gso_max_segs``) gets longer ones, as far as its links allow
them, or is refused before anything is made. Slow scenarios are not measured.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, product
from pathlib import Path

from testbed.errors import MachineError
from testbed.fabric.base import RunContext, fabrics
from testbed.host import user_namespace
from testbed.journal import folder, start_of_boot
from testbed.links.capabilities import probe
from testbed.links.network import devices
from testbed.links.network.bridges import add_neighbour
from testbed.links.network.namespaces import (
    OWN,
    apart,
    enter,
    inside,
    opened,
    unknown,
)
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import FLOOR_BITS, bundle_sizes
from testbed.process import NEW_NETWORK, unshare
from testbed.runner import cross_traffic
from testbed.scenario.expand import expand
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES, LinkDirection
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import flows
from testbed.scenario.timeline import Timeline
from testbed.scenario.validate_links import kernel_needs
from testbed.transport.endpoint import connect_patiently

FILES, FILES_OF_NODE, FILES_OF_PROCESS = 64, 6, 3
"""Open files that a process of ours has in any case; the agent for every node, whose connections it
follows; and this one for every node and every process of a job, which it hears and watches."""


def check(
    loaded: Loaded,
    fabric: str,
    *,
    filled: bool = False,
    processes: int = 0,
    multicast: bool = False,
) -> int:
    """Packets that the run's offload bundles must have at least for this machine to move it.

    Raises MachineError for what is missing and how to get it, InputError for an unknown fabric.

    ``filled``: every link direction is filled by itself, as in a replay, which has no cross
    traffic; else training shares them. ``processes``: of a job, in every node. ``multicast``:
    nodes send multicasts.
    """
    # Made for nothing but its complaints, which come before any directory, and before waiting for
    # other runs.
    context = RunContext("preflight", Path(), "", multicast=multicast)
    fabrics.get(fabric, where="--fabric")(context).destroy()
    _check_open_files(len(expand(loaded.scenario)), processes)
    scenario, timeline = loaded.wall(), loaded.timeline()

    def try_out() -> int:
        needs = [*kernel_needs(scenario), *_needs_of_outages(timeline)]
        if needs and (missing := probe().missing(needs)):
            raise missing
        return _check_rates(scenario, timeline, filled)

    # Where not even that is permitted, the agent will tell of the kernel, and nobody of rates.
    needed = try_out() if os.geteuid() == 0 else user_namespace.elsewhere(try_out)
    _check_congestion(scenario.congestion)
    if not filled:
        cross_traffic.check(flows(scenario), fabric, scenario.congestion)
    return needed or 1


def shortfalls(loaded: Loaded) -> Iterator[MachineError]:
    """Yield what this kernel lacks for ``loaded`` on real links; nothing where that cannot be
    known."""
    needs = [*kernel_needs(loaded.scenario), *_needs_of_outages(loaded.timeline())]
    with suppress(MachineError):
        able = probe() if user_namespace.privileged() else user_namespace.try_out()
        if needs and able.privileged and (lacking := able.missing(needs)):
            yield lacking
    wanted = [loaded.scenario.congestion, *(flow.congestion for flow in flows(loaded.scenario))]
    for congestion in dict.fromkeys(wanted):
        try:
            _check_congestion(congestion)
        except MachineError as lacking:
            yield lacking


def _check_open_files(nodes: int, processes: int) -> None:
    """Agent and this process open files for every node; the kernel allows so many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = max(FILES_OF_NODE, FILES_OF_PROCESS * (1 + processes))
    needed = FILES + each * nodes
    if most != resource.RLIM_INFINITY and needed > most:
        raise MachineError(
            f"{nodes} nodes need some {needed} open files, and a process may have {most} here",
            fix=f"Use at most {max(0, most - FILES) // each} nodes or --fabric sim, or have the "
            "hard limit raised (`ulimit -Hn`; `nofile` in limits.conf)",
        )


def _needs_of_outages(timeline: Timeline) -> list[str]:
    longest_s, end = timeline.longest_outage_s()
    return [f"charge (for outages such as that of {end})"] if longest_s else []


def _check_congestion(wanted: str | None) -> None:
    """Raises MachineError for one that the kernel neither has nor loads for this process.

    A socket is asked: that takes no privilege, and loads what root may have loaded. The kernel
    loads one for root's own processes only; the agent may be one of them.
    """
    if wanted is None or (os.geteuid() != 0 and _can_be_loaded(wanted)):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
        try:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, wanted.encode())
        except OSError as error:
            if error.errno != errno.EPERM:  # known, and routes may have it whoever may select it
                raise unknown(wanted, None, error) from error


def _can_be_loaded(congestion: str) -> bool:
    modules = Path("/lib/modules", platform.release(), "kernel/net/ipv4")
    return any(modules.glob(f"tcp_{congestion}.ko*"))


def _check_rates(scenario: Scenario, timeline: Timeline, filled: bool) -> int:
    """Only what nodes themselves can have under way counts: a rack passes on what they send."""
    roles = {spec.name: spec.role for spec in expand(scenario)}
    highest: dict[LinkDirection, int] = {
        end: rate for end, rate in timeline.highest_rates().items() if end.link in roles
    }
    servers = [name for name, role in roles.items() if role == "server"]
    others = [name for name, role in roles.items() if role == "host"]
    return check_capacity(
        highest,
        sum(highest.values()) if filled else busy_at_once(highest, servers, others),
        partial(bundle_sizes, timeline),
        dilation=scenario.dilation,
    )


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
        flow, machine = measure_veth(1, segments), measure_veth(os.cpu_count() or 1, segments)
        before = known or (0, 0)
        known = (max(flow, before[0]), max(flow, machine, before[1]))
        _write(segments, known)
    _known[segments] = known
    return known


def _read(segments: int) -> tuple[int, int] | None:
    try:
        kept = json.loads(_file().read_text())
        flow, machine = kept[str(segments)] if kept["boot"] == _boot() else (None, None)
    except (OSError, ValueError, LookupError, TypeError):  # there is none, or it is not ours
        return None
    return (flow, machine) if isinstance(flow, int) and isinstance(machine, int) else None


def _write(segments: int, rates: tuple[int, int]) -> None:
    """Keeping it is a convenience: where that is impossible, the next run measures again."""
    path = _file()
    with suppress(OSError, ValueError):
        kept = json.loads(path.read_text()) if path.exists() else {}
        same = isinstance(kept, dict) and kept.get("boot") == _boot()
        kept = kept if same else {"boot": _boot()}
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


_SETTLE_S, _MEASURE_S = 0.04, 0.08
_OPEN_S, _RETRY_S = 5.0, 0.01
_CHUNK_BYTES = 1 << 20
_MOST_FLOWS = 32
_NEAR, _FAR = "192.0.2.1", "192.0.2.2"
"""Addresses of the block for documentation, which nobody routes."""

_PORT = 5001


def _send(sender: socket.socket) -> None:
    chunk = memoryview(bytes(_CHUNK_BYTES))
    with sender, suppress(OSError):
        while True:
            sender.send(chunk)


def _receive(receiver: socket.socket, sizes: list[int]) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    with receiver, suppress(OSError):
        while size := receiver.recv_into(buffer):
            sizes.append(size)


def measure_veth(flows: int, segments: int) -> int:
    """Bit/s, frames counted, that so many flows move through a veth in bundles of ``segments``
    packets.

    Nothing on the host is touched, nothing is left. Raises MachineError where that is not
    permitted.
    """
    try:
        return apart(lambda: _attempt(min(flows, _MOST_FLOWS), segments))
    except OSError as error:
        raise MachineError(
            f"what a veth carries here could not be measured: {error.strerror}",
            fix="Run `testbed doctor`",
        ) from error


def _attempt(count: int, segments: int) -> int:
    with _fresh() as near, _fresh() as far, ThreadPoolExecutor(2 * count) as pool:
        enter(near)
        _lay(near, far, segments)
        flows, sizes = _connect(far, count), list[int]()
        try:
            for sender, receiver in flows:
                pool.submit(_send, sender)
                pool.submit(_receive, receiver, sizes)
            time.sleep(_SETTLE_S)
            before, began = sum(sizes), time.monotonic()
            time.sleep(_MEASURE_S)
            moved, took = sum(sizes) - before, time.monotonic() - began
        finally:
            for end in chain(*flows):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
    return int(8 * moved * FRAME_BYTES / SEGMENT_BYTES / took)


@contextmanager
def _fresh() -> Iterator[str]:
    """A namespace for the length of a ``with`` block; the calling thread is in it."""
    unshare(NEW_NETWORK)
    with opened(OWN) as descriptor:
        yield f"/proc/self/fd/{descriptor}"


def _lay(near: str, far: str, segments: int) -> None:
    with NetlinkChannel(near) as here, NetlinkChannel(far) as remote:
        cable = devices.add_veth(here, "near", "far", far)
        other = devices.named(remote, "far")
        for channel, own, address, peer in (
            (here, cable, _NEAR, (_FAR, other.mac)),
            (remote, other, _FAR, (_NEAR, cable.mac)),
        ):
            devices.set_link(channel, own.index, GSO_MAX_SEGS=segments)
            devices.add_address(channel, own.index, address, 24)
            devices.set_up(channel, own.index)
            add_neighbour(channel, own.index, *peer)


def _connect(far: str, count: int) -> list[tuple[socket.socket, socket.socket]]:
    with inside(far):
        listener = socket.create_server((_FAR, _PORT))
    flows = []
    with listener:
        for _ in range(count):
            # what is sent at once after a cable was switched on is lost
            sender = connect_patiently((_FAR, _PORT), _OPEN_S, _RETRY_S)
            receiver, _ = listener.accept()
            receiver.settimeout(None)
            flows.append((sender, receiver))
    return flows
