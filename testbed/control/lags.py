"""LAGS (Shi et al., ECAI 2020), for a parameter server: every bucket is as dense as hides behind computation.

    ρ_l = (t_l − c_l − α) / (β·w·m_l)        clipped to [k_min, k_max]

t_l: computation that is left when bucket l is ready (``under: remaining``), or that of the layers up to the next bucket's (``next``,
as in the paper); c_l: its compression; m_l: its elements; w: bytes of both ways for every element sent; α, β: what a message and a byte
take. Where the bytes of a dense bucket fit, ρ_l = 1, or ``cap``. How this follows, and differs, is in ``docs/algc.md``.
"""

from __future__ import annotations

from math import fsum
from typing import Literal

from pydantic import Field

from testbed.control.hiding import Hiding, HidingOptions
from testbed.control.messages import Message
from testbed.control.options import Density
from testbed.control.sizes import VALUE_BYTES
from testbed.control.way import Known


class LagsOptions(HidingOptions):
    """Options of ``lags``."""

    under: Literal["remaining", "next"] = Field(
        "remaining",
        description="What a bucket hides behind: all that is left of the backward pass, or its next part.",
    )
    cap: Density | None = Field(
        None, description="Density in place of one above 1: 0.05 in published code; none: 1."
    )


class Lags(Hiding[LagsOptions]):
    """One agent, for one worker."""

    name, model = "lags", LagsOptions

    def _decided(self, known: Known) -> dict[str, float]:
        """Parameters of one bucket have one density."""
        weight, chosen = _bytes_per_element(known), dict[str, float]()
        for message, time_s in zip(known.messages, self._behind_s(known), strict=True):
            density = self._hidden(known, message, time_s, weight)
            chosen |= dict.fromkeys(message.names, density)
        return chosen

    def _behind_s(self, known: Known) -> list[float]:
        """t of every bucket; where nothing overlaps, all share what they may take by their elements."""
        messages = known.messages
        if not known.hides:
            total = fsum(message.elements for message in messages)
            times = zip(messages, self._times_s(known), strict=True)
            return [time_s * message.elements / total for message, time_s in times]
        left = [message.left_s for message in messages]
        if self.options.under == "next":
            left = [now - after for now, after in zip(left, [*left[1:], 0.0], strict=True)]
        return [time_s + self.options.forward * messages[0].left_s for time_s in left]

    def _hidden(self, known: Known, message: Message, time_s: float, weight: float) -> float:
        """ρ, within its limits."""
        options, way = self.options, known.way
        free_s = time_s - known.packing.seconds(message.elements, len(message.names)) - way.start_s
        byte_s = way.per_s * message.elements
        if free_s >= 2 * VALUE_BYTES * byte_s:
            density = 1.0 if options.cap is None else options.cap
        else:
            density = free_s / (byte_s * weight) if free_s > 0 else options.k_min
        return min(max(density, options.k_min), options.k_max)


def _bytes_per_element(known: Known) -> float:
    """w; of float32 and Elias-Fano at 0.01 both ways where nothing was compressed."""
    sparse = [message for message in known.messages if message.sparse]
    sent = fsum(message.sent for message in sparse)
    return fsum(message.up + message.down for message in sparse) / sent if sent else 10.0
