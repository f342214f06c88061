"""A node's part of a trace and the role that plays it: it waits as long and sends as much as was
recorded, and computes nothing.

Frames of a run: a HELLO to each partner that comes before oneself, which was there to be connected
to; the trace's messages, whose step is their number among those of their sender to their receiver;
a BYE to every partner once all is done.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from testbed.comm_trace.trace import Kind, MessageTrace, Position, TraceOperation
from testbed.errors import InputError, NodeLost, WireError
from testbed.exchange.collect import MessageCollector
from testbed.node import Buffer, Message, Node, Queue
from testbed.node import Kind as NodeKind
from testbed.records.events import Event
from testbed.transport.frame import HEADER_BYTES


@dataclass(frozen=True, slots=True)
class MessageRecord(Event):
    """One message, written by who received it; times as in ``RoundRecord.messages``."""

    kind = "message"
    node: str
    sender: str
    receipt: int
    """The place of its receipt among the receiver's operations."""
    step: int
    """0: the trace does not say."""
    bytes: int
    """Length of the frame."""
    sent_s: float
    first_s: float
    arrived_s: float
    last_s: float


MOST_OPERATIONS, MOST_WAITS = 100_000, 400_000
"""Most operations of a node, and most waits: as many as one control network line holds."""


@dataclass(frozen=True, slots=True)
class ReplayOperation:
    """An operation for whoever plays it. Times in wall time."""

    kind: Kind
    after: tuple[int, ...]
    seconds: float
    peer: int
    """Its number in frames; -1 of a computation."""
    bytes: int
    number: int
    """Number of a message among those of its sender to its receiver; its frame carries it."""
    begin_s: float
    """Earliest time to send a message; 0: as soon as all that it waits for has ended."""
    step: int
    """0: not known."""


@dataclass(frozen=True, slots=True)
class NodeScript:
    """A node's acts, and who its peers are."""

    run: int
    """Number in every frame of the run, 64 bit."""
    node: str
    peer: int
    seed: int
    names: tuple[str, ...]
    """Names of all peers, by number."""
    peer_timeout_s: float
    acts: tuple[ReplayOperation, ...]

    @property
    def partners(self) -> list[int]:
        """Whom it exchanges messages with, by number."""
        return sorted({act.peer for act in self.acts if act.kind != "compute"})

    @property
    def most_bytes(self) -> int:
        """Length of the largest message."""
        return max((act.bytes for act in self.acts), default=0)

    def to_json(self) -> dict[str, Any]:
        """As it travels; ``from_json`` reads it back equal."""
        return {**asdict(self), "acts": [list(asdict(act).values()) for act in self.acts]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeScript:
        """Read what ``to_json`` wrote. Raises InputError when it is something else."""
        try:
            acts = tuple(
                ReplayOperation(kind, tuple(after), *rest) for kind, after, *rest in data["acts"]
            )
            return cls(**{**data, "names": tuple(data["names"]), "acts": acts})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a part: {error}") from error


def acts_of(
    trace: MessageTrace,
    node: str,
    numbers: Mapping[str, int],
    dilation: float,
    *,
    timed: bool = False,
) -> tuple[ReplayOperation, ...]:
    """Return the acts of ``node``, its peers by their ``numbers``.

    ``timed``: what is sent begins when it did, whatever it waited for. Raises InputError where a
    trace does not say when, and for more than a node can be told.
    """
    own = trace.operations[node]
    waits = sum(len(operation.after) for operation in own)
    if len(own) > MOST_OPERATIONS or waits > MOST_WAITS:
        raise InputError(
            f"{node} has {len(own)} operations that wait for {waits}; a node plays at most "
            f"{MOST_OPERATIONS}, which wait for {MOST_WAITS}"
        )
    counted = _numbers(trace)
    acts = (_act(trace.of(p), counted.get(p, 0), numbers, dilation) for p in _places(node, own))
    if not timed:
        return tuple(acts)
    return tuple(
        _timed(node, act, operation, dilation) for act, operation in zip(acts, own, strict=True)
    )


def _places(node: str, own: Sequence[TraceOperation]) -> list[Position]:
    return [(node, i) for i in range(len(own))]


def _numbers(trace: MessageTrace) -> dict[Position, int]:
    """Number every message, at both of its ends: from 0, between two nodes."""
    counts: Counter[tuple[str, str]] = Counter()
    numbers: dict[Position, int] = {}
    for send, receipt in trace.received_as.items():
        ends = send[0], receipt[0]
        numbers[send] = numbers[receipt] = counts[ends]
        counts[ends] += 1
    return numbers


def _act(
    operation: TraceOperation, number: int, numbers: Mapping[str, int], dilation: float
) -> ReplayOperation:
    return ReplayOperation(
        kind=operation.kind,
        after=operation.after,
        seconds=operation.seconds * dilation,
        peer=numbers[operation.peer] if operation.peer else -1,
        bytes=operation.bytes,
        number=number,
        begin_s=0.0,
        step=operation.step or 0,
    )


def _timed(
    node: str, act: ReplayOperation, operation: TraceOperation, dilation: float
) -> ReplayOperation:
    """``act`` at its own time, if it sends something."""
    if act.kind != "send":
        return act
    if operation.begin_s is None:
        raise InputError(
            f"the trace does not say when {node} sent a message to {operation.peer}",
            where="--timed",
            hint="Without it, messages leave as soon as what they waited for has ended",
        )
    return replace(act, after=(), begin_s=operation.begin_s * dilation)


def mapped(trace: MessageTrace, names: Sequence[str]) -> dict[str, str]:
    """The trace's nodes by those of a scenario, whose ``names`` come servers first: by name, or
    else in their order.

    Raises InputError where there are too few of them.
    """
    if set(trace.nodes) <= set(names):
        return {name: name for name in trace.nodes}
    if len(trace.nodes) > len(names):
        raise InputError(
            f"the trace has {len(trace.nodes)} nodes, the scenario {len(names)} for them",
            hint=f"Give the scenario nodes called {', '.join(trace.nodes[:8])}, or as many",
        )
    return dict(zip(names, trace.nodes, strict=False))


GREETING_S = 120.0
"""How much longer a greeting is waited for: nodes start at their own speed."""
PATIENCE_S = 86_400.0
"""A partner may wait for others as long as these take. That it is gone is noticed by its
connection, and by the session."""
_Places = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Event:
    """Acts have ended, or one's message has come, or something went wrong."""

    places: _Places
    came: Message | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Run:
    """Sends to the same peers, one after the other; their lane keeps them in order."""

    peers: _Places
    sends: deque[_Places] = field(default_factory=deque)


class SendOrder:
    """Keeps what is sent to a peer in order, where several lanes send to it."""

    def __init__(self) -> None:
        self._runs: dict[int, deque[_Run]] = {}
        """Runs that are ready and have not ended, by peer; those of the first may go."""
        self._behind: dict[_Places, int] = {}
        """How many peers have another run before a send, for those that may not go yet."""

    def enter(self, peers: _Places, places: _Places) -> bool:
        """Take in a send to ``peers`` that is ready. Return whether it may go at once."""
        behind = 0
        for peer in peers:
            runs = self._runs.setdefault(peer, deque())
            if not runs or runs[-1].peers != peers:
                runs.append(_Run(peers))
            runs[-1].sends.append(places)
            behind += len(runs) > 1
        if behind:
            self._behind[places] = behind
        return not behind

    def leave(self, peers: _Places) -> Iterator[_Places]:
        """The first send to ``peers`` has ended. Yield those that may go now."""
        for peer in peers:
            runs = self._runs[peer]
            runs[0].sends.popleft()
            if runs[0].sends:
                continue
            runs.popleft()
            for places in runs[0].sends if runs else ():
                self._behind[places] -= 1
                if not self._behind[places]:
                    del self._behind[places]
                    yield places


class ReplayRole:
    """Plays ``part``. ``prepare``, then ``run`` from t0 on."""

    def __init__(self, node: Node, part: NodeScript) -> None:
        self._node, self._part, self._acts = node, part, part.acts
        self._zeros = memoryview(bytes(part.most_bytes))
        self._events: Queue[_Event] = node.queue()
        self._left = [len(set(act.after)) for act in part.acts]
        self._next: dict[int, list[int]] = {}
        for index, act in enumerate(part.acts):
            for earlier in set(act.after):
                self._next.setdefault(earlier, []).append(index)
        self._receipts = {
            (act.peer, act.number): index
            for index, act in enumerate(part.acts)
            if act.kind == "receive"
        }
        self._lanes: dict[_Places, Queue[_Places | None]] = {}
        """Queues by the peers that are sent to side by side; of computations, by none."""
        self._order = SendOrder()
        self._early: set[int] = set()
        """Receipts whose message has come before what they wait for has ended."""
        self._collector = MessageCollector(
            dict(enumerate(part.names)),
            part.partners,
            lambda _kind, _step, timeout_s, *_: self._next_message(timeout_s),
        )
        self._end_s = 0.0
        self.bytes_sent = self.bytes_received = 0

    def prepare(self) -> None:
        """Greet every partner. Raises NodeLost naming who is missing."""
        own, partners = self._part.peer, self._part.partners
        for peer in (peer for peer in partners if peer < own):
            self.bytes_sent += self._send([peer], NodeKind.HELLO, 0, b"")
        later = [peer for peer in partners if peer > own]
        timeout_s = self._part.peer_timeout_s + GREETING_S
        self._collector.collect(NodeKind.HELLO, 0, 0, later, timeout_s)

    def run(self) -> dict[str, Any]:
        """Play all acts; returns a summary. Raises NodeLost, or WireError for a stray message."""
        self._node.sleep_until(0.0)
        self._begin()
        ended = 0
        while ended < len(self._acts):
            ended += self._take(self._events.get())
        for lane in self._lanes.values():
            lane.put(None)
        for peer in self._part.partners:
            self.bytes_sent += self._send([peer], NodeKind.BYE, 0, b"")
        self._collector.collect(NodeKind.BYE, 0, 0, self._part.partners, PATIENCE_S)
        return {
            "role": "player",
            "node": self._part.node,
            "steps": 0,
            "end_s": self._end_s,
            "parameters": None,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
        }

    def _begin(self) -> None:
        """Begin to receive, and begin the acts that wait for nothing."""
        self._node.spawn(self._receive)
        begin = [index for index, count in enumerate(self._left) if not count]
        self._launch(sorted(begin, key=lambda index: self._acts[index].begin_s))

    def _take(self, event: _Event) -> int:
        """How many acts have ended with it. Raises what went wrong."""
        if event.error is not None:
            raise event.error
        if event.came is not None:
            (index,) = event.places
            self._record(index, event.came)
            if self._left[index]:
                self._early.add(index)
                return 0
        self._end_s = self._node.now()
        if peers := self._peers(event.places):
            for places in self._order.leave(peers):
                self._lane(self._peers(places)).put(places)
        self._launch([ready for index in event.places for ready in self._ended(index)])
        return len(event.places)

    def _ended(self, index: int) -> Iterator[int]:
        """Yield the acts that have waited for this act alone, as it ends."""
        if self._acts[index].kind == "send":
            self.bytes_sent += max(self._acts[index].bytes, HEADER_BYTES)
        for other in self._next.get(index, ()):
            self._left[other] -= 1
            if not self._left[other]:
                yield other

    def _launch(self, ready: Sequence[int]) -> None:
        """Begin acts that wait for nothing any more. Like messages go to peers side by side."""
        alike: dict[tuple[float, int, int], list[int]] = {}
        for index in ready:
            act = self._acts[index]
            if act.kind == "compute":
                self._lane(()).put((index,))
            elif act.kind == "send":
                alike.setdefault((act.begin_s, act.number, act.bytes), []).append(index)
            elif index in self._early:
                self._events.put(_Event((index,)))
        for places in map(tuple, alike.values()):
            peers = self._peers(places)
            if self._order.enter(peers, places):
                self._lane(peers).put(places)

    def _peers(self, places: _Places) -> _Places:
        """Return whom these acts send to; nobody, unless they are sends."""
        acts = [self._acts[index] for index in places]
        return tuple(act.peer for act in acts if act.kind == "send")

    def _lane(self, peers: _Places) -> Queue[_Places | None]:
        if peers not in self._lanes:
            lane: Queue[_Places | None] = self._node.queue()
            self._lanes[peers] = lane
            self._node.spawn(partial(self._work, lane, self._transmit if peers else self._compute))
        return self._lanes[peers]

    def _work(self, lane: Queue[_Places | None], do: Callable[[_Places], None]) -> None:
        """Acts of one lane, in the order in which they became ready."""
        while (places := lane.get()) is not None:
            try:
                do(places)
            except Exception as error:  # for whoever waits for its end
                self._events.put(_Event(places, error=error))
                return
            self._events.put(_Event(places))

    def _compute(self, places: _Places) -> None:
        self._node.sleep_until(self._node.now() + self._acts[places[0]].seconds)

    def _transmit(self, places: _Places) -> None:
        act = self._acts[places[0]]
        self._node.sleep_until(act.begin_s)
        body = self._zeros[: max(0, act.bytes - HEADER_BYTES)]
        self._send(self._peers(places), NodeKind.GRADIENT, act.number, body)

    def _receive(self) -> None:
        """All messages, in the order in which they come."""
        try:
            for _ in range(len(self._receipts)):
                while (message := self._next_message(PATIENCE_S)).kind is NodeKind.BYE:
                    self._collector.keep(message)
                self._events.put(_Event((self._place_of(message),), came=message))
        except Exception as error:  # for whoever waits for them
            self._events.put(_Event((), error=error))

    def _place_of(self, message: Message) -> int:
        """Return the place of the act that receives ``message``; WireError where none does."""
        index = self._receipts.get((message.sender, message.step))
        size = self._node.endpoint.frame_bytes(message)
        fits = message.kind is NodeKind.GRADIENT
        if fits and index is not None and size == max(self._acts[index].bytes, HEADER_BYTES):
            del self._receipts[message.sender, message.step]  # nothing comes twice
            return index
        name = self._part.names[message.sender]
        raise WireError(
            f"{name} sent {message.kind.name} {message.step} of {size} B, which nothing here "
            "receives"
        )

    def _record(self, index: int, message: Message) -> None:
        if not self._node.recording:
            return
        record = MessageRecord(
            node=self._part.node,
            sender=self._part.names[message.sender],
            receipt=index,
            step=self._acts[index].step,
            bytes=self._node.endpoint.frame_bytes(message),
            sent_s=message.sent_s,
            first_s=message.first_s,
            arrived_s=message.arrived_s,
            last_s=message.last_s,
        )
        self._node.record(record.to_json())

    def _next_message(self, timeout_s: float) -> Message:
        message = self._node.endpoint.receive(timeout_s)
        self.bytes_received += self._node.endpoint.frame_bytes(message)
        return message

    def _send(self, peers: Sequence[int], kind: NodeKind, number: int, body: Buffer) -> int:
        """Returns frame bytes."""
        message = Message(kind, number, 0, self._part.peer, body)
        try:
            return self._node.endpoint.send(peers, message)
        except NodeLost as lost:
            raise lost.during(0, "sending") from lost
