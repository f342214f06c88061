"""Two faults of one exchange at a time, and then none: everybody goes on, and has what an undisturbed run gives."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import pytest
from exchange_rig import (
    RATE_BITS,
    SLOW_BITS,
    Arena,
    Exchange,
    Outcome,
    asked_cases,
    open_arena,
    place_name,
)
from stranger import Listening, visit, visits

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(300),
]

GROUPS = 6
TIMEOUT_S = 6.0
"""No fault lasts for so long."""
PLAN = {"timeout_s": TIMEOUT_S, "steps": 16, "long": 6, "values": 100_000}
PACED = {**PLAN, "pace_s": 0.15}
BEGUN_STEP = 3
PATIENCE_S = 120.0


class Fault(NamedTuple):
    """What befalls whom, from when on (after everybody has done ``BEGUN_STEP``), for how long."""

    kind: str
    node: str
    at_s: float
    for_s: float


class Compound(NamedTuple):
    """An exchange, its faults, and whom it may lose."""

    exchange: str
    faults: tuple[Fault, ...]
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.exchange, *(f"{one.node} {one.kind}" for one in self.faults)])


def faults(*each: tuple[str, str, float, float]) -> tuple[Fault, ...]:
    return tuple(Fault(*one) for one in each)


CASES = (
    Compound("ps", faults(("paused", "worker-0", 0.2, 1.6), ("cut off", "server", 0.6, 1.8))),
    Compound("ps", faults(("paused", "worker-0", 0.2, 1.2), ("paused", "worker-1", 0.9, 1.2))),
    Compound("ps", faults(("cut off", "server", 0.2, 1.2), ("slow", "worker-1", 0.0, 4.0))),
    Compound(
        "ps", faults(("paused", "worker-1", 0.2, 2.5), ("impersonated", "worker-1", 0.6, 0.0))
    ),
    Compound("ps", faults(("cut off", "worker-1", 0.2, 1.5), ("paused", "server", 0.8, 1.5))),
    Compound(
        "ps-buckets", faults(("paused", "server", 0.2, 1.5), ("cut off", "worker-0", 0.7, 1.5))
    ),
    Compound("ps-buckets", faults(("slow", "server", 0.0, 3.0), ("paused", "worker-1", 0.5, 1.5))),
    Compound("peers", faults(("paused", "worker-0", 0.2, 1.5), ("cut off", "worker-1", 0.8, 1.5))),
    Compound("ring", faults(("cut off", "worker-0", 0.2, 1.5), ("cut off", "worker-2", 0.9, 1.5))),
    Compound("ring", faults(("slow", "worker-1", 0.0, 3.0), ("paused", "worker-2", 0.5, 1.5))),
    Compound(
        "multicast", faults(("outage", "worker-0", 0.2, 1.5), ("paused", "worker-2", 0.7, 1.5))
    ),
    # connections on which nothing was to be said, while others carry datagrams
    Compound(
        "multicast", faults(("paused", "worker-1", 0.2, 0.3), ("outage", "worker-2", 0.8, 2.5))
    ),
    Compound("coded", faults(("slow", "worker-1", 0.0, 3.0), ("paused", "worker-2", 0.5, 1.5))),
    Compound(
        "ps-async",
        faults(("paused", "worker-0", 0.2, 2.0), ("killed", "worker-1", 0.6, 0.0)),
        lost=("worker-1",),
    ),
    Compound(
        "ps-backup", faults(("paused", "worker-0", 0.2, 1.5), ("cut off", "worker-1", 0.6, 1.5))
    ),
)
IN_STEP = ("ps", "ps-buckets", "peers", "ring", "multicast", "coded")
"""Exchanges whose results are the same however long anything takes."""


class Played:
    """Outcomes of cases that are played side by side, and of undisturbed runs."""

    def __init__(self, arena: Arena, executor: ThreadPoolExecutor, cases: list[Compound]) -> None:
        self._outcomes: dict[Compound, Future[Outcome]] = {
            case: executor.submit(play, arena, case) for case in cases
        }
        self._undisturbed = {
            exchange: executor.submit(arena.undisturbed, exchange, **PLAN)
            for exchange in dict.fromkeys(case.exchange for case in cases)
        }

    def outcome(self, case: Compound) -> Outcome:
        return self._outcomes[case].result()

    def undisturbed(self, exchange: str) -> Outcome:
        return self._undisturbed[exchange].result()


def play(arena: Arena, case: Compound) -> Outcome:
    """Run ``case`` to its end."""
    with arena.group() as group:
        listening = Listening(arena.nic(place_name(group, 0)))
        exchange = Exchange(arena, group, case.exchange, lambda _: PACED)
        try:
            exchange.begin()
            for process in exchange.processes.values():
                assert process.until_step(BEGUN_STEP, PATIENCE_S), process.lines
            struck_s = time.monotonic()
            befall(arena, exchange, case.faults, listening)
            ending = [name for name in exchange.processes if name not in case.lost]
            return exchange.outcome("", struck_s, ending, PATIENCE_S)
        finally:
            listening.end()
            exchange.end()
            for place in exchange.places.values():
                arena.cable(place, "up")
                arena.rates(place, RATE_BITS)


def befall(
    arena: Arena, exchange: Exchange, faults: tuple[Fault, ...], listening: Listening
) -> None:
    """Have each fault begin and end at its time."""
    begins = [(fault.at_s, True, fault) for fault in faults]
    ends = [(fault.at_s + fault.for_s, False, fault) for fault in faults if fault.for_s]
    start_s = time.monotonic()
    for at_s, begins_now, fault in sorted(begins + ends):
        time.sleep(max(0.0, start_s + at_s - time.monotonic()))
        process, place = exchange.processes[fault.node], exchange.places[fault.node]
        assert process.alive, (fault, process.lines)
        match fault.kind:
            case "paused":
                process.signal(signal.SIGSTOP if begins_now else signal.SIGCONT)
            case "cut off":
                arena.cable(place, "down" if begins_now else "up")
            case "outage" if begins_now:
                arena.outage(place, fault.for_s)
            case "outage":
                arena.rates(place, RATE_BITS)
            case "slow":
                arena.rate(place, SLOW_BITS if begins_now else RATE_BITS)
            case "killed":
                process.signal(signal.SIGKILL)
                assert process.ends()
            case "impersonated":
                number = [*exchange.processes].index(fault.node)
                said = visits(exchange.run, number, listening.end())
                visit(arena.switch, arena.address(exchange.places["server"]), said)


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """All cases that were asked for."""
    with open_arena(tmp_path_factory.mktemp("exchange"), GROUPS) as (made, executor):
        yield Played(made, executor, asked_cases(request))


def waited_s(outcome: Outcome) -> float:
    """The longest time from one step to the next, of anybody."""
    times = [[line["at_s"] for line in lines] for lines in outcome.steps.values()]
    return max(later - earlier for each in times for earlier, later in pairwise(each))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_heals_leaves_no_trace(case: Compound, played: Played) -> None:
    outcome = played.outcome(case)
    told = outcome.told()
    for name, line in outcome.said.items():
        assert line is not None and line["kind"] == "done", (name, told)
    assert tuple(line["node"] for line in outcome.lost) == case.lost, told
    stopping = [one.for_s for one in case.faults if one.kind in ("paused", "cut off", "outage")]
    assert waited_s(outcome) > 0.8 * max(stopping), told
    expected = played.undisturbed(case.exchange).histories
    if case.exchange in IN_STEP:
        assert outcome.histories == expected, told
    for history in expected.values():
        assert [step for step, _ in history] == [*range(1, PLAN["steps"] + 1)] or (
            case.exchange not in IN_STEP
        )
    # out of step: every version once, each of one worker's gradient (which nodes check themselves)
    history = outcome.histories.get("server", [])
    assert [step for step, _ in history] == [*range(1, 1 + len(history))], told
    assert not history or len(history) == PLAN["steps"], told
