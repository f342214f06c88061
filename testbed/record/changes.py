"""The changes that were made to one link direction, packed: there may be a million. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Self

Impairments = dict[str, Any] | None


class Change(NamedTuple):
    """What is wanted of a ``change`` record (``testbed.record.events.LinkChanged``)."""

    due_s: float
    applied_s: float
    rate_bits: int
    queue_bytes: int
    impairments: Impairments


class Changes:
    """Of ``change`` records, in the order in which they were taken in. Impairments that recur are kept once."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._due, self._applied = array("d"), array("d")
        self._rates, self._queues = array("q"), array("q")
        self._impaired = array("l")
        self._known: dict[str, int] = {}
        self._impairments: list[Impairments] = []
        for record in records:
            self.take(record)

    def __len__(self) -> int:
        return len(self._due)

    def __getitem__(self, at: int) -> Change:
        return Change(
            self._due[at],
            self._applied[at],
            self._rates[at],
            self._queues[at],
            self._impairments[self._impaired[at]],
        )

    def __iter__(self) -> Iterator[Change]:
        return (self[at] for at in range(len(self)))

    def take(self, record: Mapping[str, Any]) -> None:
        """One more."""
        self._due.append(float(record["due_s"]))
        self._applied.append(float(record["applied_s"]))
        self._rates.append(int(record["rate_bits"]))
        self._queues.append(int(record["queue_bytes"]))
        impairments = record.get("impairments")
        key = repr(impairments)
        if key not in self._known:
            self._known[key] = len(self._impairments)
            self._impairments.append(impairments)
        self._impaired.append(self._known[key])

    def by_time(self) -> Self:
        """The same, by when they were due."""
        if any(after < before for before, after in pairwise(self._due)):
            order = sorted(range(len(self)), key=self._due.__getitem__)
            for name in ("_due", "_applied", "_rates", "_queues", "_impaired"):
                column = getattr(self, name)
                column[:] = array(column.typecode, (column[at] for at in order))
        return self
