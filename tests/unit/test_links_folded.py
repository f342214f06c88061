"""A link direction's record that is folded while it grows comes to the same, to the last digit, as one that is kept whole."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest

from testbed.links.replay.delivery_report import (
    MOST_LATENESS,
    DeliveryLog,
    OutageSeen,
    lateness_ms,
    measures,
)
from testbed.links.replay.interval_errors import Mismatch, Sample, asked_between

MBIT = 1_000_000
LATEST_S = 60.0


def grown(random: Random, seconds: float) -> tuple[DeliveryLog, DeliveryLog]:
    """A random history, as ``LinkSampler`` takes it in: the record kept whole, and the one folded at random moments."""
    whole = DeliveryLog(bundle_bytes=random.choice([0, 1514, 15_140]), rates=[(0.0, 20 * MBIT)])
    whole.marks = [(random.uniform(0, 1e-3), random.randrange(10**6))]
    folded = deepcopy(whole)
    now, looked, octets, busy = whole.marks[0][0], whole.marks[0][0], float(whole.marks[0][1]), True
    change_s = random.choice([0.05, 0.7, 5.0, 1e9])
    while now < seconds:
        before, now = now, now + random.choice([0.1, 0.1, 0.013, 0.4, random.expovariate(2)])
        changed = random.random() < (now - before) / change_s
        for record in (whole, folded):
            if changed:  # some of them late, even by much
                at = max(record.rates[-1][0], now - random.choice([0.0, 0.001, 2.0, 40.0]))
                if record is folded:
                    at = whole.rates[-1][0]
                rate = (
                    random.choice([0, 5, 20, 100]) * MBIT if record is whole else whole.rates[-1][1]
                )
                record.rates.append((at, rate))
                record.lateness_s.append(now - at)
        octets += asked_between(whole.rates, before, now) / 8 * random.uniform(0.9, 1.02)
        busy = busy ^ (random.random() < 0.05)
        asked, delivered = random.uniform(0, 1e7), random.randrange(10**7)
        outage = OutageSeen(
            random.randrange(2000), random.choice([None, random.random()]), random.uniform(0, 120)
        )
        wrong = Mismatch(before, now, "rate", 1, 2)
        sample, late = random.random() < 0.8, random.random() < 0.02
        for record in (whole, folded):
            record.marks.append((now, round(octets)))
            if sample:
                record.looks.append(Sample(looked, now, asked, delivered, busy))
            if late:
                record.outages.append(deepcopy(outage))
                record.note(wrong)
        looked = now if sample else looked
        if random.random() < 0.2:
            folded.fold(now - LATEST_S)
    return whole, folded


@pytest.mark.parametrize("seed", range(60))
def test_folding_changes_no_digit(seed: int) -> None:
    random = Random(seed)
    whole, folded = grown(random, random.choice([1.0, 65.0, 200.0, 900.0]))
    assert measures(folded) == measures(whole)
    assert measures(folded) == measures(whole)  # to measure takes nothing away


def test_what_is_kept_does_not_grow() -> None:
    _, folded = grown(Random(1), 900.0)
    folded.fold(folded.marks[-1][0] - LATEST_S)
    assert folded.marks[1][0] > folded.marks[-1][0] - LATEST_S
    assert folded.looks[0].to_s > folded.marks[0][0]
    assert folded.rates[1][0] >= folded.marks[0][0] - 41  # a late change, and where its bin began
    assert len(folded.outages) == 1
    assert len(folded.mismatches) <= 20


def test_rates_stay_as_long_as_an_outage_is_not_over() -> None:
    record = DeliveryLog(
        rates=[(float(at), 0) for at in range(200)], marks=[(at / 10, 0) for at in range(3000)]
    )
    record.fold(200.0, rates_from_s=100.5)
    assert record.rates[0] == (100.0, 0)
    record.fold(201.0)
    assert record.rates == [(199.0, 0)]


def test_nothing_is_folded_before_the_first_mark() -> None:
    record = DeliveryLog(rates=[(0.0, MBIT)], marks=[(3.0, 7)])
    record.fold(2.0)
    assert record.marks == [(3.0, 7)]
    assert record.folded.from_s is None


def test_lateness_of_very_many_changes_is_counted() -> None:
    random = Random(3)
    late = [random.lognormvariate(-7, 1.5) for _ in range(50_000)] + [-1e-5, 0.0]
    record = DeliveryLog(marks=[(0.0, 0), (1e6, 0)], rates=[(0.0, MBIT)])
    for at, value in enumerate(late):
        record.lateness_s.append(value)
        if at % 100 == 0:
            record.fold(float(at))
        assert len(record.lateness_s) <= MOST_LATENESS + 100
    found, exact = measures(record), lateness_ms(late)
    assert found["changes"] == len(late)
    assert exact is not None
    assert found["lateness_ms"] == pytest.approx(exact, rel=0.002)
    assert found["lateness_ms"]["max"] == exact["max"]
    assert len(record.folded.lateness._alike) < 10_000
