"""Checks of the kernel and the host's network."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import MachineError
from testbed.fabric import rootless
from testbed.setup.check import Check, Finding

if TYPE_CHECKING:
    from testbed.links.probe import Capabilities

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_CONTROL_PORT = 7077
_LISTENS = "0A"
_KERNEL_FIX = "Use a kernel with CONFIG_NET_SCH_HTB and CONFIG_NET_SCH_FIFO (`modprobe sch_htb`)"
_NETEM_FIX = (
    "On Ubuntu: `apt-get install linux-modules-extra-$(uname -r)`, then `modprobe sch_netem`"
)


def control_port() -> Finding:
    """Nobody listens on every address at the port of the control network; runs listen on their own."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for address, _, state in (line.split()[1:4] for line in lines):
            host, _, port = address.partition(":")
            if (int(port, 16), state, set(host)) == (_CONTROL_PORT, _LISTENS, {"0"}):
                taken = f"port {_CONTROL_PORT} is taken on all addresses"
                return Finding(False, taken, "Stop what listens there")
    return Finding(True, f"port {_CONTROL_PORT} is free")


def subnets() -> Finding:
    """Two free private subnets for a run."""
    from testbed.fabric.docker.subnets import free_subnets, routed

    chosen = free_subnets(routed(), nodes=8)
    return Finding(True, " and ".join(map(str, chosen)))


def congestion_controls() -> Finding:
    """Which congestion controls scenarios may ask for."""
    names = _CONGESTION.read_text().split()
    return Finding("cubic" in names, ", ".join(names), "`modprobe tcp_cubic`")


def namespaces() -> Finding:
    """How this user would run nodes as namespaces (`--fabric netns`)."""
    if rootless.privileged():
        return Finding(True, "as root, in the host's own network")
    _kernel()
    return Finding(True, "without root, in a user namespace that ends with the run")


def namespaces_allowed() -> bool:
    """Whether this user may make network namespaces, as root or in a user namespace."""
    try:
        _kernel()
    except MachineError:
        return False
    return True


def queueing() -> Finding:
    """What no link can be shaped without."""
    if not namespaces_allowed():
        return _UNJUDGED
    lacking = _kernel().missing()
    if lacking is not None:
        return Finding(False, lacking.message, lacking.fix or "")
    return Finding(True, f"{', '.join(sorted(_kernel().kinds))} on kernel {_kernel().kernel}")


def in_network() -> Finding:
    """What links with ``at: network`` need."""
    from testbed.links.probe import needs_of_network

    return _optional(needs_of_network(), "links with `at: network` are refused")


def netem() -> Finding:
    """What delay, jitter, loss and the like need."""
    return _optional(("netem",), "scenarios with delay or loss need `--guest`")


def real_time() -> Finding:
    """Whether the agent can have SCHED_FIFO, which keeps its deadlines under load."""
    if not namespaces_allowed():
        return _UNJUDGED
    if not _kernel().realtime:
        fix = "Run as root, or have RLIMIT_RTPRIO raised to 20 (`rtprio` in limits.conf)"
        return Finding(False, "SCHED_FIFO is refused: link changes may come late under load", fix)
    return Finding(True, "SCHED_FIFO can be had")


def _optional(needs: tuple[str, ...], otherwise: str) -> Finding:
    if not namespaces_allowed():
        return _UNJUDGED
    lacking = _kernel().missing(needs)
    if lacking is not None:
        return Finding(False, f"{lacking.message}: {otherwise}", lacking.fix or "")
    return Finding(True, ", ".join(need.split()[0] for need in needs))


@functools.cache
def _kernel() -> Capabilities:
    """Tried out here, or, without root, in a user namespace. Raises MachineError where that is forbidden."""
    from testbed.links.probe import probe

    return probe() if rootless.privileged() else rootless.try_out()


_UNJUDGED = Finding(
    True, "this user cannot tell; the shaper's container finds out when a run starts"
)

NETWORK = (
    Check("nodes as namespaces", namespaces, required=False),
    Check("queueing disciplines", queueing),
    Check("queues in the network", in_network, required=False),
    Check("netem", netem, required=False),
    Check("congestion controls", congestion_controls, required=False),
    Check("real-time scheduling", real_time, required=False),
    Check("control port", control_port),
    Check("free subnets", subnets),
)
