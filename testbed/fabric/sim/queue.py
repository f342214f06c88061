"""A queue between activities on a virtual clock."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from testbed.fabric.sim.clock import Activity, VirtualClock

T = TypeVar("T")


class _Waiter(Generic[T]):
    """An activity that waits for an item, and the item once it has been handed one."""

    def __init__(self, activity: Activity) -> None:
        self.activity, self.items = activity, list[T]()


class VirtualQueue(Generic[T]):
    """``testbed.node.Queue``. Items go to those who wait, in the order in which they began to."""

    def __init__(self, clock: VirtualClock, name: str) -> None:
        self._clock, self._name = clock, name
        self._items: deque[T] = deque()
        self._waiters: deque[_Waiter[T]] = deque()

    def put(self, item: T) -> None:
        """Add ``item``. May be called by an activity or by an action of the clock."""
        if not self._waiters:
            self._items.append(item)
            return
        waiter = self._waiters.popleft()
        waiter.items.append(item)
        self._clock.wake(waiter.activity)

    def get(self, timeout: float | None = None) -> T:
        """Take the oldest item. Raises TimeoutError after ``timeout`` seconds of virtual time."""
        if self._items:
            return self._items.popleft()
        waiter = _Waiter[T](self._clock.current())
        self._waiters.append(waiter)
        until_s = None if timeout is None else self._clock.now + timeout
        self._clock.wait(f"an item of {self._name}", until_s)
        if not waiter.items:
            self._waiters.remove(waiter)
            raise TimeoutError(f"nothing came for {timeout} s")
        return waiter.items[0]
