"""Connections that have not said who they are: few of one address, none for long.

Whoever has a reason to connect introduces itself; a stranger that says nothing holds nothing up, and a flood of
strangers takes a bounded number of sockets. Of too many, the oldest of the same address goes first.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

S = TypeVar("S")

GREETING_S = 10.0
"""How long an accepted connection may take to introduce itself."""
GREETING_BYTES = 4096
"""Of the body that it does so with."""
_OF_ONE_ADDRESS, _IN_ALL = 32, 512


class Doorway(Generic[S]):
    """Who waits, in order of arrival. Any thread may call."""

    def __init__(self, greeting_s: float = GREETING_S) -> None:
        self._greeting_s = greeting_s
        self._waiting: dict[S, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, stream: S, address: str, now_s: float) -> S | None:
        """``stream`` waits from now on; returns the one that has to go for it."""
        with self._lock:
            same = [other for other, (whose, _) in self._waiting.items() if whose == address]
            self._waiting[stream] = address, now_s + self._greeting_s
            if len(same) >= _OF_ONE_ADDRESS:
                return self._remove(same[0])
            if len(self._waiting) > _IN_ALL:
                return self._remove(next(iter(self._waiting)))
            return None

    def leave(self, stream: S) -> None:
        """It has introduced itself, or is gone."""
        with self._lock:
            self._waiting.pop(stream, None)

    def overdue(self, now_s: float) -> list[S]:
        """Those that have waited too long; they do not wait any more."""
        with self._lock:
            late = [stream for stream, (_, until_s) in self._waiting.items() if until_s <= now_s]
            return [self._remove(stream) for stream in late]

    def all(self) -> list[S]:
        """Everybody who waits."""
        with self._lock:
            return list(self._waiting)

    def _remove(self, stream: S) -> S:
        del self._waiting[stream]
        return stream
