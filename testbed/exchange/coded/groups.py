"""The multicast groups that a scheme's packets go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.exchange.coded.plan import Packet, Scheme


class Groups:
    """``workers``: peers' numbers, by rank. ``sets``: the groups in the order that all nodes name them, of peers' numbers.

    Senders are in the groups that they send to; so the members of an (r+1)-subset share one. A single destination needs
    none.
    """

    def __init__(self, schemes: Iterable[Scheme], workers: Sequence[int]) -> None:
        packets = (packet for plan in schemes for sent in plan.packets for packet in sent)
        found = dict.fromkeys(_members(p) for p in packets if len(p.destinations) > 1)
        self._numbers = {members: number for number, members in enumerate(found)}
        self.sets = [frozenset(workers[rank] for rank in ranks) for ranks in self._numbers]

    def of(self, packet: Packet) -> int | None:
        """Number of the group that ``packet`` goes to; None for one destination."""
        return self._numbers.get(_members(packet)) if len(packet.destinations) > 1 else None


def _members(packet: Packet) -> frozenset[int]:
    return packet.destinations | {packet.sender}
