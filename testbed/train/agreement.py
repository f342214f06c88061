"""What workers tell each other so that their controllers decide alike: the largest delay, the mean accuracy.

Where an algorithm asks for it (``agree``), a worker's gradient message ends with 16 bytes about its last step, and the
server's reply with what all of them come to. So controllers see every step one step later, all the same.

    offset from the end   size  field
    −16                   8     communication delay in seconds of model time, IEEE 754 double, little-endian; NaN: none yet
    −8                    8     accuracy of the mini-batch
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from statistics import fmean

from testbed.control.base import Observation
from testbed.errors import WireError
from testbed.node import Buffer

_LAYOUT = struct.Struct("<dd")


@dataclass(frozen=True, slots=True)
class Note:
    """A step as one worker, or all of them, met it."""

    delay_s: float = nan
    accuracy: float = nan

    @classmethod
    def of(cls, seen: Observation | None) -> Note:
        """Of a worker's own step; nothing to tell before the first."""
        return cls() if seen is None else cls(seen.delay_s, seen.accuracy)

    def attached(self, payload: Buffer) -> bytes:
        """``payload`` and this."""
        return b"".join((payload, _LAYOUT.pack(self.delay_s, self.accuracy)))

    def upon(self, seen: Observation | None) -> Observation | None:
        """A worker's own step, with what all have agreed upon; None before the first."""
        if seen is None or isnan(self.delay_s):
            return None
        return replace(seen, delay_s=self.delay_s, accuracy=self.accuracy)


def detached(body: Buffer) -> tuple[memoryview, Note]:
    """Payload and note. Raises WireError for a body that is too short."""
    view = memoryview(body).cast("B")
    if len(view) < _LAYOUT.size:
        raise WireError(f"{len(view)} B are too few for the {_LAYOUT.size} B that workers agree by")
    return view[: -_LAYOUT.size], Note(*_LAYOUT.unpack(view[-_LAYOUT.size :]))


def agreed(notes: Sequence[Note]) -> Note:
    """The largest delay and the mean accuracy; NaN as long as one has nothing to tell."""
    delays = [note.delay_s for note in notes]
    if any(isnan(delay_s) for delay_s in delays):
        return Note()
    return Note(max(delays), fmean(note.accuracy for note in notes))
