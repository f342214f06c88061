"""Undoing a journal, newest entry first; each entry's own identity is checked before it is removed.

``sweep`` is called by fabrics at the end of a run, and by ``testbed clean`` (``cli/doctor.py``),
which decides whose run is over: its process is dead, and it was not kept. Here are the kinds of
entries that runs in namespaces make; ``docker.engine`` adds those of containers. What fabrics with
a journal share is ``JournaledFabric``.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from testbed import cgroups
from testbed.errors import MachineError
from testbed.journal import KEPT, Entry, Journal, cleaners, lives, shown
from testbed.links.network import namespaces
from testbed.process import within

_GRACE_S = 2.0
_POLL_S = 0.02


def clean_namespace(entry: Entry) -> list[str]:
    """``{"name"}``: a named network namespace."""
    return [f"namespace {entry['name']}"] if namespaces.remove(entry["name"]) else []


def clean_link(entry: Entry) -> list[str]:
    """``{"name", "alias"}``: a device in the host's namespace; ``netns`` names another."""
    path = namespaces.path_of(entry["netns"]) if entry.get("netns") else None
    if path is not None and not os.path.ismount(path):  # a file that is left of one is none
        return []
    from testbed.links.network.topology import remove_devices

    gone = remove_devices(path, [entry["name"]], entry["alias"])
    return [f"device {name}" for name in gone]


def clean_process(entry: Entry) -> list[str]:
    """``{"pid", "start"}``: that very process, asked to end and then made to."""
    pid, start = entry["pid"], entry["start"]
    if not lives(pid, start):
        return []
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        if _gone_within(pid, start, _GRACE_S):
            break
    return [f"process {pid}"]


def clean_folder(entry: Entry) -> list[str]:
    """``{"path"}``: a folder of sockets that was made for one run."""
    path = Path(entry["path"])
    if not path.is_dir() or path.is_symlink() or path.stat().st_uid != os.geteuid():
        return []
    shutil.rmtree(path)
    return [f"folder {path}"]


def clean_subnet(_: Entry) -> list[str]:
    """``{"network"}``: only noted so that runs do not take the same; it goes with its devices."""
    return []


def _gone_within(pid: int, start: str, seconds: float) -> bool:
    return within(seconds, _POLL_S, lambda: not lives(pid, start))


def register() -> None:
    """Make these known to whoever sweeps journals. Safe to call twice."""
    cleaners.update(
        namespace=clean_namespace,
        link=clean_link,
        process=clean_process,
        folder=clean_folder,
        subnet=clean_subnet,
        cgroup=cgroups.clean,
    )


_LONGEST = 4000
"""Characters of a message that lists what is left."""


def sweep(journal: Journal) -> list[str]:
    """Remove whatever a journal lists and is still there, then the journal; returns what, in words.

    Raises MachineError when something could not be removed; the journal is kept then.
    """
    removed: list[str] = []
    failures: list[str] = []
    for entry in reversed(journal.entries):
        if entry["kind"] == KEPT:
            continue
        try:
            removed += _remove(entry)
        except (OSError, MachineError) as error:
            failures.append(f"{_name(entry)}: {error}")
    if failures:
        raise MachineError(
            f"of run {journal.run!r} not removed: {shown('; '.join(failures))[:_LONGEST]}",
            fix="Run `testbed clean` with the privileges of whoever ran it.",
        )
    journal.close()
    return removed


def _remove(entry: Entry) -> list[str]:
    kind = entry["kind"]
    if kind not in cleaners:
        raise MachineError(f"nobody knows how to remove a {kind}")
    return cleaners[kind](entry)


def _name(entry: Entry) -> str:
    return " ".join(str(value) for value in entry.values())


class JournaledFabric:
    """The part of a fabric that its journal does: what the journal lists is removed, or kept."""

    agent: Any
    journal: Journal | None = None

    def save_logs(self) -> None:
        """Nothing to do: they are written as nodes print."""

    def keep(self) -> None:
        """Leave everything standing when this process ends, until ``testbed clean --all``."""
        if hasattr(self, "agent"):
            self.agent.leave_standing()
        if self.journal is not None:
            self.journal.add(KEPT)

    def remove(self, last: Callable[[], object], *first: Callable[[], object]) -> None:
        """Close the agent and what is ``first``, save the logs, remove what is there, do ``last``:
        each in turn, whatever another raises."""
        with ExitStack() as stack:  # from its end
            stack.callback(last)
            if self.journal is not None:
                stack.callback(sweep, self.journal)
                stack.callback(self.save_logs)
                for close in first:
                    stack.callback(close)
            if hasattr(self, "agent"):
                stack.callback(self.agent.close)
