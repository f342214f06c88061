"""What a server records of a message that it was sent."""

from __future__ import annotations

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
