"""Seeds of controllers, one per worker, derived from the run's; and their generators as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Any


def controller_seed(seed: int, rank: int) -> int:
    """Seed of the controller on worker ``rank`` in a run with ``seed``: 63 bits, unrelated between ranks."""
    digest = blake2b(f"controller {seed} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_state(random: Random) -> list[Any]:
    """The state of a generator as JSON values."""
    version, internal, gauss = random.getstate()
    return [version, list(internal), gauss]


def generator(state: Sequence[Any]) -> Random:
    """A generator that goes on from ``state``."""
    version, internal, gauss = state
    random = Random(0)
    random.setstate((version, tuple(internal), gauss))
    return random
