"""The memory that payloads are written in and read with: made once for a bucket, used at every step."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.compress.base import Bytes, Room

Kind = TypeVar("Kind", bound=np.generic)


class Scratch:
    """Arrays kept between calls, by name; grown when needed, never shrunk.

    A caller that keeps one gets results that live in it, and are void at its next use.
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def array(self, name: str, count: int, kind: type[Kind]) -> NDArray[Kind]:
        """``count`` elements of ``kind``; their contents are undefined."""
        held = self._held.get(name)
        if held is None or held.size < count:
            held = self._held[name] = np.empty(count + count // 8, kind)
        return held[:count]

    def room(self, name: str) -> Room:
        """``array`` of float32, for whoever knows how many."""
        return lambda count: self.array(name, count, np.float32)


class PayloadBuffer:
    """Grows when needed. What was written before is void as soon as the next payload is begun."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.scratch = Scratch()

    def take(self, length: int) -> memoryview:
        """``length`` bytes of undefined contents."""
        if len(self._held) < length:
            self._held = bytearray(length + length // 8)
        return memoryview(self._held)[:length]


def as_bytes(view: memoryview) -> Bytes:
    """The same bytes as an array, without a copy."""
    return np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)
