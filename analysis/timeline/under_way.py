"""How many bytes were under way to and from each worker, as steps in time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from analysis.load import Run

Point = tuple[float, int]
"""Model time (s), and bytes under way from then on."""


def under_way(run: Run, steps: Collection[int]) -> dict[tuple[str, str], list[Point]]:
    """By worker and direction (``up``, ``down``): of frames that one side began to send and that had not
    wholly come to the other's network stack. Of what servers saw: nothing where there was none."""
    wanted = set(steps)
    names = {int(node["peer"]): name for name, node in run.manifest["nodes"].items()}
    moves: dict[tuple[str, str], list[Point]] = {}
    for record in _records(run, ("served", "round"), wanted):
        for message in record["messages"]:
            way = names[int(message["sender"])], "up"
            _add(moves, way, message["sent_s"], message["arrived_s"], message["bytes"])
    sent_s = _replies(run, wanted)
    for record in _records(run, ("bucket", "step"), wanted):
        step = int(record["step"])
        begun_s = sent_s.get((step, record.get("bucket")), sent_s.get((step, None)))
        if begun_s is not None:
            way = str(record["node"]), "down"
            _add(moves, way, begun_s, record["arrived_s"], record["bytes_down"])
    return {way: list(_summed(points, run.dilation)) for way, points in sorted(moves.items())}


def _records(run: Run, kinds: tuple[str, str], steps: set[int]) -> Iterator[Mapping[str, Any]]:
    """Of buckets; of a step's whole where a node has none."""
    finer, coarser = (
        [r for r in run.events.get(kind, []) if r["step"] in steps] for kind in kinds
    )  # fmt: skip
    known = {(r["node"], r["step"]) for r in finer}
    yield from finer
    yield from (r for r in coarser if (r["node"], r["step"]) not in known)


def _replies(run: Run, steps: set[int]) -> dict[tuple[int, int | None], float]:
    """When the first server began to reply, by step and bucket; None where it has no buckets."""
    found: dict[tuple[int, int | None], float] = {}
    for record in _records(run, ("served", "round"), steps):
        key = int(record["step"]), record.get("bucket")
        found[key] = min(float(record["send_start_s"]), found.get(key, float("inf")))
    return found


def _add(
    moves: dict[tuple[str, str], list[Point]], way: tuple[str, str], from_s: float, to_s: float, size: float
) -> None:  # fmt: skip
    if to_s > from_s:
        moves.setdefault(way, []).extend([(from_s, int(size)), (to_s, -int(size))])


def _summed(points: Iterable[Point], dilation: float) -> Iterator[Point]:
    total = 0
    for time_s, same in groupby(sorted(points), key=lambda point: point[0]):
        total += sum(change for _, change in same)
        yield time_s / dilation, total
