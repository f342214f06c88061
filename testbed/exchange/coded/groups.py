"""The multicast groups that a scheme's packets go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.exchange.coded.plan import Packet, Scheme


class Groups:
    """``workers``: peers' numbers, by rank. ``sets``: the groups in the order that all nodes name them, of peers' numbers.

    Of the packets of a phase either the destinations make a group, or they and the sender: whichever takes fewer. One
    destination alone needs none.
    """

    def __init__(self, schemes: Iterable[Scheme], workers: Sequence[int]) -> None:
        self._with_sender: dict[tuple[int, int], bool] = {}
        self._numbers: dict[frozenset[int], int] = {}
        for plan in schemes:
            for phase in range(plan.phases):
                self._add(plan, phase)
        self.sets = [frozenset(workers[rank] for rank in ranks) for ranks in self._numbers]

    def of(self, r: int, packet: Packet) -> int | None:
        """Number of the group that ``packet`` of the scheme with ``r`` goes to; None for one destination."""
        if len(packet.destinations) == 1:
            return None
        return self._numbers[_members(packet, self._with_sender[r, packet.phase])]

    def _add(self, plan: Scheme, phase: int) -> None:
        packets = [
            packet
            for sent in plan.packets
            for packet in sent
            if packet.phase == phase and len(packet.destinations) > 1
        ]
        without, with_sender = (
            dict.fromkeys(_members(packet, also) for packet in packets) for also in (False, True)
        )
        self._with_sender[plan.r, phase] = len(with_sender) < len(without)
        for members in with_sender if len(with_sender) < len(without) else without:
            self._numbers.setdefault(members, len(self._numbers))


def _members(packet: Packet, also_sender: bool) -> frozenset[int]:
    return packet.destinations | {packet.sender} if also_sender else packet.destinations
