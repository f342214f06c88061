"""Replaying a history of changes on absolute deadlines, and watching what the links make of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from testbed.links.replay.link_player import (
    FOREVER_NS,
    LONGEST_NS,
    RENEW_NS,
    LinkPlayer,
    PreparedChange,
)
from testbed.process import Sleeper, become_realtime, undisturbed
from testbed.records.events import Event, LinkChanged
from testbed.scenario.link_state import LinkChange, LinkDirection

LOOK_NS, SAMPLE_NS = 20_000_000, 100_000_000
SOON_NS = 2_000_000
"""Between looks at a link whose outage has just ended."""


class Replay(Thread):
    """Runs until ``finish``. ``emit`` gets records as they come and must not block."""

    def __init__(
        self,
        tracks: dict[LinkDirection, LinkPlayer],
        t0_ns: int,
        emit: Callable[[list[Event]], None],
    ) -> None:
        super().__init__(name="replay", daemon=True)
        self.tracks, self.t0_ns, self.sleeper = tracks, t0_ns, Sleeper()
        self._emit = emit
        self._inbox: SimpleQueue[tuple[list[PreparedChange], int]] = SimpleQueue()
        self._pending: deque[PreparedChange] = deque()
        self._known_to_ns = t0_ns
        self._stopping = False

    def add_changes(self, changes: Iterable[LinkChange], known_to_s: float | None) -> None:
        """Take more of the history, complete up to ``known_to_s`` (None: all there is)."""
        dues = [
            self.tracks[change.end].due(change, self.t0_ns + round(change.time_s * 1e9))
            for change in changes
        ]
        known = FOREVER_NS if known_to_s is None else self.t0_ns + round(known_to_s * 1e9)
        self._inbox.put((dues, known))

    def finish(self) -> None:
        """Stop after a last look at every link."""
        self._stopping = True
        self.join()

    def run(self) -> None:
        """The thread's work."""
        self.sleeper.realtime = become_realtime()
        try:
            with undisturbed():
                self._sleep_until(self.t0_ns)
                if not self._stopping:
                    self._begin()
                    self._loop()
        except Exception as error:  # a replay that ends early must not pass for a quiet one
            for track in self._alive():
                track.failure = f"the replay ended early: {type(error).__name__}: {error}"
            raise

    def _begin(self) -> None:
        self._take_feed()
        for track in self._alive():
            if not track.shape.rate_bits:  # first, so that the look finds its queue
                now = time.monotonic_ns()
                self._guarded(track, partial(track.begin_outage, now, self._known_ns(now)))
            now_s = self._after_t0(time.monotonic_ns())
            self._guarded(track, partial(track.sampler.begin, now_s))

    def _loop(self) -> None:
        look = self.t0_ns + LOOK_NS
        hold = soon = self.t0_ns
        while not self._stopping:
            self._take_feed()
            now = time.monotonic_ns()
            if self._next_due() <= now:
                self._change_all()
                now = time.monotonic_ns()
            if now >= hold:
                for track in self._alive():
                    self._maintain(track)
                hold = now + RENEW_NS
            if now >= look:
                self._look((look - self.t0_ns) % SAMPLE_NS < LOOK_NS)
                look = now + LOOK_NS - (now - self.t0_ns) % LOOK_NS
            if now >= soon:
                for track in self._resuming():
                    self._sample(track)
                soon = now + SOON_NS
            for track in self._alive():
                track.prepare_outage(now, self._known_ns(now))
            holding = any(track.needs_care for track in self._alive())
            waking = hold if holding else FOREVER_NS, soon if self._resuming() else FOREVER_NS
            self._sleep_until(min(look, self._next_due(), *waking))
        for track in self._alive():
            self._guarded(track, track.restore_plain_rate)
        self._look(closing=True)
        self._emit([event for track in self._alive() for event in track.sampler.end()])

    def _take_feed(self) -> None:
        fresh: list[PreparedChange] = []
        try:
            while True:
                dues, self._known_to_ns = self._inbox.get_nowait()
                fresh += dues
        except Empty:
            if fresh:
                self._pending = deque(sorted([*self._pending, *fresh], key=lambda due: due.at_ns))
        for due in fresh:
            self.tracks[due.end].upcoming.append(due)

    def _change_all(self) -> None:
        """Make everything that is due: first the kernel takes it, then it is recorded."""
        taken = []
        while self._next_due() <= time.monotonic_ns():
            due = self._pending.popleft()
            self.tracks[due.end].upcoming.popleft()
            if self._change(due):
                taken.append((due, time.monotonic_ns()))
        self._emit([self._record_change(due, applied_ns) for due, applied_ns in taken])

    def _change(self, due: PreparedChange) -> bool:
        track = self.tracks[due.end]
        if due.shape == track.shape or track.failure:
            return False
        now = time.monotonic_ns()
        return self._guarded(track, lambda: track.apply(due, now, self._known_ns(now)))

    def _record_change(self, due: PreparedChange, applied_ns: int) -> Event:
        track, shape = self.tracks[due.end], due.shape
        due_s, applied_s = self._after_t0(due.due_ns), self._after_t0(applied_ns)
        if self._sample(track):
            track.sampler.ask(due_s, shape)
        track.sampler.record.lateness_s.append((applied_ns - due.at_ns) / 1e9)
        self._maintain(track)
        where = (due.end.link, due.end.direction)
        impaired = shape.impairments.to_json() if track.line is not None else None
        requested = (shape.rate_bits, shape.queue_bytes)
        return LinkChanged(*where, due_s, applied_s, *requested, impairments=impaired)

    def _maintain(self, track: LinkPlayer) -> None:
        if track.needs_care:
            now = time.monotonic_ns()
            self._guarded(track, lambda: track.maintain(now, self._known_ns(now)))

    def _known_ns(self, now_ns: int) -> int:
        """Up to when the history is known, or taken for known."""
        return max(self._known_to_ns, now_ns + LONGEST_NS // 5)

    def _look(self, closing: bool) -> None:
        for track in self._alive():
            self._sample(track)
        if closing:
            self._emit([event for track in self._alive() for event in track.sampler.close()])

    def _sample(self, track: LinkPlayer) -> bool:
        now_s = self._after_t0(time.monotonic_ns())
        return self._guarded(track, lambda: track.sampler.look(now_s, track.shape, track.adjusted))

    def _resuming(self) -> list[LinkPlayer]:
        now_s = self._after_t0(time.monotonic_ns())
        return [track for track in self._alive() if track.sampler.resuming(now_s)]

    def _alive(self) -> list[LinkPlayer]:
        return [track for track in self.tracks.values() if track.failure is None]

    def _guarded(self, track: LinkPlayer, action: Callable[[], object]) -> bool:
        """Do something with the kernel; an end that fails is left alone from then on."""
        try:
            action()
        except OSError as error:
            at = self._after_t0(time.monotonic_ns())
            track.failure = f"at {at:.3f} s the kernel refused: {error.strerror or error}"
            return False
        return True

    def _after_t0(self, now_ns: int) -> float:
        return (now_ns - self.t0_ns) / 1e9

    def _next_due(self) -> int:
        return self._pending[0].at_ns if self._pending else FOREVER_NS

    def _sleep_until(self, time_ns: int) -> None:
        self.sleeper.sleep(time_ns, self._next_due(), lambda: self._stopping)
