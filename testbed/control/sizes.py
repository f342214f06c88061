"""How many bytes a density makes, as controllers reckon before they choose: near to the wire format, and smooth.

    up(k)   = scale · ( 40 + min(4n, 4kn + min(kn·(2 + log₂ 1/k), n) / 8) )
    down(k) = min(dense, ratio · up(k))

40 bytes are a payload's header and its length in a message. Elements take 4 bytes and their index, by Elias-Fano or as a
bitmap. ``scale`` and ``ratio`` are measured: what a value coding saves, and how much longer the union of all workers'
elements is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

OVERHEAD_BYTES, VALUE_BYTES = 40.0, 4.0


def payload(elements: float, density: float) -> float:
    """Bytes of ``density`` in (0, 1] of ``elements`` float32 values, at least one of them."""
    count = max(1.0, density * elements)
    index_bits = min(count * (2 + log2(elements / count)), elements)
    sparse = VALUE_BYTES * count + index_bits / 8
    return OVERHEAD_BYTES + min(VALUE_BYTES * elements, sparse)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes by elements and density."""

    scale: float = 1.0
    """Bytes up that were counted, by those that ``payload`` says."""
    ratio: float = 1.0
    """Bytes down by bytes up, of what was compressed."""

    def up(self, elements: float, density: float) -> float:
        """Of a worker's message."""
        return self.scale * payload(elements, density)

    def down(self, elements: float, density: float) -> float:
        """Of the server's reply."""
        dense = payload(elements, 1.0)
        return dense if density == 1.0 else min(dense, self.ratio * self.up(elements, density))

    def both(self, elements: float, density: float) -> float:
        """Of the way there and back."""
        return self.up(elements, density) + self.down(elements, density)

    def fuller(self, elements: float, density: float) -> float:
        """Of the way that has more: what buckets cost that come back while others leave."""
        return max(self.up(elements, density), self.down(elements, density))
