"""Losses against what was asked: intervals, models with memory, and what cannot be judged."""

from __future__ import annotations

from math import comb
from random import Random

import pytest

from testbed.fidelity.evidence import Evidence, expected, gather, interval, losses_seen
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.verdict import judge
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkDirection,
    LinkState,
)


def shape(**impairments) -> LinkState:
    return LinkState(10**7, 50_000, impairments=Impairments(**impairments))


@pytest.mark.parametrize(("hits", "trials"), [(3, 10), (7, 60), (0, 40), (40, 40), (150, 1000)])
def test_the_interval_is_clopper_and_pearsons(hits: int, trials: int) -> None:
    """At its ends the binomial tails hold half of what the confidence leaves."""
    low, high = interval(hits, trials, 0.999)

    def at_least(share: float) -> float:
        return sum(
            comb(trials, k) * share**k * (1 - share) ** (trials - k)
            for k in range(hits, trials + 1)
        )

    def at_most(share: float) -> float:
        return sum(
            comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits + 1)
        )

    assert low == 0 if hits == 0 else at_least(low) == pytest.approx(5e-4, rel=1e-6)
    assert high == 1 if hits == trials else at_most(high) == pytest.approx(5e-4, rel=1e-6)


def test_counts_need_not_be_whole() -> None:
    low, high = interval(2.5, 7.5, 0.9)
    assert interval(2, 7, 0.9)[0] < low < 2.5 / 7.5 < high < interval(3, 8, 0.9)[1]


def test_nothing_counted_says_nothing() -> None:
    assert interval(0, 0, 0.999) == (0.0, 1.0)


def lose(model: GilbertElliott, random: Random, packets: int) -> int:
    bad, lost = False, 0
    for _ in range(packets):
        lost += random.random() < (model.loss_bad if bad else model.loss_good)
        bad = random.random() < (1 - model.r if bad else model.p)
    return lost


def test_bursts_widen_the_variance_as_they_do() -> None:
    model, packets = GilbertElliott(0.01, 0.3, 0.9, 0.01), 2000
    found = expected(Impairments(loss=model))
    assert not isinstance(found, str)
    assert found.share == pytest.approx(model.mean_loss)
    lost = [lose(model, Random(seed), packets) for seed in range(400)]
    mean = sum(lost) / len(lost)
    variance = sum((x - mean) ** 2 for x in lost) / (len(lost) - 1)
    alone = packets * found.share * (1 - found.share)
    assert variance / alone == pytest.approx(found.weight, rel=0.25)
    # In the interval of 99.9 % lie nearly all, and in one without that weight many would not.
    shapes = [shape(loss=model)]
    used = [losses_seen(packets, x, shapes, 0.999).used for x in lost]
    assert sum(u is not None and u > 1 for u in used) <= 2


def test_four_states_lose_what_their_chain_says() -> None:
    model = FourState(p13=0.02, p31=0.25, p32=0.15, p23=0.3, p14=0.01)
    found = expected(Impairments(loss=model))
    assert not isinstance(found, str)
    random, state, lost, packets = Random(1), 1, 0, 200_000
    for _ in range(packets):
        x = random.random()
        if state == 1:
            state = 4 if x < model.p14 else 3 if x < model.p14 + model.p13 else 1
        elif state == 2:
            state = 3 if x < model.p23 else 2
        elif state == 3:
            state = 2 if x < model.p32 else 1 if x < model.p32 + model.p31 else 3
        else:
            state = 1
        lost += state in (3, 4)
    assert lost / packets == pytest.approx(found.share, rel=0.05)
    assert found.weight > 2
    assert model.mean_loss == pytest.approx(found.share)


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (FourState(0.0, p14=0.25), 0.2),
        (FourState(0.1, p31=0.0, p32=0.25, p23=0.75), 0.75),
        (FourState(0.1, p31=0.5, p32=0.5, p23=0.0), 0.0),
        (FourState(0.1, p31=0.0), 1.0),
    ],
)
def test_the_mean_loss_of_chains_that_leave_states_for_good(model: FourState, share: float) -> None:
    assert model.mean_loss == pytest.approx(share)


def test_a_lone_loss_has_no_memory() -> None:
    assert expected(Impairments(loss=GilbertElliott(0.1, 0.9))).weight == pytest.approx(1)  # type: ignore[union-attr]
    assert expected(Impairments(loss=0.01)).weight == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shapes", "packets", "why"),
    [
        ([shape(loss=0.1), shape(loss=0.2)], 100, "changed"),
        ([shape(loss=0.1)], 0, "no packets"),
    ],
)
def test_what_cannot_be_judged_says_why(shapes: list[LinkState], packets: int, why: str) -> None:
    found = losses_seen(packets, 5, shapes, 0.999)
    assert found.used is None
    assert why in str(found.why)
    assert (
        judge(Evidence(losses={"a up": found})).measures["loss"].startswith("not measured: a up: ")
    )


@pytest.mark.parametrize(
    ("lost", "state"),
    [(2000, "valid"), (2130, "valid"), (2300, "degraded"), (2900, "invalid"), (1700, "degraded")],
)
def test_losses_against_one_percent(lost: int, state: str) -> None:
    found = judge(Evidence(losses={"a up": losses_seen(200_000, lost, [shape(loss=0.01)], 0.999)}))
    assert found.state == state
    assert state == "valid" or "1.0000% was asked for" in found.reasons[0]


def test_the_more_lines_there_are_the_further_off_one_of_them_may_be() -> None:
    """3.7 standard deviations off: with one line one right run in 4800 is, with 20 lines one in 240."""

    def state(lines: int) -> str:
        ends = [LinkDirection(f"worker-{n}", "up") for n in range(lines)]
        about = {"to_s": 10.0, "line_packets": 200_000}
        links = [{**end._asdict(), **about, "line_lost": 2000} for end in ends[1:]]
        links.append({**ends[0]._asdict(), **about, "line_lost": 2165})
        found = gather(links, LinkLog([]), RequestedLinks(dict.fromkeys(ends, shape(loss=0.01)), []),
                       seconds=10.0, processors=1, under_way=IntervalSet())  # fmt: skip
        assert len(found.losses) == lines
        return judge(Evidence(losses=found.losses)).state

    assert [state(lines) for lines in (1, 20)] == ["degraded", "valid"]


def test_a_line_that_should_lose_nothing() -> None:
    none = [shape(delay_ns=10**6)]
    assert judge(Evidence(losses={"a up": losses_seen(10_000, 0, none, 0.999)})).state == "valid"
    assert judge(Evidence(losses={"a up": losses_seen(10_000, 20, none, 0.999)})).state != "valid"


def test_a_line_must_have_room() -> None:
    link = {"link": "a", "direction": "up", "line_packets": 10, "line_lost": 0}
    assert judge(Evidence(links=[{**link, "line_limit": 0}])).state == "valid"
    assert judge(Evidence(links=[{**link, "line_limit": 2}])).state == "invalid"
