"""How large the messages of an earlier run were, step by step: what a run without gradients sends again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.exchange.frame import HEADER_BYTES
from testbed.record.directory import MANIFEST, read_events, read_json
from testbed.train.job import Job
from testbed.train.sizes import Sizes

_NOTHING: Mapping[str, Any] = {"size": 0, "sent_count": 0, "density": 1.0}
"""Of a worker whose steps were not recorded."""


class RecordedRun:
    """A run directory, as a source of sizes. Workers and steps beyond those recorded begin again with the first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifest = read_json(directory / MANIFEST)

    @property
    def algorithm(self) -> str:
        """Of which it was."""
        return str(self._manifest["algorithm"]["name"])

    def sizes(self, job: Job) -> tuple[tuple[Sizes, ...], ...]:
        """By step and server, of the worker ``job`` or, on a server, of the first worker.

        Raises InputError where the run had another number of servers, or no finished step.
        """
        servers, workers = self._nodes("server"), self._nodes("worker")
        if len(servers) != job.servers:
            raise InputError(
                f"the recorded run had {len(servers)} servers, this one has {job.servers}",
                where=str(self._directory),
            )
        rank = job.rank if job.peer >= job.servers else 0
        worker, peer = workers[rank % len(workers)]
        steps = [
            tuple(
                self._of(rounds[name], place, worker, peer)
                for place, (name, _) in enumerate(servers)
            )
            for _, rounds in sorted(self._rounds.items())
            if len(rounds) == len(servers)
        ]
        if not steps:
            raise InputError("the recorded run finished no step", where=str(self._directory))
        return tuple(steps)

    def _of(self, round_: Mapping[str, Any], place: int, worker: str, peer: int) -> Sizes:
        """What went to one server and came back. Elements are a whole step's, told with the first server."""
        if round_.get("others"):
            raise InputError(
                "in the recorded run not all workers took part in every step",
                where=str(self._directory),
            )
        (up,) = (int(m["bytes"]) for m in round_["messages"] if int(m["sender"]) == peer)
        down = int(round_["bytes_down"]) // len(round_["messages"])
        step = self._steps.get((worker, int(round_["step"])), _NOTHING)
        found = Sizes(
            up=up - HEADER_BYTES,
            down=down - HEADER_BYTES,
            size=int(step["size"]),
            sent=int(step["sent_count"]),
            union=int(round_["union_count"]),
            density=float(step["density"]),
        )
        return found if place == 0 else replace(found, size=0, sent=0)

    def _nodes(self, role: str) -> list[tuple[str, int]]:
        """Names and numbers, by rank."""
        nodes = [(n["rank"], name, n["peer"]) for name, n in self._manifest["nodes"].items()
                 if n["role"] == role]  # fmt: skip
        return [(name, int(peer)) for _, name, peer in sorted(nodes)]

    @cached_property
    def _rounds(self) -> dict[int, dict[str, Mapping[str, Any]]]:
        """By step, then by server."""
        found: dict[int, dict[str, Mapping[str, Any]]] = {}
        for round_ in self._events.get("round", []):
            found.setdefault(int(round_["step"]), {})[str(round_["node"])] = round_
        return found

    @cached_property
    def _steps(self) -> dict[tuple[str, int], Mapping[str, Any]]:
        return {(str(s["node"]), int(s["step"])): s for s in self._events.get("step", [])}

    @cached_property
    def _events(self) -> dict[str, Sequence[dict[str, Any]]]:
        return read_events(self._directory)
