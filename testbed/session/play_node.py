"""A node's part in the replay of a trace: endpoint, player, barrier, result. It needs no PyTorch."""

from __future__ import annotations

from testbed.exchange.endpoint import TcpEndpoint
from testbed.exchange.frame import MAX_BODY
from testbed.fabric.base import DATA_PORT
from testbed.fabric.host import HostNode
from testbed.messages.part import Part
from testbed.messages.player import Player
from testbed.session.garbage import seldom_collected
from testbed.session.jobs import CONNECT_S, GREETING_S, Assignment, await_start, counters

_BESIDE = 4096
"""Room for what is not a message of the trace."""


def play(assignment: Assignment, part: Part) -> None:
    """Connect, greet, report ready, wait for t0, play, report done."""
    endpoint = TcpEndpoint(
        part.peer,
        part.run,
        names=assignment.peers,
        addresses=assignment.addresses,
        clock=assignment.clock.seconds,
        silence_s=part.peer_timeout_s,
        greeting_s=GREETING_S,
        most_bytes=min(MAX_BODY, part.most_bytes + _BESIDE),
    )
    node = assignment.node = HostNode(
        part.node, part.seed, endpoint, assignment.clock, assignment.record
    )
    try:
        _connect(assignment, part, endpoint)
        player = Player(node, part)
        player.prepare()
        with seldom_collected():
            assignment.lines.send("ready")
            await_start(assignment)
            summary = player.run()
        node.close()
        assignment.lines.send(
            "done",
            summary=summary,
            counters=counters(assignment, endpoint),
            strangers=endpoint.strangers,
            excuses=endpoint.excuses,
            endpoint="threads",
            multicast=None,
            interface=None,
        )
    finally:
        endpoint.close()
        node.close()


def _connect(assignment: Assignment, part: Part, endpoint: TcpEndpoint) -> None:
    """Of two partners the one with the lower number listens."""
    if any(peer > part.peer for peer in part.partners):
        endpoint.listen(assignment.addresses[part.peer], DATA_PORT)
    for peer in part.partners:
        if peer < part.peer:
            endpoint.connect(peer, assignment.addresses[peer], DATA_PORT, CONNECT_S)
