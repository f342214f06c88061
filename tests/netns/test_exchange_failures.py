"""A peer that is killed, paused, cut off or slow, in each phase of each exchange: named soon, or waited for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from exchange_rig import (
    CARRY_ON,
    HALT_STEP,
    MANY_STEPS,
    SLOW_S,
    STEPS,
    TIMEOUT_S,
    WITHIN_S,
    Arena,
    Outcome,
    asked_cases,
    last_done,
    open_arena,
)
from fault_cases import (
    ALL,
    DEADLY_CASES,
    EVERY_DEADLY,
    SEED,
    SLOW,
    VISITED,
    Case,
    pairs,
    pairwise,
)
from stranger import DATAGRAMS, VISITS

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600 if ALL else 300),
]

GROUPS = 8
"""Exchanges at a time."""
AT_LEISURE_S = 1.5 * WITHIN_S
"""Until a worker is given up that nobody waits for; its kernel may take in an answer first."""
CLOCK_S = 0.05
"""What clocks and kernels round."""
PROBE_S = 0.7
"""The kernel has counted from an answer so long before, at most, when it ends a connection of ``TIMEOUT_S``."""
OF_SILENCE = ("nothing was received", "timed out", "confirmed nothing", "went silent")


class Played:
    """Outcomes, as they come; of an exchange's undisturbed run, too."""

    def __init__(self, arena: Arena, executor: ThreadPoolExecutor, cases: list[Case]) -> None:
        self._arena, self._executor = arena, executor
        self._of: dict[Case | str, Future[Outcome]] = {}
        for case in cases:
            self._of[case] = executor.submit(arena.play, case)

    def outcome(self, case: Case) -> Outcome:
        return self._of[case].result()

    def undisturbed(self, exchange: str) -> Outcome:
        if exchange not in self._of:
            self._of[exchange] = self._executor.submit(self._arena.undisturbed, exchange)
        return self._of[exchange].result()

    def told(self, case: Case) -> str:
        """In words, for whoever reads a failure and wants to see it again."""
        return f"NARROWS_FAULTS_SEED={SEED}\n{self.outcome(case).told()}"


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """All cases that were asked for, as they are played side by side."""
    with open_arena(tmp_path_factory.mktemp("exchange"), GROUPS) as (made, executor):
        yield Played(made, executor, asked_cases(request))


def noticing(case: Case) -> set[str]:
    """What those do who can be the first to notice."""
    server = case.victim == "server"
    match case.exchange, case.phase:
        case ("ps", "before" | "receive") if server:
            return {"sending"}
        case ("ps", "send" | "aggregate") if server:
            return {"receiving"}
        case ("ps" | "ps-buckets", phase) if not server:
            return {"gathering", "sending"} if phase == "receive" else {"gathering"}
        case ("peers", "before" | "receive"):
            return {"sending"}
        case _:
            return {"sending", "receiving"}


@pytest.mark.parametrize("case", [c for c in DEADLY_CASES if c.exchange not in CARRY_ON], ids=str)
def test_a_lost_peer_is_named_with_step_and_phase(case: Case, played: Played) -> None:
    outcome, told = played.outcome(case), played.told(case)
    due = last_done(case) + 1
    for name in outcome.survivors:
        line = outcome.said[name]
        assert line is not None and line["kind"] == "error", told
        assert outcome.after_s(name) < WITHIN_S, told
        assert line["type"] == "NodeLost" and line["step"] in (due, due + 1), told
        assert line["phase"] in {"sending", "receiving", "gathering"}, told
    name = min(outcome.survivors, key=outcome.after_s)
    first = outcome.said[name]
    assert first is not None and first["node"] == case.victim, told
    assert first["step"] == due and first["phase"] in noticing(case), told
    silence = any(reason in first["message"] for reason in OF_SILENCE)
    if case.fault == "killed":
        # where datagrams fill a queue, its end may be dropped
        assert not silence or case.exchange in ("multicast", "coded"), told
    else:
        begun_s = outcome.steps[name][-1]["at_s"]
        early_s = PROBE_S if case.fault == "cut off" else CLOCK_S
        assert outcome.ended_s[name] - begun_s >= TIMEOUT_S - early_s, told
    same_until_then(case, outcome, played)


def same_until_then(case: Case, outcome: Outcome, played: Played) -> None:
    """What everybody has recorded is the beginning of what an undisturbed run records."""
    expected = played.undisturbed(case.exchange).histories
    for name, history in outcome.histories.items():
        assert history == expected[name][: len(history)], (name, played.told(case))


@pytest.mark.parametrize("case", [c for c in DEADLY_CASES if c.exchange in CARRY_ON], ids=str)
def test_some_exchanges_go_on_without_a_worker(case: Case, played: Played) -> None:
    outcome, told = played.outcome(case), played.told(case)
    for name in outcome.survivors:
        line = outcome.said[name]
        assert line is not None and line["kind"] == "done", told
    assert [line["step"] for line in outcome.steps["server"]] == [*range(1, MANY_STEPS + 1)], told
    (lost,) = outcome.lost
    assert lost["node"] == case.victim and lost["phase"] == "gathering", told
    assert HALT_STEP <= lost["step"] <= MANY_STEPS, told
    assert lost["at_s"] - outcome.struck_s < AT_LEISURE_S, told
    if case.fault == "paused":
        # its next message was on its way after that
        before_s = outcome.steps[case.victim][HALT_STEP - 2]["at_s"]
        assert lost["at_s"] - before_s >= TIMEOUT_S - CLOCK_S, told


@pytest.mark.parametrize("case", SLOW, ids=str)
def test_a_slow_peer_is_waited_for(case: Case, played: Played) -> None:
    outcome, told = played.outcome(case), played.told(case)
    assert all(line and line["kind"] == "done" for line in outcome.said.values()), told
    for name in outcome.survivors:
        before, slow = (
            outcome.steps[name][step - 1]["at_s"] for step in (HALT_STEP - 1, HALT_STEP)
        )
        assert slow - before > SLOW_S / (2 if case.exchange == "coded" else 1), told
    expected = played.undisturbed(case.exchange).histories
    assert outcome.histories == expected, told
    assert all(len(history) == STEPS for history in expected.values())


@pytest.mark.parametrize("case", VISITED, ids=str)
def test_strangers_are_counted_and_change_nothing(case: Case, played: Played) -> None:
    outcome, told = played.outcome(case), played.told(case)
    assert all(line and line["kind"] == "done" for line in outcome.said.values()), told
    assert outcome.histories == played.undisturbed(case.exchange).histories, told
    counted = {name: line and line["strangers"] for name, line in outcome.counts.items()}
    datagrams = outcome.counts[case.victim]
    assert datagrams is not None
    assert datagrams["datagrams"] == (DATAGRAMS if case.exchange == "multicast" else 0)
    assert counted == {name: VISITS if name == case.victim else 0 for name in counted}


def test_every_choice_has_every_pair() -> None:
    everything = set().union(*map(pairs, EVERY_DEADLY))
    for seed in range(SEED, SEED + 20):
        chosen = pairwise(EVERY_DEADLY, seed)
        assert chosen == pairwise(EVERY_DEADLY, seed) and len(chosen) < len(EVERY_DEADLY) / 2
        assert set().union(*map(pairs, chosen)) == everything
