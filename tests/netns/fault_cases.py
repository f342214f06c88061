"""Which faults befall which exchanges: all of them by night, by day a choice that has every pair of its parts.

``NARROWS_FAULTS_SEED`` plays a choice again; without it a day's number chooses, the same for whoever looks that day.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import combinations, product
from random import Random
from typing import NamedTuple

SEED = int(os.environ.get("NARROWS_FAULTS_SEED") or datetime.now(UTC).date().toordinal())
ALL = bool(os.environ.get("NARROWS_NIGHTLY"))


class Case(NamedTuple):
    """One fault in one exchange."""

    exchange: str
    victim: str
    phase: str
    fault: str
    way: str = "threads"

    def __str__(self) -> str:
        return "-".join(self)


PHASES = ("before", "send", "aggregate", "receive")
DEADLY = ("killed", "paused", "cut off")
VICTIMS = (
    ("ps", "worker-1"),
    ("ps", "server"),
    ("peers", "worker-1"),
    ("ring", "worker-1"),
    ("multicast", "worker-1"),
)
ASYNCHRONOUS = (("ps-async", "worker-1"), ("ps-backup", "worker-1"))

COVER = (
    ("before", "paused"),
    ("send", "killed"),
    ("send", "paused"),
    ("aggregate", "cut off"),
    ("receive", "killed"),
    ("receive", "cut off"),
)
"""Every phase and every fault, of exchanges that share their waiting with one that is tried in full."""


def _deadly() -> Iterator[Case]:
    for who, phase, fault in product(VICTIMS, PHASES, DEADLY):
        yield Case(*who, phase, fault)
    for victim, phase, fault in product(("worker-1", "server"), (*PHASES, "between"), DEADLY):
        yield Case("ps-buckets", victim, phase, fault)
    for who, what in product((("coded", "worker-1"), *ASYNCHRONOUS), COVER):
        yield Case(*who, *what)


EVERY_DEADLY = tuple(_deadly())
SLOW = tuple(
    # a slow uplink matters while something is sent
    Case(*who, "send", "slow")
    for who in (
        *VICTIMS,
        ("coded", "worker-1"),
        ("ps-buckets", "worker-1"),
        ("ps-buckets", "server"),
    )
)
VISITED = (
    *(
        Case(exchange, victim, "before", "visited", way)
        for exchange, victim in (("ps", "server"), ("peers", "worker-0"), ("ring", "worker-0"))
        for way in ("threads", "loop")
    ),
    Case("multicast", "worker-0", "before", "visited"),
)


def pairs(case: Case) -> set[tuple[object, ...]]:
    """What is combined in a case: who it befalls, the phase and the fault, two at a time."""
    return set(combinations(((case.exchange, case.victim), case.phase, case.fault), 2))


def pairwise(cases: Sequence[Case], seed: int) -> list[Case]:
    """Few of ``cases`` in which is every pair that is in any of them, in their order."""
    shuffled = Random(seed).sample(cases, len(cases))
    left = set[tuple[object, ...]]().union(*map(pairs, cases))
    chosen = set()
    while left:
        best = max(shuffled, key=lambda case: len(pairs(case) & left))
        chosen.add(best)
        left -= pairs(best)
    return [case for case in cases if case in chosen]


DEADLY_CASES = list(EVERY_DEADLY) if ALL else pairwise(EVERY_DEADLY, SEED)
