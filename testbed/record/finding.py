"""One measure at one place, held against its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["valid", "degraded", "invalid"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure at one place. ``deviation`` None: not measured, and ``sentence`` says why."""

    measure: str
    sentence: str
    deviation: float | None = None
    limit: float = 0.0
    place: str | None = None

    def state(self, factor: float) -> State:
        """Valid within the limit, degraded within ``factor`` times it. Not measured is not a fault."""
        # The allowance is for the rounding of the deviation itself: 1.02 - 1 is above 0.02.
        if self.deviation is None or self.deviation <= self.limit * (1 + 1e-9):
            return "valid"
        return "degraded" if self.deviation <= factor * self.limit * (1 + 1e-9) else "invalid"
