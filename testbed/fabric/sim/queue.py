"""A queue between activities on a virtual clock."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from testbed.fabric.sim.clock import Activity, VirtualClock

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
