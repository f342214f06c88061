"""What compressed steps of DistributedDataParallel cost, as one rank sees it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of one step, or sums over several. Bytes are of this rank."""

    steps: int = 0
    elements: int = 0
    """Gradient elements, sent or not."""
    sent_count: int = 0
    """Elements that this rank sent."""
    payload_bytes: int = 0
    """What compression made of its gradients."""
    message_bytes: int = 0
    """The same as it was handed over to be sent, with headers, filled up to the common length."""
    bytes_sent: int = 0
    """What left it in all-gathers by ring, in which every message passes through all other ranks."""
    bytes_received: int = 0
    """What reached it: a message of every other rank."""
    dense_bytes: int = 0
    """What a ring all-reduce of the same gradients in float32 would have sent, and received."""
    delay_s: float = 0.0
    """From the first message to the last mean, where the state was given a clock."""

    @property
    def density(self) -> float:
        """Share of the elements that this rank sent."""
        return self.sent_count / self.elements if self.elements else 0.0

    def __add__(self, other: Report) -> Report:
        names = [field.name for field in fields(self)]
        return Report(**{name: getattr(self, name) + getattr(other, name) for name in names})


def gathered_bytes(message_bytes: int, ranks: int) -> int:
    """What a ring all-gather of messages of that length sends, and receives, at each rank."""
    return (ranks - 1) * message_bytes


def reduced_bytes(elements: int, ranks: int) -> int:
    """What a ring all-reduce of float32 elements sends, and receives, at each rank."""
    return -(-2 * (ranks - 1) * 4 * elements // ranks)
