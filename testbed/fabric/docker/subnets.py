"""Subnets that nothing on this host uses yet. The engine is the judge: it refuses overlapping ones."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path

from testbed.errors import MachineError

POOL = IPv4Network("10.208.0.0/12")
"""Private, and away from the addresses that engines and home routers take by default."""

_RESERVED = 8
"""Network, gateway, broadcast, and some room for a collector of metrics."""

_ROUTES = Path("/proc/net/route")


def free_subnets(
    taken: Iterable[IPv4Network], nodes: int, *, start: int = 0
) -> tuple[IPv4Network, IPv4Network]:
    """Two free subnets (data, control) with room for ``nodes`` nodes; /24 or larger.

    ``start`` rotates where the search begins, so that runs which start together rarely meet.
    Raises MachineError when fewer than two are free.
    """
    prefix = min(24, 32 - (nodes + _RESERVED - 1).bit_length())
    candidates = list(POOL.subnets(new_prefix=prefix))
    begin = start * 2 % len(candidates)
    occupied = list(taken)
    free = (
        candidate
        for candidate in candidates[begin:] + candidates[:begin]
        if not any(candidate.overlaps(other) for other in occupied)
    )
    chosen = tuple(islice(free, 2))
    if len(chosen) < 2:
        raise MachineError(
            f"no two free /{prefix} subnets are left in {POOL}",
            fix="Remove what earlier runs left: `testbed clean`, then `docker network ls`",
        )
    return chosen[0], chosen[1]


def routed(table: Path = _ROUTES) -> list[IPv4Network]:
    """The networks that this host has routes to; the default route is none."""
    lines = table.read_text().splitlines()[1:]
    return [network for line in lines if (network := parse_route(line)).prefixlen > 0]


def parse_route(line: str) -> IPv4Network:
    """A line of ``/proc/net/route``: destination and mask are hexadecimal, in little-endian order."""
    fields = line.split()
    destination, mask = (bytes.fromhex(fields[column])[::-1] for column in (1, 7))
    prefix = int.from_bytes(mask).bit_count()
    return IPv4Network((int.from_bytes(destination), prefix), strict=False)
