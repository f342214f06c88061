"""Work that goes on beside its owner's: one piece after the other, and of those that wait the most urgent first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from testbed.node import Node, Queue

Failed = Callable[[BaseException], None]


class Lane:
    """``failed`` is told what a piece of work raises; nothing is done after it."""

    def __init__(self, node: Node, failed: Failed) -> None:
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._tokens: Queue[bool] = node.queue()
        """One for each piece of work; False: to have a look whether it is over."""
        self._over = False
        self._failed = failed
        node.spawn(self._run)

    def put(self, work: Callable[[], None], urgency: int = 0) -> None:
        """Have ``work`` done: before all that wait with a greater ``urgency``, after those with the same."""
        heappush(self._waiting, (urgency, next(self._order), work))
        self._tokens.put(True)

    def end(self) -> None:
        """Nothing more is begun. Never blocks: what is under way may wait for somebody who is lost."""
        self._over = True
        self._tokens.put(False)

    def _run(self) -> None:
        try:
            while self._tokens.get() and not self._over:
                _, _, work = heappop(self._waiting)
                work()
        except BaseException as error:
            self._failed(error)
