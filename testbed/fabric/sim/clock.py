"""A virtual clock with cooperative threads: exactly one activity runs at any time.

An activity runs until it waits. It then looks for what is due next, in order of time and, at the same
time, of being asked for; moves the clock there; and hands over to that activity. Nothing depends on the
operating system's scheduling, so that runs are repeatable. Code between two waits takes no virtual time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any

from testbed.errors import ExperimentError


class Deadlock(ExperimentError):
    """Every activity waits for something that nothing is left to cause."""


class _Ended(BaseException):
    """Unwinds an activity that the end of the simulation finds waiting."""


class Activity:
    """One thread of control on a virtual clock (``testbed.node.Task``)."""

    def __init__(self, clock: VirtualClock, name: str, body: Callable[[], Any]) -> None:
        self.name, self.result, self.waits_for = name, None, "its turn"
        self.error: BaseException | None = None
        self.ended = self.main = False
        self.turn = 0
        """Number of the wait it is in; a wake-up for an earlier wait is void."""
        self.baton = threading.Lock()
        self.baton.acquire()
        self.joiners: list[Activity] = []
        self._clock, self._body = clock, body
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def join(self) -> None:
        """Wait for its end; raises what it raised."""
        while not self.ended:
            self.joiners.append(self._clock.current())
            self._clock.wait(f"the end of {self.name}")
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        self.baton.acquire()
        try:
            self._clock.check()
            self.result = self._body()
        except _Ended:
            pass
        except BaseException as error:  # handed to whoever joins, or runs the clock
            self.error = error
        self.ended = True
        self._clock.finished(self)


class VirtualClock:
    """Time in seconds from 0. ``run`` is called once, from a thread that is not an activity."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, int, Activity | Callable[[], None]]] = []
        self._order = count()
        self._activities: dict[Activity, None] = {}
        self._current: Activity | None = None
        self._mains = 0
        self._over = False
        self._failure: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def spawn(self, name: str, body: Callable[[], Any]) -> Activity:
        """An activity that runs ``body`` when its turn comes, at the present time."""
        activity = Activity(self, name, body)
        self._activities[activity] = None
        activity.thread.start()
        self._push(self.now, activity)
        return activity

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call ``action`` (which must not wait) at ``time_s``."""
        heappush(self._due, (max(time_s, self.now), next(self._order), 0, action))

    def run(self, bodies: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Run ``bodies`` side by side until all have returned; their results by name.

        The first error of one of them ends the run and is raised. What they have spawned and is still
        waiting at the end is unwound. Raises Deadlock when nothing can go on.
        """
        mains = [self.spawn(name, body) for name, body in bodies.items()]
        for activity in mains:
            activity.main = True
        self._mains = len(mains)
        if mains:
            self._hand_over()
            self._done.acquire()
        self._unwind()
        if self._failure is not None:
            raise self._failure
        return {activity.name: activity.result for activity in mains}

    def current(self) -> Activity:
        """The activity that is running."""
        if self._current is None:
            raise RuntimeError("only an activity of the clock can wait on it")
        return self._current

    def wait(self, reason: str, until_s: float | None = None) -> None:
        """Give up the turn until ``wake`` or ``until_s``, whichever is first."""
        activity = self.current()
        activity.waits_for = reason
        if until_s is not None:
            self._push(until_s, activity)
        self._hand_over()
        activity.baton.acquire()
        self.check()

    def wake(self, activity: Activity) -> None:
        """Let ``activity``, which waits, go on at the present time."""
        self._push(self.now, activity)

    def sleep_until(self, time_s: float) -> None:
        """Give up the turn until ``time_s``; not at all when that has passed."""
        if time_s > self.now:
            self.wait(f"t = {time_s:.6f} s", time_s)

    def check(self) -> None:
        """Unwind the calling activity when the simulation is over."""
        if self._over:
            raise _Ended

    def finished(self, activity: Activity) -> None:
        """What the thread of an ended activity does last."""
        del self._activities[activity]
        if self._over:
            self._done.release()
            return
        for joiner in activity.joiners:
            self.wake(joiner)
        if activity.main:
            self._mains -= 1
            if activity.error is not None or not self._mains:
                self._stop(activity.error)
                return
        self._hand_over()

    def _push(self, time_s: float, activity: Activity) -> None:
        heappush(self._due, (max(time_s, self.now), next(self._order), activity.turn, activity))

    def _hand_over(self) -> None:
        """Give the turn to the activity that is due next."""
        while self._due:
            self.now, _, turn, action = heappop(self._due)
            if not isinstance(action, Activity):
                action()
            elif turn == action.turn and not action.ended:
                action.turn += 1
                self._current = action
                action.baton.release()
                return
        waiting = "; ".join(f"{a.name} waits for {a.waits_for}" for a in self._activities)
        self._stop(Deadlock(f"nothing can happen after t = {self.now:.6f} s: {waiting}"))

    def _stop(self, failure: BaseException | None) -> None:
        self._current = None
        self._over, self._failure = True, failure
        self._done.release()

    def _unwind(self) -> None:
        """End every activity that is left, one after the other."""
        for activity in list(self._activities):
            activity.baton.release()
            self._done.acquire()
            activity.thread.join()
