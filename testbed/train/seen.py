"""What is recorded of messages: by a server of each that it was sent, by a worker of a whole step's."""

from __future__ import annotations

from typing import Any

from testbed.exchange.base import Travel
from testbed.node import Message, Node


def seen(node: Node, message: Message) -> dict[str, float]:
    """Sender, frame bytes and times, as they stand in a ``RoundRecord``."""
    return {
        "sender": message.sender,
        "bytes": node.endpoint.frame_bytes(message),
        "sent_s": message.sent_s,
        "first_s": message.first_s,
        "arrived_s": message.arrived_s,
        "last_s": message.last_s,
    }


def way(travel: Travel, computed_s: float) -> dict[str, Any]:
    """Phases, bytes and arrival, as they stand in a ``StepRecord``; computation ended at ``computed_s``."""
    return {
        "compress_s": travel.start_s - computed_s,
        "send_s": travel.sent_s - travel.start_s,
        "wait_s": travel.first_s - travel.sent_s,
        "receive_s": travel.last_s - travel.first_s,
        "delay_s": travel.last_s - travel.start_s,
        "arrived_s": travel.arrived_s,
        "bytes_up": travel.bytes_up,
        "bytes_down": travel.bytes_down,
    }
