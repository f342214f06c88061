"""What a scenario does to nodes during a run: pause, resume, kill, restart, each at its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from testbed.errors import ExperimentError
from testbed.record.events import NodeChanged

if TYPE_CHECKING:
    from testbed.scenario.node_events import NodeChange
    from testbed.session.session import Session


class Disturbances:
    """Carries out ``changes`` (by time) from ``t0_ns`` on, in a thread; ``write`` gets their records.

    What goes wrong becomes an error of the node that it concerned.
    """

    def __init__(
        self,
        session: Session,
        changes: Iterable[NodeChange],
        t0_ns: int,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._session, self._changes = session, list(changes)
        self._t0_ns, self._write = t0_ns, write
        self._ended = Event()
        self._thread = Thread(target=self._run, name="disturbances", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no more changes, and let every node that is still paused go on."""
        self._ended.set()
        self._thread.join()
        for node in sorted(self._session.paused):
            self._session.resume(node)

    def _run(self) -> None:
        for change in self._changes:
            if self._ended.wait(max(0.0, change.time_s - self._now())):
                return
            try:
                self._apply(change)
            except Exception as error:  # whatever it is, the run must hear of it
                self._session.fail(change.node, ExperimentError(f"{change.action}: {error}"))
                return

    def _apply(self, change: NodeChange) -> None:
        actions: dict[str, Callable[[], None]] = {
            "pause": lambda: self._session.pause(change.node),
            "resume": lambda: self._session.resume(change.node),
            "kill": lambda: self._session.kill(change.node, change.time_s),
            "restart": lambda: self._session.restart(change.node),
        }
        actions[change.action]()
        record = NodeChanged(change.node, change.action, change.time_s, self._now())
        self._write(record.to_json())

    def _now(self) -> float:
        return (time.monotonic_ns() - self._t0_ns) / 1e9
