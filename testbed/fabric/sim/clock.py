"""A virtual clock with cooperative activities, of which exactly one runs at any time, and a queue
between them.

An activity runs until it waits; the clock then goes to what is due next, in order of time and, at
the same time, of being asked for. Nothing depends on the operating system's scheduling, so that
runs are repeatable. Code between two waits takes no virtual time. Activities are greenlets: ten
thousand are nothing, and a switch costs no more than a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from testbed.errors import ExperimentError


class Deadlock(ExperimentError):
    """Every activity waits for something that nothing is left to cause."""


class Activity:
    """One thread of control on a virtual clock (``node.NodeTask``). ``owner``: who can be held."""

    def __init__(
        self, clock: VirtualClock, name: str, body: Callable[[], Any], owner: str = ""
    ) -> None:
        self.name, self.owner = name, owner
        self.result: Any = None
        self.waits_for: str | float = "its turn"
        """In words, or the time that it sleeps until."""
        self.error: BaseException | None = None
        self.ended = False
        self.turn = 0
        """Number of the wait it is in; a wake-up for an earlier wait is void."""
        self.until_s, self.alarm_s = inf, inf
        """When it gives up waiting, and when the clock looks whether it has to."""
        self.joiners: list[Activity] = []
        self._clock, self._body = clock, body
        self.greenlet: greenlet | None = None

    def join(self) -> None:
        """Wait for its end; raises what it raised."""
        while not self.ended:
            self.joiners.append(self._clock.current())
            self._clock.wait(f"the end of {self.name}")
        if self.error is not None:
            raise self.error

    def begin(self) -> None:
        """Run until it waits or ends for the first time; later it is switched to."""
        self.greenlet = greenlet(self._run)
        self.greenlet.switch()

    def unwind(self) -> None:
        """End it where it waits."""
        if self.greenlet is not None and not self.ended:
            self.greenlet.throw(GreenletExit)

    def _run(self) -> None:
        try:
            self.result = self._body()
        except GreenletExit:
            pass
        except BaseException as error:  # handed to whoever joins, or runs the clock
            self.error = error
        self.ended = True


_Due = tuple[float, int, int, Activity | Callable[..., None], tuple[Any, ...]]
"""When, in which order, at which turn (of an activity), what, and what it is given."""


class VirtualClock:
    """Time in seconds from 0. ``run`` is called once, from code that is not an activity."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[_Due] = []
        self._order = count()
        self._activities: dict[Activity, None] = {}
        self._missing: set[Activity] = set()
        self._killed: set[str] = set()
        self._lost: set[Activity] = set()
        self._missed: dict[str, list[tuple[int, Activity]]] = {}
        self._current: Activity | None = None
        self._hub: greenlet | None = None
        self._over = False

    def spawn(self, name: str, body: Callable[[], Any], owner: str = "") -> Activity:
        """An activity that runs ``body`` when its turn comes, at the present time."""
        activity = Activity(self, name, body, owner)
        self._activities[activity] = None
        self._push(self.now, activity.turn, activity)
        return activity

    def at(self, time_s: float, action: Callable[..., None], *given: Any) -> None:
        """Call ``action(*given)``, which must not wait, at ``time_s``."""
        now = self.now
        due = time_s if time_s > now else now
        heappush(self._due, (due, next(self._order), 0, action, given))

    def run(
        self, bodies: Mapping[str, Callable[[], Any]], owners: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Run ``bodies`` side by side until all have returned; their results by name.

        The first error of one of them ends the run and is raised. What they have spawned and is
        still waiting at the end is unwound. Raises Deadlock when nothing can go on. ``owners``: by
        name. Who was killed has no result.
        """
        owners, self._hub = owners or {}, getcurrent()
        mains = [self.spawn(name, body, owners.get(name, "")) for name, body in bodies.items()]
        missing = self._missing = set(mains)
        try:
            while missing:
                ended = self._next()
                if ended in missing:
                    missing.remove(ended)
                    if ended.error is not None:
                        raise ended.error
        finally:
            self._unwind()
        return {activity.name: activity.result for activity in mains if activity not in self._lost}

    def current(self) -> Activity:
        """The activity that is running."""
        if self._current is None:
            raise RuntimeError("only an activity of the clock can wait on it")
        return self._current

    def wait(
        self, reason: str | float, until_s: float | None = None, *, likely: bool = True
    ) -> None:
        """Give up the turn until ``wake`` or ``until_s``, whichever is first. ``reason``: what for.

        Not ``likely``: a time-out that hardly ever comes. One alarm serves many such waits.
        """
        activity, hub = self.current(), self._hub
        if self._over or hub is None:
            raise GreenletExit
        activity.waits_for = reason
        activity.until_s = inf
        if until_s is not None and likely:
            self._push(until_s, activity.turn, activity)
        elif until_s is not None:
            activity.until_s = until_s
            if until_s < activity.alarm_s:
                activity.alarm_s = until_s
                self.at(until_s, self._alarm, activity)
        hub.switch()

    def wake(self, activity: Activity) -> None:
        """Let ``activity``, which waits, go on at the present time."""
        self._push(self.now, activity.turn, activity)

    def sleep_until(self, time_s: float) -> None:
        """Give up the turn until ``time_s``; not at all when that has passed."""
        if time_s > self.now:
            self.wait(time_s, time_s)

    def hold(self, owner: str) -> None:
        """From now on no activity of ``owner`` gets its turn."""
        self._missed.setdefault(owner, [])

    def kill(self, owner: str) -> None:
        """From now on no activity of ``owner`` gets its turn, and nobody waits for its end."""
        self.hold(owner)
        self._killed.add(owner)
        self._lost |= {activity for activity in self._missing if activity.owner == owner}
        self._missing -= self._lost

    def paused(self, owner: str) -> bool:
        """Return whether no activity of ``owner`` gets its turn."""
        return owner in self._missed

    def running(self, owner: str) -> bool:
        """Return whether an activity that ``run`` was given for ``owner`` has not ended."""
        return any(activity.owner == owner for activity in self._missing)

    def release(self, owner: str) -> None:
        """Let ``owner``'s activities do now what they have missed since ``hold``."""
        if owner in self._killed:
            return
        for turn, activity in self._missed.pop(owner, []):
            self._push(self.now, turn, activity)

    def _alarm(self, activity: Activity) -> None:
        """Wake ``activity`` if it has waited long enough; else look again when it will have."""
        activity.alarm_s = inf
        if activity.ended or activity.until_s == inf:
            return
        if activity.until_s <= self.now:
            self.wake(activity)
        else:
            activity.alarm_s = activity.until_s
            self.at(activity.until_s, self._alarm, activity)

    def _push(self, time_s: float, turn: int, activity: Activity) -> None:
        now = self.now
        due = time_s if time_s > now else now
        heappush(self._due, (due, next(self._order), turn, activity, ()))

    def _next(self) -> Activity | None:
        """Do what is due next. Returns the activity that has come to its end by it."""
        if not self._due:
            raise Deadlock(f"nothing can happen after t = {self.now:.6f} s: {self._waiting()}")
        self.now, _, turn, action, given = heappop(self._due)
        if not isinstance(action, Activity):
            action(*given)
        elif turn != action.turn or action.ended:
            pass
        elif action.owner in self._missed:
            self._missed[action.owner].append((turn, action))
        else:
            action.turn += 1
            action.until_s = inf
            self._current = action
            if action.greenlet is None:
                action.begin()
            else:
                action.greenlet.switch()
            self._current = None
            return self._over_with(action) if action.ended else None
        return None

    def _over_with(self, activity: Activity) -> Activity:
        del self._activities[activity]
        for joiner in activity.joiners:
            self.wake(joiner)
        return activity

    def _waiting(self) -> str:
        waits = ((a.name, a.waits_for) for a in self._activities)
        return "; ".join(
            f"{name} waits for {what if isinstance(what, str) else f't = {what:.6f} s'}"
            for name, what in waits
        )

    def _unwind(self) -> None:
        """End every activity that is left, one after the other."""
        self._over = True
        for activity in list(self._activities):
            self._current = activity
            activity.unwind()
        self._current = None


T = TypeVar("T")


class _Waiter(Generic[T]):
    """An activity that waits for an item, and the item once it has been handed one."""

    __slots__ = ("activity", "items")

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.items: tuple[T, ...] = ()


class VirtualQueue(Generic[T]):
    """``testbed.node.Queue``. Items go to those who wait, in the order in which they began to."""

    def __init__(self, clock: VirtualClock, name: str) -> None:
        self._clock, self._reason = clock, f"an item of {name}"
        self._items: deque[T] = deque()
        self._waiters: deque[_Waiter[T]] = deque()

    def put(self, item: T) -> None:
        """Add ``item``. May be called by an activity or by an action of the clock."""
        if not self._waiters:
            self._items.append(item)
            return
        waiter = self._waiters.popleft()
        waiter.items = (item,)
        self._clock.wake(waiter.activity)

    def get(self, timeout: float | None = None) -> T:
        """Take the oldest item. Raises TimeoutError after ``timeout`` seconds of virtual time."""
        if self._items:
            return self._items.popleft()
        waiter: _Waiter[T] = _Waiter(self._clock.current())
        self._waiters.append(waiter)
        until_s = None if timeout is None else self._clock.now + timeout
        self._clock.wait(self._reason, until_s, likely=False)
        if not waiter.items:
            self._waiters.remove(waiter)
            raise TimeoutError(f"nothing came for {timeout} s")
        return waiter.items[0]


class Countdown:
    """Wakes whoever waits, for ``reason``, once ``count_down`` has been called ``left`` times."""

    def __init__(self, clock: VirtualClock, left: int, reason: str) -> None:
        self.left, self._clock, self._reason = left, clock, reason
        self._waiting: list[Activity] = []

    def count_down(self) -> None:
        """Count one. May be called by an activity or by an action of the clock."""
        self.left -= 1
        if not self.left:
            for activity in self._waiting:
                self._clock.wake(activity)

    def wait(self) -> None:
        """Wait until all are counted."""
        if self.left:
            self._waiting.append(self._clock.current())
            self._clock.wait(self._reason)
