"""Numbers for generators, derived so that streams with different purposes never coincide."""

from __future__ import annotations

from hashlib import blake2b


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for ``purpose`` (``derive(1, "batches", epoch)``), the same on every machine."""
    text = "/".join(map(str, (seed, *purpose))).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
