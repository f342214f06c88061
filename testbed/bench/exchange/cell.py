"""What is measured: an exchange among so many nodes, of gradients of one size, on links of one rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from testbed.bench.exchange.table import Entry, entry
from testbed.errors import InputError
from testbed.scenario.shape import wire_bytes
from testbed.units import Rate

UNSHAPED = "unshaped"
LINKS = (UNSHAPED, "100 Mbit/s", "1.3 Gbit/s")
NODES = (4, 8, 16)
BYTES = (1_000, 100_000, 5_000_000, 44_000_000)
LONGEST_S = 30.0
"""Rounds that need longer are left out, unless they are asked for."""
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Link:
    """All links of a measurement, both directions. ``rate_bits`` None: the bare cables."""

    name: str
    rate_bits: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """``unshaped`` or a rate with its unit. Raises InputError."""
        if text == UNSHAPED:
            return cls(UNSHAPED, None)
        try:
            rate = Rate.parse(text)
        except ValueError as error:
            raise InputError(str(error), where="--link", hint=f"Or {UNSHAPED!r}") from None
        if not rate:
            raise InputError("nothing passes a link of 0 bit/s", where="--link")
        return cls(str(rate), int(rate))


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the result. ``nodes``: that have gradients; ``bytes``: of each, float32."""

    exchange: str
    nodes: int
    bytes: int
    link: Link

    @property
    def entry(self) -> Entry:
        """The exchange's row."""
        return entry(self.exchange)

    @property
    def name(self) -> str:
        """For progress and complaints."""
        return f"{self.exchange}, {self.nodes} nodes, {self.bytes} B, {self.link.name}"

    @property
    def least_s(self) -> float | None:
        """What a round takes on these links at least, if its phases follow each other; None: nothing limits it.

        The busiest link of every phase counts, with the headers of full segments.
        """
        if self.link.rate_bits is None:
            return None
        loads = self.entry.loads(self.nodes, self.bytes)
        return sum(8 * wire_bytes(round(load)) / self.link.rate_bits for load in loads)

    @property
    def moved(self) -> float:
        """Bytes of gradients and sums that a round moves over the network."""
        sent = sum(self.entry.carried(own, self.nodes, self.bytes)[1] for own in self.numbers)
        return float(sent)

    @property
    def numbers(self) -> range:
        """Of everybody who takes part."""
        return range(0 if self.entry.served else 1, self.nodes + 1)


def check_bytes(sizes: list[int]) -> list[int]:
    """Raises InputError for a size that is not made of float32."""
    for size in sizes:
        if size % _WORD_BYTES or size <= 0:
            raise InputError(f"{size} B are no whole number of float32", where="--bytes")
    return sizes
