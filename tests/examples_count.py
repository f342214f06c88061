"""How many examples a property is tried on: as many as are said every day, twenty times as many at night."""

from __future__ import annotations

import os


def examples(daily: int) -> int:
    """For ``max_examples``."""
    return daily * (20 if os.environ.get("NARROWS_NIGHTLY") else 1)
