"""The processes of a job: started in their nodes, followed to their end, and ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.runner.exec.launch_spec import LaunchSpec, ProcessSlot
from testbed.user_files import Output, lines

if TYPE_CHECKING:
    from testbed.fabric.base import Fabric, Launched


GRACE_S = 5.0
"""How long others may take to end when one has failed, and then after each signal."""
_ATTEMPTS, _LOOK_S = 3, 0.02
_LAST_WORDS_S = 1.0
"""From a process's end to that of its output, which children of it may hold open."""
_KILLED = 128
"""A shell says this and the signal's number."""


@dataclass
class Member:
    """One process. Times are of the monotonic clock; ``end_requested``: it was told to end."""

    slot: ProcessSlot
    rank: int
    process: Launched
    started_ns: int
    ended_ns: int | None = None
    end_requested: bool = False

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        code = self.process.returncode
        if code is None or not _KILLED < code < _KILLED + signal.NSIG:
            return code
        return _KILLED - code

    @property
    def failed(self) -> bool:
        """Return whether it ended badly, of its own accord."""
        return bool(self.status) and not self.end_requested


class ProcessGroup:
    """All of them, by rank. ``output`` gets what they say."""

    def __init__(self, fabric: Fabric, spec: LaunchSpec, output: Output) -> None:
        self._fabric, self._spec, self._output = fabric, spec, output
        self.members: list[Member] = []
        self._end_at: float | None = None
        self._number = signal.SIGTERM

    def start(self, slot: ProcessSlot, environment: Mapping[str, str]) -> None:
        """One more. Raises OSError where nothing can be started at all, RuntimeError where there
        can be no more threads: one that nobody follows would never be seen to end."""
        process = self._fabric.launch(slot.node, self._spec.command, environment)
        rank = slot.node_rank * self._spec.processes + slot.local_rank
        member = Member(slot, rank, process, time.monotonic_ns())
        reader = threading.Thread(target=self._read, args=(member,), daemon=True)
        reader.start()
        threading.Thread(target=self._follow, args=(member, reader), daemon=True).start()
        self.members.append(member)

    @property
    def running(self) -> list[Member]:
        """Those that have not ended."""
        return [member for member in self.members if member.ended_ns is None]

    @property
    def failed(self) -> list[Member]:
        """Those that ended badly, the first of them first."""
        bad = [member for member in self.members if member.ended_ns is not None and member.failed]
        return sorted(bad, key=lambda member: member.ended_ns or 0)

    def excuse(self, killed_ns: Mapping[str, int]) -> None:
        """Excuse processes of nodes that the scenario killed, unless they had ended before."""
        for member in self.members:
            at_ns = killed_ns.get(member.slot.node)
            if at_ns is not None and (member.ended_ns is None or member.ended_ns >= at_ns):
                member.end_requested = True

    def tend(self) -> None:
        """When one has failed, give the others ``GRACE_S``, then SIGTERM, then SIGKILL."""
        if self._end_at is None and self.failed:
            self._end_at = time.monotonic() + GRACE_S
        if self._end_at is not None and time.monotonic() > self._end_at and self.running:
            self.end()

    def end(self) -> None:
        """Ask all that run to end; the second time, make them."""
        running = self.running
        for member in running:
            member.end_requested = True
        for node in {member.slot.node for member in running}:
            self._fabric.resume(node)  # one that stands still would not hear it
            self._fabric.signal(node, self._number)
        self._number, self._end_at = signal.SIGKILL, time.monotonic() + GRACE_S

    def end_all(self) -> None:
        """Ask all that run to end, make those that do not, and wait until it is so."""
        for _ in range(_ATTEMPTS):
            if not self.running:
                return
            self.end()
            give_up = time.monotonic() + GRACE_S
            while self.running and time.monotonic() < give_up:
                time.sleep(_LOOK_S)

    def _follow(self, member: Member, reader: threading.Thread) -> None:
        """In a thread of its own: until the process has ended, and a little longer for its last
        words.

        What it has started may hold its output open for good: nobody waits for that.
        """
        member.process.wait()
        ended_ns = time.monotonic_ns()
        reader.join(_LAST_WORDS_S)
        member.ended_ns = ended_ns

    def _read(self, member: Member) -> None:
        pipe = member.process.stdout
        assert pipe is not None
        for line in lines(pipe):
            self._output.line(member.slot.node, member.slot.local_rank, line)
