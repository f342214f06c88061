"""Which session of the certificate's test gets which fault, what that is, and how alarms are counted."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from testbed.bench.links.alternatives import TcHtb, TcNetem, TcTbf, absent, segments, shapers
from testbed.bench.links.certificate import (
    EVERY_S,
    HOST_FAULTS,
    LINK_FAULTS,
    RADIO,
    RATES,
    Case,
    FaultSession,
    Judged,
    Tally,
    judge,
    plan,
    tc_arguments,
)
from testbed.bench.links.lab import OURS
from testbed.bench.results import MBIT, rate_at
from testbed.fidelity.evidence import CheckResult
from testbed.links.agent.client import LinkReport
from testbed.scenario.link_state import FRAME_BYTES, LinkDirection

NODES = [f"node{n}" for n in range(8)]
UP, DOWN = LinkDirection("node0", "up"), LinkDirection("node0", "down")


def test_faults_are_of_every_kind_alike() -> None:
    sessions = plan(300, NODES, 6.0, seed=1)
    on_links = Counter(case.fault for session in sessions for case in session.cases)
    on_hosts = Counter(session.fault for session in sessions)
    assert {on_links[kind] for kind in LINK_FAULTS} == {50}
    assert {on_hosts[kind] for kind in HOST_FAULTS} == {50}
    clean = sum(
        case.fault is None
        for session in sessions
        if session.fault is None
        for case in session.cases
    )
    assert clean > 600
    assert plan(300, NODES, 6.0, seed=1) == sessions


def test_every_link_is_in_every_session_once() -> None:
    for session in plan(30, NODES, 6.0, seed=2):
        ends = [case.end for case in session.cases]
        assert len(ends) == len(set(ends)) == 16
        assert not (session.fault and any(case.fault for case in session.cases))


@pytest.mark.parametrize("seed", [3, 4])
def test_faults_can_be_seen_where_they_are_put(seed: int) -> None:
    on_radio = Counter[str | None]()
    for session in plan(200, NODES, 6.0, seed=seed):
        for case in session.cases:
            rates = [rate for _, rate in case.history]
            assert all(before != after for before, after in pairwise(rates))
            assert case.fault != "dropped" or case.at_s in [at for at, _ in case.history[1:]]
            assert case.at_s <= 5.02
            if {rate / MBIT for rate in rates} <= set(RADIO) and len(rates) > 1:
                on_radio[case.fault] += 1
                lasting = [at for at, _ in case.history if at > case.at_s]
                assert case.fault != "queue" or 0 not in rates
                if case.fault == "opened":
                    assert case.at_s == case.outages[0] and len(case.outages) > 1
                    for at_s in case.outages:
                        assert (
                            rate_at(case.history, at_s) == rate_at(case.history, at_s + 0.199) == 0
                        )
                        assert rate_at(case.history, at_s - 1e-3) in (4 * MBIT, 10 * MBIT)
                if case.fault in ("rate", "dropped"):
                    assert min([*lasting, 6.0]) - case.at_s >= 0.179
                    assert rate_at(case.history, case.at_s) >= 4 * MBIT
            else:
                assert all(RATES[0] <= rate < RATES[1] for rate in rates)
                assert (len(rates) == 1) == (case.fault in ("rate", "queue")) or case.fault is None
        if session.fault is not None:
            assert 0.1 <= session.stop_s <= 0.5
            change = session.at_s + 20e-3
            assert change == pytest.approx(round(change / EVERY_S) * EVERY_S)
            assert change + session.stop_s < 6.0
    assert min(on_radio[kind] for kind in (None, *LINK_FAULTS)) > 10


def test_what_somebody_elses_tc_is_told() -> None:
    steady = ((0.0, 10 * MBIT),)
    off = " ".join(tc_arguments(Case(UP, steady, "rate", 0.5), "data"))
    assert "class change dev data parent 4e57: classid 4e57:10 htb rate 10300000bit" in off
    queue = tc_arguments(Case(UP, steady, "queue", 0.5), "port0")
    assert queue[-3:] == ["bfifo", "limit", str(62_500 // 2)]
    history = tuple((n * EVERY_S, (8 if n % 2 else 16) * MBIT) for n in range(8))
    dropped = " ".join(tc_arguments(Case(UP, history, "dropped", 3 * EVERY_S), "data"))
    assert "rate 16000000bit" in dropped


def alarm(place: str | None) -> CheckResult:
    return CheckResult("read_back", "wrong", 1.0, 0.0, place)


def judged(*places: str | None) -> Judged:
    fine = CheckResult("link_ratio", "right", 0.0, 0.02, str(UP))
    return Judged(LinkReport(()), [fine, *map(alarm, places)])


def tally(session: FaultSession, found: Judged) -> Tally:
    counted = Tally()
    judge(counted, session, found)
    return counted


FAULTY = FaultSession((Case(UP, ((0.0, MBIT),), "rate", 0.5), Case(DOWN, ((0.0, MBIT),))))


def test_a_fault_is_caught_at_its_own_link() -> None:
    counted = tally(FAULTY, judged(str(UP)))
    assert counted.share("rate") == 1.0
    assert counted.share("none") == 0.0
    assert not counted.notes


def test_an_alarm_elsewhere_catches_nothing() -> None:
    counted = tally(FAULTY, judged(str(DOWN)))
    assert counted.share("rate") == 0.0
    assert counted.share("none") == 1.0
    assert [note["fault"] for note in counted.notes] == ["rate", "none"]


def test_an_alarm_of_the_host_is_false_on_clean_links() -> None:
    counted = tally(FAULTY, judged(str(UP), None))
    assert counted.share("rate") == 1.0
    assert counted.share("none") == 1.0


@pytest.mark.parametrize(("places", "share"), [((), 0.0), ((None,), 1.0), ((str(DOWN),), 1.0)])
def test_a_busy_host_is_one_case(places: tuple[str | None, ...], share: float) -> None:
    counted = tally(FaultSession((Case(UP, ((0.0, MBIT),)),), "busy"), judged(*places))
    assert counted.share("busy") == share
    assert counted.cases["none"] == 0
    assert Tally().share("busy") is None


def test_stolen_time_does_not_catch_a_fault_of_ours() -> None:
    stolen = Judged(LinkReport(()), [CheckResult("stolen_share", "stolen", 1.0)])
    assert tally(FaultSession((), "busy"), stolen).share("busy") == 0.0


def test_a_filled_link_that_was_not_judged_is_an_alarm() -> None:
    unjudged = Judged(
        LinkReport(()), [CheckResult("link_ratio", "backlogged for 0.0 s", subject=str(UP))]
    )
    assert not unjudged.valid
    assert tally(FAULTY, unjudged).share("rate") == 1.0


def test_a_link_is_not_clean_while_others_have_the_processors() -> None:
    stolen = Judged(LinkReport(()), [CheckResult("stolen_share", "stolen", 1.0), alarm(str(UP))])
    counted = tally(FAULTY, stolen)
    assert counted.share("rate") == 1.0
    assert counted.cases["none"] == 0
    assert not counted.notes


def test_set_ups_with_tc() -> None:
    htb = TcHtb("tc-htb-1ms", 1e-3)
    assert htb.commands(100 * MBIT, 625_000) == [
        "qdisc add dev data root handle 1: htb default 10",
        "class add dev data parent 1: classid 1:10 htb rate 100000000bit ceil 100000000bit "
        "burst 12500 cburst 12500 quantum 60000",
        "qdisc add dev data parent 1:10 handle 10: bfifo limit 625000",
    ]
    assert htb.change(MBIT, 0).endswith("rate 1000000bit ceil 1000000bit burst 1600 cburst 1600 quantum 60000")  # fmt: skip
    assert "burst" not in TcHtb().change(MBIT, 0)
    assert TcTbf().change(100 * MBIT, 625_000) == (
        "qdisc change dev data root handle 1: tbf rate 100000000bit burst 70000 limit 625000"
    )
    assert "burst 1250000 " in TcTbf().change(10_000 * MBIT, 625_000)
    assert TcNetem().change(MBIT, 100 * FRAME_BYTES).endswith("netem rate 1000000bit limit 100")


def test_what_the_kernel_lacks_is_left_out_and_named() -> None:
    names = [other.name for other in shapers(frozenset({"htb"}))]
    assert names == ["narrows", "tc-htb", "tc-htb-1ms", "pyroute2-htb", "tc-tbf"]
    assert "netem" in absent(frozenset({"htb"}))[0]
    assert shapers(frozenset({"netem"}))[-1].name == "tc-netem-rate"
    assert not absent(frozenset({"netem"}))
    assert shapers(frozenset())[0].node == OURS


def test_bundles_follow_the_lowest_rate_and_the_shortest_step() -> None:
    assert segments([[(0.0, 5000 * MBIT)]]) == 43
    assert segments([[(0.0, 100 * MBIT), (0.1, 20 * MBIT)]]) == 1
    replayed = [[(0.0, 500 * MBIT), (0.1, 50 * MBIT), (0.2, 100 * MBIT)]]
    assert (segments(replayed), segments(replayed, longest=True)) == (1, 4)
    assert segments([[(0.0, 100 * MBIT), (1.0, 0), (3.0, 100 * MBIT)]]) >= 1
