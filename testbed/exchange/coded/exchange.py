"""A worker's side of a coded exchange, its options, and the redundancy r: asked for, or chosen so
that a step is shortest.

Frames of a run: HELLO and BYE as among peers; per step, packets as GRADIENT with the packet's
number in place of the bucket. Packets for several nodes are multicast, others sent. A packet says
itself which phase it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import isnan, nan
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.errors import InputError
from testbed.exchange.all_gather import AllGatherExchange
from testbed.exchange.base import ExchangeSpec, Membership, Ticket, TransferTiming, Update
from testbed.exchange.coded.round import CodedNote, PacketLog, Round, mean
from testbed.exchange.coded.schemes import (
    MOST_NODES,
    CodedGroups,
    MatrixSizes,
    Scheme,
    block_count,
    check,
    most_received,
    most_work,
    part,
    scheme,
    total_load,
)
from testbed.node import Buffer, Kind, Node
from testbed.records.events import RedundancyRecord
from testbed.registry import Options, read

Direction = Literal["up", "down"]


class Prediction(NamedTuple):
    """A step's parts with redundancy ``r``, in seconds."""

    r: int
    calc_s: float
    comm_s: float

    @property
    def step_s(self) -> float:
        """Both."""
        return self.calc_s + self.comm_s

    def __str__(self) -> str:
        return f"r = {self.r}: {self.calc_s:.4g} + {self.comm_s:.4g} = {self.step_s:.4g} s"


class SchemeChoice(NamedTuple):
    """The best redundancy, why it is, and what was expected of each."""

    r: int
    why: str
    table: tuple[Prediction, ...]


def predict(
    scheme: str, nodes: int, t_calc_s: float, t_comm_s: float, bottleneck: Direction = "down"
) -> tuple[Prediction, ...]:
    """For every r below ``nodes``: work(r)·T_calc + T_comm·load(r)/load(1), with the times measured
    at r = 1.

    The paper's r·T_calc + T_comm/r, with what the scheme really computes and sends. ``bottleneck``:
    load is what all send where links are slower ``up``; where they are not, it is what comes down
    to one node, which is more.
    """
    load = total_load if bottleneck == "up" else most_received
    least = load(scheme, nodes, 1)
    return tuple(
        Prediction(
            r,
            t_calc_s * float(most_work(scheme, nodes, r)),
            t_comm_s * float(load(scheme, nodes, r) / least),
        )
        for r in range(1, nodes)
    )


def choose_r(
    scheme: str, nodes: int, t_calc_s: float, t_comm_s: float, bottleneck: Direction = "down"
) -> SchemeChoice:
    """The r of the shortest step; of several the least."""
    table = predict(scheme, nodes, t_calc_s, t_comm_s, bottleneck)
    best = min(table, key=lambda prediction: (prediction.step_s, prediction.r))
    others = "; ".join(map(str, table))
    why = (
        f"computation takes {t_calc_s:.4g} s and communication {t_comm_s:.4g} s at r = 1, "
        f"so that a step is expected to be shortest with r = {best.r} ({others})"
    )
    return SchemeChoice(best.r, why, table)


AUTO = "auto"
_MOST_BLOCKS = 4096
"""Most blocks of a mini-batch: with more, packets would be smaller than what it takes to send
one."""
_MOST_GROUPS, _MOST_OF_ONE = 4000, 1000
"""Bridges keep a table of all; and what a node may be in (``net.ipv4.igmp_max_memberships``)."""


class CodedOptions(Options):
    """``scheme``: see ``schemes``. ``r``: how many workers compute each sample; ``auto``: what is
    best is found out.

    ``bottleneck``: for ``auto``, the direction of the links that limits. ``split``: blocks' parts
    are neighbours in the ``flat`` gradient, or ``columns`` of every parameter as a matrix, as
    printed. ``shares``: all nodes compute equally many samples, or after three steps as many as
    their ``speed`` allows. Both are of the scheme ``literal``.
    """

    scheme: Literal["literal", "replicated", "grouped", "combined"] = "literal"
    r: Literal["auto"] | int = Field(2)
    bottleneck: Direction = "down"
    split: Literal["flat", "columns"] = "flat"
    shares: Literal["equal", "speed"] = "equal"

    def redundancies(self, nodes: int) -> list[int]:
        """All that a run among ``nodes`` may use, the first one first."""
        return list(range(1, nodes)) if self.r == AUTO else [int(self.r)]


def coded_options(given: Mapping[str, Any]) -> CodedOptions:
    """``exchange_options`` as these. Raises InputError."""
    return read("exchange_options", CodedOptions, given)


def candidates(options: CodedOptions, nodes: int) -> list[Scheme]:
    """All that a run may use. Raises InputError where there is none for so many nodes."""
    return [scheme(options.scheme, nodes, r) for r in options.redundancies(nodes)]


def check_run(given: Mapping[str, Any], workers: int, batch: int) -> None:
    """Raise InputError unless ``workers`` with batches of ``batch`` samples can exchange so."""
    options = coded_options(given)
    if options.scheme != "literal" and (options.split, options.shares) != ("flat", "equal"):
        raise InputError(
            f"scheme {options.scheme!r} with split {options.split!r} and shares {options.shares!r}",
            hint="Take scheme 'literal', or split 'flat' and shares 'equal'",
        )
    check(options.scheme, workers, 1)
    for r in options.redundancies(workers):
        check(options.scheme, workers, r)
        _check_blocks(options.scheme, workers, r, batch)
    groups = CodedGroups(candidates(options, workers), range(workers)).sets
    of_one = max(Counter(worker for group in groups for worker in group).values(), default=0)
    if len(groups) > _MOST_GROUPS or of_one > _MOST_OF_ONE:
        raise InputError(
            f"scheme {options.scheme!r} with r = {options.r} needs {len(groups)} multicast groups "
            f"among {workers} workers, {of_one} with one of them in it",
            hint=f"{_MOST_GROUPS} and {_MOST_OF_ONE} are possible: use another r or scheme, or "
            "fewer workers",
        )


def work(given: Mapping[str, Any], workers: int) -> float:
    """Samples that a worker computes at most, in shares of one without redundancy."""
    options = coded_options(given)
    if not 2 <= workers <= MOST_NODES:
        return 1.0
    return float(max(most_work(options.scheme, workers, r) for r in options.redundancies(workers)))


def _check_blocks(name: str, workers: int, r: int, batch: int) -> None:
    blocks, count = block_count(name, workers, r), workers * batch
    if blocks <= min(count, _MOST_BLOCKS):
        return
    raise InputError(
        f"scheme {name!r} with r = {r} cuts the mini-batch of {workers} workers, {count} samples, "
        f"into {blocks} blocks",
        hint=f"Use a batch of at least {-(-blocks // workers)}, or another r"
        if blocks <= _MOST_BLOCKS
        else f"It can be {_MOST_BLOCKS} blocks at most: use another r or scheme",
    )


TRIAL_STEPS = 3
"""With ``auto``, steps without redundancy. The packets of the last of them tell how long the one
before took."""


class Redundancy:
    """``schemes``: all that may come to be used."""

    def __init__(self, options: CodedOptions, nodes: int) -> None:
        self.schemes = candidates(options, nodes)
        self.scheme: Scheme = self.schemes[0]
        """That of the step to come."""
        self._bottleneck = options.bottleneck
        self._open, self._by_speed = options.r == AUTO, options.shares == "speed"
        self.speeds: Sequence[float] = ()
        """Samples a second of each node, once blocks follow them."""

    def learn(self, step: int, notes: Sequence[CodedNote]) -> SchemeChoice | None:
        """All nodes' notes of ``step``; returns what was decided because of them, everywhere alike.

        The slowest node counts, in computing and in communicating.
        """
        if not self._open or step < TRIAL_STEPS:
            return None
        self._open = False
        t_calc_s = max(note.t_calc_s for note in notes)
        t_comm_s = max(note.t_comm_s for note in notes)
        if isnan(t_calc_s + t_comm_s):
            return None
        first = self.schemes[0]
        choice = choose_r(first.name, first.nodes, t_calc_s, t_comm_s, self._bottleneck)
        self.scheme = next(plan for plan in self.schemes if plan.r == choice.r)
        return choice

    def measure(self, step: int, calc_s: Sequence[float], count: int) -> str | None:
        """All nodes' T_calc of a step before, by rank, with ``count`` samples shared out equally;
        returns why shares change now, everywhere alike."""
        if not self._by_speed or self.speeds or step < TRIAL_STEPS or isnan(sum(calc_s)):
            return None
        plan = self.scheme
        rates = [plan.work(node, count) / max(1e-9, t_s) for node, t_s in enumerate(calc_s)]
        self.speeds = [rate / max(rates) for rate in rates]
        listed = ", ".join(f"{speed:.4g}" for speed in self.speeds)
        return f"samples follow the workers' speeds, by rank and relative to the fastest: {listed}"


@lru_cache(maxsize=16)
def column_order(matrices: tuple[tuple[int, int], ...], parts: int) -> NDArray[np.int64]:
    """Where each element of a gradient of ``MatrixSizes`` is in the flat one, whose ``matrices``
    lie row by row."""
    portions: list[list[NDArray[np.int64]]] = [[] for _ in range(parts)]
    offset = 0
    for rows, columns in matrices:
        places = np.arange(offset, offset + rows * columns).reshape(rows, columns)
        for index, own in enumerate(portions):
            own.append(places[:, part(0, columns, index, parts)].ravel())
        offset += rows * columns
    return np.concatenate([places for own in portions for places in own])


class CodedExchange(AllGatherExchange):
    """A worker's side; it carries blocks. Steps follow one another: a ticket is waited for before
    the next step's blocks are asked for."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._ranks = {peer: rank for rank, peer in enumerate(peers.workers)}
        self._rank = self._ranks[peers.own]
        options = coded_options(peers.options)
        self._redundancy = Redundancy(options, len(peers.workers))
        self.matrices: tuple[tuple[int, int], ...] = ()
        """Rows and columns of every parameter, in its order; told before the first step."""
        self._order: NDArray[np.int64] | None = None
        self._by_columns = options.split == "columns"
        self._groups = CodedGroups(self._redundancy.schemes, list(peers.workers))
        self._samples = self._saturated = 0
        self._ended_s, self._t_comm_s = 0.0, nan

    def connect(self) -> None:
        """Groups are formed, and connections exist between all workers, when this returns."""
        if self._groups.sets:
            self._node.endpoint.form_groups(self._groups.sets)
        super().connect()

    def samples(self, count: int) -> list[slice]:
        """Where this node's blocks of the coming step are in the mini-batch of all workers,
        ``count`` samples."""
        plan, self._samples = self._redundancy.scheme, count
        speeds = self._redundancy.speeds
        return [plan.samples(block, count, speeds) for block in plan.blocks[self._rank]]

    @property
    def over(self) -> float:
        """Return the divisor of the sum of a block's gradients before it is written: the mean
        number of samples in a block of the coming step."""
        return self._samples / len(self._redundancy.scheme.holders)

    def report(self, saturated: int) -> None:
        """Take how many elements of the blocks that are submitted next were cut off."""
        self._saturated = saturated

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:  # noqa: ARG002
        """Send the first phase; ``payload``: int32 (blocks, size), blocks as ``samples`` has them.
        It must stay as it is until the ticket has been waited for."""
        start_s = self._node.now()
        plan = self._redundancy.scheme
        blocks = np.frombuffer(payload, np.int32).reshape(len(plan.blocks[self._rank]), -1)
        note = CodedNote(self._saturated, start_s - self._ended_s, self._t_comm_s)
        size = blocks.shape[1]
        if self._by_columns:
            size = MatrixSizes.of(self.matrices)
            self._order = column_order(self.matrices, plan.r)
            blocks = np.take(blocks, self._order, axis=1)
        round_ = Round(plan, self._rank, blocks, size, note=note, name=self._worker_name)
        log = PacketLog(self._node, step, start_s, note)
        self._send_phase(0, round_, log)
        return Ticket(partial(self._finish_round, round_, log))

    def _finish_round(self, round_: Round, log: PacketLog) -> tuple[Update, TransferTiming]:
        """The mean gradient, float32 (size,) as bytes."""
        for phase in range(round_.phases):
            if phase:
                self._send_phase(phase, round_, log)
            while not round_.complete(phase):
                self._receive_packet(round_, log)
        timing = log.travel()
        return Update("gradient", log.step, self._total(round_, log)), timing

    def _send_phase(self, phase: int, round_: Round, log: PacketLog) -> None:
        """Send this node's packets of a phase, one after the other. Raises NodeLost."""
        for packet, body in round_.packets(phase):
            workers = [self._peers.workers[rank] for rank in packet.destinations]
            group = self._groups.of(packet)
            log.sent(self._send(workers, Kind.GRADIENT, log.step, packet.number, body, group))

    def _receive_packet(self, round_: Round, log: PacketLog) -> None:
        """Take in the next packet of the step, from whomever. Raises NodeLost, WireError,
        ExperimentError."""
        missing = [self._peers.workers[rank] for rank in sorted(round_.missing())]
        message = self._collector.next_of_any_bucket(
            Kind.GRADIENT, log.step, missing, self._peers.timeout_s
        )
        log.received(message, round_.take(self._ranks[message.sender], message.body))

    def _total(self, round_: Round, log: PacketLog) -> memoryview:
        """The mean as float32 bytes; the packets are recorded, and with ``auto`` the redundancy may
        change."""
        gradient = mean(round_.total(), len(self._redundancy.scheme.holders))
        if self._order is not None:
            ordered, gradient = gradient, np.empty_like(gradient)
            gradient[self._order] = ordered
        record = log.record(self._node.name, self._redundancy.scheme.r, self._peers.names)
        self._node.record(record.to_json())
        self._t_comm_s, self._ended_s = log.t_comm_s, self._node.now()
        calc_s = [log.note_of(peer).t_calc_s for peer in self._peers.workers]
        if (why := self._redundancy.measure(log.step, calc_s, self._samples)) is not None:
            r = self._redundancy.scheme.r
            self._node.record(RedundancyRecord(self._node.name, log.step + 1, r, why, []).to_json())
        if (choice := self._redundancy.learn(log.step, log.notes)) is not None:
            table = [prediction._asdict() for prediction in choice.table]
            decided = RedundancyRecord(self._node.name, log.step + 1, choice.r, choice.why, table)
            self._node.record(decided.to_json())
        return gradient.data.cast("B")

    def _worker_name(self, rank: int) -> str:
        return self._peers.names[self._peers.workers[rank]]


CODED = ExchangeSpec(
    CodedExchange,
    unit="blocks",
    multicasts=True,
    options=CodedOptions,
    suits=check_run,
    work=work,
)
