"""The ``tc`` and ``ip`` commands that would do to a link what the agent does. Nothing is run."""

from __future__ import annotations

from testbed.links.agent.protocol import LinkSettings
from testbed.links.network.wiring import QueuePoint, hops
from testbed.links.tc.parameters import (
    CLASS_MINOR,
    LEAVES,
    LINE_HANDLE,
    ORDER_BYTES_S,
    QUANTUM_BYTES,
    ROOT,
    burst_bytes,
    limit_packets,
    netem_probabilities,
)
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkDirection,
    LinkState,
)
from testbed.topology import Cable


def link_commands(
    end: LinkDirection, shape: LinkState, cable: Cable, at: str = "nic", impaired: bool = False
) -> list[str]:
    """All that shapes one direction of a link; ``impaired``: it has a delay line though it begins
    with none."""
    points = hops(end, cable, at)
    commands = [*_way_in(points.queue), *tc_commands(end, shape, points.queue.device)]
    if shape.impairments or impaired:
        commands += [*_way_in(points.line), line_command(shape, points.line.device)]
    return commands


def host_commands(cable: Cable, settings: LinkSettings) -> list[str]:
    """Return commands for what holds at a node's interface all run: the length of bundles, the
    route's TCP settings.

    The same is done at the switch's own interface, through which the session's machine may talk.
    """
    nic = cable.nic.name
    words = [f"congctl {settings.congestion}"] if settings.congestion else []
    words += [f"rto_min {settings.rto_min_ms}ms"] if settings.rto_min_ms is not None else []
    words += ["features ecn"] if settings.ecn else []
    commands = [f"ip link set dev {nic} gso_max_segs {settings.segments}"]
    if words:
        subnet = f"$(ip -4 route show dev {nic} scope link proto kernel)"
        same = f"dev {nic} scope link proto kernel"
        commands.append(f"ip route change {subnet} {same} {' '.join(words)}")
    return commands


def tc_commands(end: LinkDirection, shape: LinkState, device: str) -> list[str]:
    """The queue and the rate at ``device``.

    An outage has no equivalent: it is held by the agent while it lasts, and shown as a comment.
    """
    handle, leaf = f"{ROOT:x}:", f"{LEAVES[0]:x}:"
    class_id = f"{handle}{CLASS_MINOR:x}"
    if not shape.rate_bits:
        kept = "packets are dropped" if shape.drop else "packets wait"
        return [f"# {end}: outage on {device}, {kept}"]
    burst = burst_bytes(shape.rate_bits)
    overhead = f" overhead {shape.overhead_bytes}" if shape.overhead_bytes else ""
    return [
        f"tc qdisc add dev {device} root handle {handle} htb default {CLASS_MINOR:x}",
        f"tc class add dev {device} parent {handle} classid {class_id} htb "
        f"rate {shape.rate_bits}bit ceil {shape.rate_bits}bit burst {burst}b cburst {burst}b "
        f"quantum {QUANTUM_BYTES}{overhead}",
        f"tc qdisc add dev {device} parent {class_id} handle {leaf} bfifo limit "
        f"{shape.queue_bytes}b",
    ]


def line_command(shape: LinkState, device: str) -> str:
    """The delay line at ``device``."""
    limit = limit_packets(shape.rate_bits, shape.queue_bytes, shape.impairments)
    head = f"tc qdisc add dev {device} root handle {LINE_HANDLE >> 16:x}: netem limit {limit}"
    return " ".join([head, *netem_arguments(netem_probabilities(shape.impairments))])


def _way_in(hop: QueuePoint) -> list[str]:
    if hop.passing == "leaving":
        return []
    source, target = hop.interface.name, hop.device
    return [
        f"ip link add {target} type ifb && ip link set {target} up",
        f"tc qdisc add dev {source} ingress",
        f"tc filter add dev {source} parent ffff: protocol all u32 match u32 0 0 "
        f"action mirred egress redirect dev {target}",
    ]


def netem_arguments(impairments: Impairments) -> list[str]:
    """Impairments in ``tc``'s words. It counts in microseconds, and older ones know no seed."""
    words = [f"rate {ORDER_BYTES_S * 8 // 10**9}gbit"] if impairments.ordered else []
    if impairments.delay_ns or impairments.jitter_ns:
        words.append(_delay(impairments))
    words += _loss(impairments)
    for name in ("reorder", "duplicate", "corrupt"):
        if share := getattr(impairments, name):
            correlation = getattr(impairments, f"{name}_correlation")
            words += [name, _percent(share), *([_percent(correlation)] if correlation else [])]
            gap = impairments.reorder_gap if name == "reorder" else 0
            words += [f"gap {gap}"] if gap else []
    if slot := impairments.slot:
        words.append(f"slot {_time(slot.shortest_ns)} {_time(slot.longest_ns)}")
        words += [f"packets {slot.packets}"] if slot.packets else []
        words += [f"bytes {slot.bytes}"] if slot.bytes else []
    return words + ([f"seed {impairments.seed}"] if impairments.seed is not None else [])


def _delay(impairments: Impairments) -> str:
    words = [f"delay {_time(impairments.delay_ns)}"]
    if impairments.jitter_ns:
        words.append(_time(impairments.jitter_ns))
        if impairments.delay_correlation:
            words.append(_percent(impairments.delay_correlation))
        if impairments.distribution != "uniform":
            words.append(f"distribution {impairments.distribution}")
    return " ".join(words)


def _loss(impairments: Impairments) -> list[str]:
    loss = impairments.loss
    if isinstance(loss, GilbertElliott):
        words = ["loss gemodel", *map(_percent, (loss.p, loss.r, loss.loss_bad, loss.loss_good))]
    elif isinstance(loss, FourState):
        chances = (loss.p13, loss.p31, loss.p32, loss.p23, loss.p14)
        words = ["loss state", *map(_percent, chances)]
    elif loss:
        words = [f"loss random {_percent(loss)}"]
    else:
        return []
    return [" ".join(words), *(["ecn"] if impairments.ecn else [])]


def _percent(share: float) -> str:
    return f"{100 * share:.10g}%"


def _time(time_ns: int) -> str:
    return f"{time_ns / 1000:.10g}us"
