"""A peer that is killed, paused, cut off or slow, in each phase of each exchange: named soon, or waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from exchange_rig import (
    CARRY_ON,
    HALT_STEP,
    NODES,
    STEPS,
    WITHIN_S,
    Arena,
    Case,
    Outcome,
    place_name,
)
from stranger import DATAGRAMS, VISITS

from testbed.bench.lab import lab
from testbed.bench.setup import Setup

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

GROUPS = 8
"""Exchanges at a time."""
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

CASES = [Case(*who, phase, fault) for who, phase, fault in product(VICTIMS, PHASES, DEADLY)]
CASES += [
    Case("ps-buckets", victim, phase, fault)
    for victim, phase, fault in product(("worker-1", "server"), (*PHASES, "between"), DEADLY)
]
CASES += [Case(*who, *what) for who, what in product((("coded", "worker-1"), *ASYNCHRONOUS), COVER)]
# A slow uplink matters while something is sent.
CASES += [
    Case(*who, "send", "slow")
    for who in (
        *VICTIMS,
        ("coded", "worker-1"),
        ("ps-buckets", "worker-1"),
        ("ps-buckets", "server"),
    )
]
CASES += [
    Case(exchange, victim, "before", "visited", way)
    for exchange, victim in (("ps", "server"), ("peers", "worker-0"), ("ring", "worker-0"))
    for way in ("threads", "loop")
]
CASES += [Case("multicast", "worker-0", "before", "visited")]
LATER = ("receive", "aggregate")
"""Phases in which the others may have come further than the victim when they notice."""

AT_LEISURE_S = 1.5 * WITHIN_S
"""Until a worker is given up that nobody waits for; its kernel may take in an answer first."""

Played = dict[Case, Future[Outcome]]
Note = Callable[[str, object], None]


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """All cases that were asked for, as they are played side by side."""
    asked = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    names = [place_name(group, number) for group in range(GROUPS) for number in range(NODES)]
    setup = Setup(tmp_path_factory.mktemp("exchange"), list[str]().append)
    with lab(names, setup) as made, ThreadPoolExecutor(GROUPS) as executor:
        arena = Arena(made, GROUPS)
        yield {case: executor.submit(arena.play, case) for case in dict.fromkeys(asked)}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.fault in DEADLY and case.exchange not in CARRY_ON],
    ids=str,
)
def test_a_lost_peer_is_named_with_step_and_phase(
    case: Case, played: Played, record_property: Note
) -> None:
    outcome = played[case].result()
    record_property("told", outcome.told())
    steps = range(HALT_STEP, STEPS + 1) if case.phase in LATER else (HALT_STEP,)
    named = []
    for name in outcome.survivors:
        line = outcome.said[name]
        assert line is not None and line["kind"] == "error", outcome.told()
        assert outcome.after_s[name] < WITHIN_S, outcome.told()
        assert line["type"] == "NodeLost" and line["step"] and line["phase"], outcome.told()
        named.append((outcome.after_s[name], line))
    first = min(named, key=lambda item: item[0])[1]
    assert first["node"] == case.victim and first["step"] in steps, outcome.told()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.fault in DEADLY and case.exchange in CARRY_ON], ids=str
)
def test_some_exchanges_go_on_without_a_worker(
    case: Case, played: Played, record_property: Note
) -> None:
    outcome = played[case].result()
    record_property("told", outcome.told())
    for name in outcome.survivors:
        line = outcome.said[name]
        assert line is not None and line["kind"] == "done", outcome.told()
    (lost,) = outcome.lost
    assert lost["node"] == case.victim and lost["step"] and lost["phase"], outcome.told()
    assert lost["at_s"] < AT_LEISURE_S, outcome.told()


@pytest.mark.parametrize("case", [case for case in CASES if case.fault == "slow"], ids=str)
def test_a_slow_peer_is_waited_for(case: Case, played: Played, record_property: Note) -> None:
    outcome = played[case].result()
    record_property("told", outcome.told())
    assert all(line and line["kind"] == "done" for line in outcome.said.values()), outcome.told()
    assert set(outcome.steps.values()) == {STEPS}


@pytest.mark.parametrize("case", [case for case in CASES if case.fault == "visited"], ids=str)
def test_strangers_are_counted_and_change_nothing(case: Case, played: Played) -> None:
    outcome = played[case].result()
    assert all(line and line["kind"] == "done" for line in outcome.said.values()), outcome.told()
    counted = {name: line and line["strangers"] for name, line in outcome.counts.items()}
    datagrams = outcome.counts[case.victim]
    assert datagrams is not None
    assert datagrams["datagrams"] == (DATAGRAMS if case.exchange == "multicast" else 0)
    assert counted == {name: VISITS if name == case.victim else 0 for name in counted}
