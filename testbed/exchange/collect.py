"""Waiting for one message from each of several peers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from testbed.errors import NodeLost, WireError
from testbed.node import Kind, Message

Slot = tuple[Kind, int, int]
"""Kind, step and bucket."""


@dataclass(slots=True)
class MissingMessages:
    """Messages of a kind and step that are waited for."""

    kind: Kind
    step: int
    slots: Mapping[int, dict[int, Message]]
    """Those that have come, by bucket and sender."""
    count: dict[int, int]
    """How many are to come, by sender; without those whose all have come."""
    waiting: dict[int, None]
    """Who can do nothing until this node goes on."""


Receive = Callable[[Kind, int, float, Collection[int], Collection[int]], Message | None]
Divert = Callable[[Message, MissingMessages], bool]


class MessageCollector:
    """Messages from ``members``, whose names are in ``names``, that nobody has asked for yet.

    ``receive`` returns the next message; it is given kind and step of what is collected, the
    timeout in seconds, who is missing, and who waits for this node. None: one who was missing is
    lost, and is no member any more.

    ``ahead``: how many steps a member may be further than this node. None: strictly what is
    collected may come, and those from whom it has come wait for this node.

    ``divert`` is shown each message first. It may change what is missing, and returns True to keep
    the message out of the collection.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        members: Collection[int],
        receive: Receive,
        *,
        ahead: int | None = None,
        divert: Divert = lambda _message, _missing: False,
    ) -> None:
        self._names, self._members, self._receive = names, members, receive
        self._ahead, self._divert = ahead, divert
        self._slots: dict[Slot, dict[int, Message]] = {}

    def collect(
        self,
        kind: Kind,
        step: int,
        bucket: int,
        senders: Collection[int],
        timeout_s: float,
        *,
        waiting: Collection[int] = (),
        count: int | None = None,
    ) -> list[Message]:
        """One message of that kind, step and bucket from each of ``senders``, in their order.

        ``count``: from the first so many of them. ``waiting``: who can do nothing until this node
        goes on, if peers may be ahead. Raises NodeLost naming who is missing, WireError for a
        message that has no place.
        """
        return self.collect_any(
            kind, step, [bucket], senders, timeout_s, waiting=waiting, count=count
        )[1]

    def collect_any(
        self,
        kind: Kind,
        step: int,
        buckets: Collection[int],
        senders: Collection[int],
        timeout_s: float,
        *,
        waiting: Collection[int] = (),
        count: int | None = None,
    ) -> tuple[int, list[Message]]:
        """The first of ``buckets`` of which all messages are there, and these; see ``collect``."""
        senders = list(senders)
        needed = len(senders) if count is None else count
        slots = {bucket: self._slots.setdefault((kind, step, bucket), {}) for bucket in buckets}
        missing = dict.fromkeys(senders, len(slots))
        for slot in slots.values():
            for peer in slot.keys() & missing.keys():
                missing[peer] -= 1
                if not missing[peer]:
                    del missing[peer]
        if self._ahead is None:
            waiting = [peer for peer in self._members if peer not in missing]
        awaited = MissingMessages(kind, step, slots, missing, dict.fromkeys(waiting))
        while True:
            for bucket, slot in slots.items():
                whole = len(slot) >= needed and (count is not None or slot.keys() >= set(senders))
                if whole or not missing:
                    del self._slots[kind, step, bucket]
                    return bucket, [slot[peer] for peer in senders if peer in slot]
            # who has said goodbye waits for nothing, and may be gone
            informed = () if kind is Kind.BYE else awaited.waiting
            message = self._receive(kind, step, timeout_s, missing, informed)
            if message is None:
                for peer in missing.keys() - set(self._members):
                    del missing[peer]
            elif not self._divert(message, awaited):
                self._take(message, awaited)

    def next_of_any_bucket(
        self, kind: Kind, step: int, missing: Collection[int], timeout_s: float
    ) -> Message:
        """The next message of that kind and step. ``missing``: from whom something is to come, and
        who may themselves wait for what this node sends then. Raises as ``collect``."""
        awaited = MissingMessages(kind, step, {}, dict.fromkeys(missing, 1), {})
        while True:
            for slot, messages in self._slots.items():  # the first bucket goes first
                if slot[:2] == (kind, step) and messages:
                    _, first = messages.popitem()
                    if not messages:
                        del self._slots[slot]
                    return first
            message = self._receive(kind, step, timeout_s, missing, missing)
            if message is not None:
                self._take(message, awaited)

    def keep(self, message: Message) -> None:
        """Take in a message that has come another way."""
        slot = message.kind, message.step, message.bucket
        self._slots.setdefault(slot, {})[message.sender] = message

    def _take(self, message: Message, awaited: MissingMessages) -> None:
        """Keep a message. Raises NodeLost or WireError for one that has no place now."""
        sender, count = message.sender, awaited.count
        of_step = message.step == awaited.step and message.kind is awaited.kind
        slot = awaited.slots.get(message.bucket) if of_step else None
        if slot is None or sender in slot or sender not in count:
            self._take_ahead(message, awaited)
            return
        slot[sender] = message
        count[sender] -= 1
        if not count[sender]:
            del count[sender]
            if self._ahead is None:
                awaited.waiting[sender] = None

    def _take_ahead(self, message: Message, awaited: MissingMessages) -> None:
        """Keep a message that is not waited for yet. Raises as ``_take``."""
        known = self._slots.get((message.kind, message.step, message.bucket), {})
        near = self._ahead is not None and 0 <= message.step - awaited.step <= self._ahead
        if not near or message.sender in known or message.sender not in self._members:
            raise self._misplaced(message, awaited, near=near)
        self.keep(message)

    def _misplaced(
        self, message: Message, awaited: MissingMessages, *, near: bool
    ) -> NodeLost | WireError:
        name, kind = self._names.get(message.sender, f"peer {message.sender}"), awaited.kind
        if message.kind is Kind.BYE and kind is not Kind.BYE and not near:
            return NodeLost(name, awaited.step or None, "it said goodbye before the end")
        missing, of_bucket = list(awaited.count), ""
        if awaited.slots:
            bucket = message.bucket if message.bucket in awaited.slots else min(awaited.slots)
            missing = [peer for peer in missing if peer not in awaited.slots[bucket]]
            of_bucket = f", bucket {bucket}"
        return WireError(
            f"{name} sent {message.kind.name} of step {message.step}, bucket {message.bucket}, "
            f"while {kind.name} of step {awaited.step}{of_bucket} was due "
            f"from {', '.join(self._names[peer] for peer in missing)}"
        )
