"""Handing a possibly endless history to the agent, always a good while ahead of the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from threading import Event, Thread
from typing import Any

from testbed.errors import ExperimentError
from testbed.links.wire import change_to_json
from testbed.scenario.shape import LinkChange

AHEAD_S, EVERY_S = 45.0, 5.0
"""The agent knows at least 40 s ahead: an outage's end is known long before it comes."""

_BATCH = 2000
"""Changes in one message, so that none is long to read."""


class Feeder:
    """``call(operation, **fields)`` is how the agent is asked."""

    def __init__(self, t0_ns: int, changes: Iterator[LinkChange], call: Callable[..., Any]) -> None:
        self._t0_ns, self._changes, self._call = t0_ns, changes, call
        self._next: LinkChange | None = None
        self._exhausted = False
        self._stop = Event()
        self._thread = Thread(target=self._run, name="feeder", daemon=True)

    def begin(self) -> None:
        """Start the replay with the first stretch of the history."""
        first = list(self._until(AHEAD_S))
        self._send("start", first, AHEAD_S, t0_ns=self._t0_ns)
        self._thread.start()

    def end(self) -> None:
        """Feed no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        # An agent that is gone is noticed by whoever asks it for something that matters.
        with suppress(ExperimentError):
            while not self._exhausted and not self._stop.wait(EVERY_S):
                ahead = max(0.0, (time.monotonic_ns() - self._t0_ns) / 1e9) + AHEAD_S
                self._send("feed", list(self._until(ahead)), ahead)

    def _send(
        self, operation: str, changes: list[LinkChange], known_to_s: float, **fields: Any
    ) -> None:
        remaining = iter(changes)
        while True:
            batch = list(islice(remaining, _BATCH))
            last = len(batch) < _BATCH
            known: float | None = known_to_s if last else batch[-1].time_s
            if last and self._exhausted:
                known = None
            self._call(
                operation, changes=list(map(change_to_json, batch)), known_to_s=known, **fields
            )
            if last:
                return
            operation, fields = "feed", {}

    def _until(self, time_s: float) -> Iterator[LinkChange]:
        while True:
            change = self._next or next(self._changes, None)
            self._next = None
            if change is None:
                self._exhausted = True
                return
            if change.time_s >= time_s:
                self._next = change
                return
            yield change
