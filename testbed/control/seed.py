"""Seeds of controllers: one per worker, derived from the run's."""

from __future__ import annotations

from hashlib import blake2b


def controller_seed(seed: int, rank: int) -> int:
    """Seed of the controller on worker ``rank`` in a run with ``seed``: 63 bits, unrelated between ranks."""
    digest = blake2b(f"controller {seed} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
