"""What a replay of a trace records; times as in ``testbed.record.events``."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.record.events import Event


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
    """Of the frame."""
    sent_s: float
    first_s: float
    arrived_s: float
    last_s: float
