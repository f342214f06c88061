"""A worker's side of a coded exchange (``testbed.exchange.kinds.WorkerSide``).

Frames of a run: HELLO and BYE as among peers; per step, packets as GRADIENT with the packet's number in place of the
bucket. Packets for several nodes are multicast, others sent. A packet says itself which phase it belongs to.
"""

from __future__ import annotations

from math import nan

import numpy as np

from testbed.errors import NodeLost
from testbed.exchange.base import Travel, Update
from testbed.exchange.coded.groups import Groups
from testbed.exchange.coded.header import Note
from testbed.exchange.coded.options import CodedOptions, check_run, coded_options, work
from testbed.exchange.coded.quantize import mean
from testbed.exchange.coded.redundancy import Redundancy
from testbed.exchange.coded.round import Round
from testbed.exchange.coded.seen import Seen
from testbed.exchange.kinds import ExchangeKind, Peers
from testbed.exchange.peers import PeerExchange
from testbed.node import Buffer, Kind, Message, Node
from testbed.record.events import RedundancyRecord


class CodedExchange:
    """Steps follow one another: a ticket is waited for before the next step's blocks are asked for."""

    def __init__(self, node: Node, peers: Peers) -> None:
        self._node, self._peers = node, peers
        self._company = PeerExchange(node, peers)
        self._ranks = {peer: rank for rank, peer in enumerate(peers.workers)}
        self._redundancy = Redundancy(coded_options(peers.options), len(peers.workers))
        self._groups = Groups(self._redundancy.schemes, list(peers.workers))
        self._samples = self._saturated = 0
        self._ended_s, self._t_comm_s = 0.0, nan

    @property
    def bytes_sent(self) -> int:
        """Frame bytes so far; of a multicast once, however many members the group has."""
        return self._company.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Frame bytes so far."""
        return self._company.bytes_received

    @property
    def last_step(self) -> int | None:
        """Known from the beginning."""
        return self._peers.last_step

    def greet(self) -> None:
        """Groups are formed, and connections exist between all workers, when this returns."""
        if self._groups.sets:
            self._node.endpoint.form_groups(self._groups.sets)
        self._company.greet()

    def samples(self, count: int) -> list[slice]:
        """Where this node's blocks of the coming step are in the mini-batch of ``count`` samples."""
        plan, self._samples = self._redundancy.scheme, count
        return [plan.samples(block, count) for block in plan.blocks[self._rank]]

    @property
    def over(self) -> float:
        """The mean number of samples in a block of the coming step."""
        return self._samples / len(self._redundancy.scheme.holders)

    def report(self, saturated: int) -> None:
        """How many elements of the blocks that are submitted next were cut off."""
        self._saturated = saturated

    def submit(self, step: int, bucket: int, payload: Buffer) -> CodedTicket:
        """Send the first phase; ``payload``: int32 (blocks, size), blocks as ``samples`` has them. It must stay as it
        is until the ticket has been waited for."""
        start_s = self._node.now()
        plan = self._redundancy.scheme
        blocks = np.frombuffer(payload, np.int32).reshape(len(plan.blocks[self._rank]), -1)
        note = Note(self._saturated, start_s - self._ended_s, self._t_comm_s)
        round_ = Round(plan, self._rank, blocks, note=note, name=self.name)
        ticket = CodedTicket(self, Seen(self._node, step, start_s, note), round_, bucket)
        ticket.send(0)
        return ticket

    def send(self, step: int, round_: Round, phase: int, seen: Seen) -> None:
        """What this node sends in a phase, one packet after the other. Raises NodeLost."""
        for packet, body in round_.packets(phase):
            message = Message(Kind.GRADIENT, step, packet.number, self._peers.own, body)
            group = self._groups.of(packet)
            try:
                if group is None:
                    to = [self._peers.workers[rank] for rank in packet.destinations]
                    frame_bytes = self._node.endpoint.send(to, message)
                else:
                    frame_bytes = self._node.endpoint.multicast(group, message)
            except NodeLost as lost:
                raise lost.during(step, "sending") from lost
            self._company.bytes_sent += frame_bytes
            seen.sent(frame_bytes)

    def receive(self, step: int, round_: Round, seen: Seen) -> None:
        """Take in the next packet of ``step``, from whomever. Raises NodeLost, WireError, ExperimentError."""
        missing = [self._peers.workers[rank] for rank in sorted(round_.missing())]
        message = self._company.gathering.any(Kind.GRADIENT, step, missing, self._peers.timeout_s)
        note = round_.take(self._ranks[message.sender], message.body)
        seen.came(message, note)

    def total(self, step: int, round_: Round, seen: Seen) -> memoryview:
        """The mean as float32 bytes; what was seen is recorded, and with ``auto`` the redundancy may change."""
        found = mean(round_.total(), len(self._redundancy.scheme.holders))
        record = seen.record(self._node.name, self._redundancy.scheme.r, self._peers.names)
        self._node.record(record.to_json())
        self._t_comm_s, self._ended_s = seen.t_comm_s, self._node.now()
        if (choice := self._redundancy.learn(step, seen.notes)) is not None:
            decided = RedundancyRecord(
                self._node.name,
                step + 1,
                choice.r,
                choice.why,
                [one._asdict() for one in choice.table],
            )
            self._node.record(decided.to_json())
        return found.data.cast("B")

    def close(self) -> None:
        """Say goodbye, and stay until all others have."""
        self._company.close()

    def name(self, rank: int) -> str:
        """Of a worker, for errors."""
        return self._peers.names[self._peers.workers[rank]]

    @property
    def _rank(self) -> int:
        return self._ranks[self._peers.own]


class CodedTicket:
    """A step under way (``testbed.exchange.base.Ticket``)."""

    def __init__(self, exchange: CodedExchange, seen: Seen, round_: Round, bucket: int) -> None:
        self._exchange, self._seen, self._round, self._bucket = exchange, seen, round_, bucket
        self._travel: Travel | None = None

    def send(self, phase: int) -> None:
        """Send what belongs to ``phase``."""
        self._exchange.send(self._seen.step, self._round, phase, self._seen)

    def wait(self) -> Update:
        """The mean gradient, float32 (size,) as bytes."""
        for phase in range(self._round.phases):
            if phase:
                self.send(phase)
            while not self._round.complete(phase):
                self._exchange.receive(self._seen.step, self._round, self._seen)
        self._travel = self._seen.travel()
        payload = self._exchange.total(self._seen.step, self._round, self._seen)
        return Update("gradient", self._seen.step, payload)

    @property
    def travel(self) -> Travel:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel


CODED = ExchangeKind(
    CodedExchange,
    carries="blocks",
    multicasts=True,
    options=CodedOptions,
    suits=check_run,
    work=work,
)
