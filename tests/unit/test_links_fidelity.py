"""Delivered against asked, on samples made up so that the answer is known."""

from __future__ import annotations

import math

import pytest

from testbed.links.replay.delivery_report import DeliveryLog, OutageSeen, measures
from testbed.links.replay.interval_errors import Mismatch, Sample, asked_between, served_at

MBIT = 1_000_000


def followed(
    seconds: int, rates: list[tuple[float, int]], error: float = 0.0, busy: bool = True
) -> DeliveryLog:
    """A link that delivered (1 + error) of every 100 ms that was asked for."""
    record = DeliveryLog(rates=rates, marks=[(0.0, 1000)])
    total = 1000.0
    for tenth in range(seconds * 10):
        from_s, to_s = tenth / 10, (tenth + 1) / 10
        asked = asked_between(rates, from_s, to_s)
        total += asked * (1 + error) / 8
        delivered = round(total) - record.marks[-1][1]
        record.looks.append(Sample(from_s, to_s, asked, delivered * 8, busy))
        record.marks.append((to_s, round(total)))
    return record


def test_a_perfect_link() -> None:
    found = measures(followed(5, [(0.0, 20 * MBIT), (1.0, 100 * MBIT), (3.0, 20 * MBIT)]))
    assert found["ratio"] == pytest.approx(1)
    assert found["mape_step"] == pytest.approx(0, abs=1e-6)
    assert found["mape_1s"] == pytest.approx(0, abs=1e-6)
    assert found["busy_share"] == pytest.approx(1)
    assert found["asked_bits"] == pytest.approx(260 * MBIT)
    assert found["lateness_ms"] is None


@pytest.mark.parametrize("error", [-0.05, 0.03])
def test_a_link_that_is_off(error: float) -> None:
    found = measures(followed(4, [(0.0, 80 * MBIT)], error))
    assert found["ratio"] == pytest.approx(1 + error)
    for name in ("mape_1s", "worst_1s", "busy_mape_1s"):
        assert found[name] == pytest.approx(abs(error), rel=1e-3)


def test_an_idle_link_is_not_judged_by_its_idleness() -> None:
    record = followed(2, [(0.0, 80 * MBIT)])
    idle = followed(2, [(0.0, 80 * MBIT)], error=-1.0, busy=False)
    base = record.marks[-1][1] - 1000
    record.looks += [
        look._replace(from_s=look.from_s + 2, to_s=look.to_s + 2) for look in idle.looks
    ]
    record.marks += [(at + 2, size + base) for at, size in idle.marks[1:]]
    found = measures(record)
    assert found["ratio"] == pytest.approx(0.5)
    assert found["busy_share"] == pytest.approx(0.5)
    assert found["busy_ratio"] == pytest.approx(1)
    assert found["busy_mape_1s"] == pytest.approx(0, abs=1e-6)
    assert found["worst_1s"] == pytest.approx(1)


def test_the_last_partial_second_is_left_out() -> None:
    record = followed(2, [(0.0, 8 * MBIT)])
    record.marks.append((2.7, record.marks[-1][1]))
    assert measures(record)["busy_bins_1s"] == 2
    assert measures(record)["worst_1s"] == pytest.approx(0, abs=1e-6)


def test_only_what_lies_beyond_a_bundle_is_an_error() -> None:
    exact = followed(4, [(0.0, 121_120)])  # ten packets a second
    early = followed(4, [(0.0, 121_120)])
    early.marks[10:] = [(at, size + 1514) for at, size in early.marks[10:]]
    early.looks[9] = early.looks[9]._replace(delivered_bits=early.looks[9].delivered_bits + 12_112)
    early.bundle_bytes = exact.bundle_bytes = 1514
    found = measures(early)
    assert found["busy_worst_1s"] == measures(exact)["busy_worst_1s"] == 0
    assert found["busy_ratio"] == pytest.approx(41 / 40)
    assert found["busy_ratio_slack"] == pytest.approx(1 / 40)
    early.marks[10:] = [(at, size + 1514) for at, size in early.marks[10:]]
    assert measures(early)["busy_worst_1s"] == pytest.approx(0.1, abs=0.001)
    early.looks[20] = early.looks[20]._replace(busy=False)
    assert measures(early)["busy_ratio_slack"] == pytest.approx(2 / 39, rel=0.01)


def test_more_than_was_asked_counts_backlogged_or_not() -> None:
    idle = followed(4, [(0.0, 8 * MBIT)], error=-0.9, busy=False)
    idle.bundle_bytes = 1514
    assert measures(idle)["excess_share"] == 0
    # as much as ten seconds of the asked rate, at once, while nothing waits
    extra = 10 * MBIT
    idle.marks[15:] = [(at, size + extra) for at, size in idle.marks[15:]]
    idle.looks[14] = idle.looks[14]._replace(
        delivered_bits=idle.looks[14].delivered_bits + 8 * extra
    )
    found = measures(idle)
    assert found["busy_share"] == 0
    assert found["excess_share"] == pytest.approx(
        1 - (8 * MBIT * 1.3 + 8 * 1514) / (80 * MBIT + 3.2 * MBIT), rel=1e-2
    )
    assert found["excess_share"] > 0.8
    assert measures(DeliveryLog())["excess_share"] is None


def test_bins_end_at_marks() -> None:
    """Between two marks nobody knows when what left between them has left."""
    record = followed(3, [(0.0, 80 * MBIT)])
    record.marks = [(at + (0.013 if at == 2.0 else 0.0), size) for at, size in record.marks]
    found = measures(record)
    assert found["worst_1s"] == pytest.approx(0.013 / 0.987, rel=0.01)


def test_an_outage_has_no_relative_error_but_its_bytes_are_counted() -> None:
    record = followed(3, [(0.0, 80 * MBIT), (1.0, 0), (2.0, 80 * MBIT)])
    record.outages += [OutageSeen(1514, 0.004), OutageSeen(0), OutageSeen(100, 0.002)]
    found = measures(record)
    assert (found["outages"], found["outage_bytes"], found["resume_ms"]) == (3, 1614, 4.0)
    assert found["mape_1s"] == pytest.approx(0, abs=1e-6)


def test_the_worst_of_all_outages_is_told_apart() -> None:
    """A bundle every 50 s is none of its fault: the second let out most, the third most too many."""
    record = DeliveryLog(bundle_bytes=1514, marks=[(0.0, 0)])
    record.outages += [OutageSeen(3000, None, 1.0), OutageSeen(9000, None, 205.0)]
    record.outages += [OutageSeen(4000, None, 49.9), OutageSeen(100)]
    found = measures(record)
    assert (found["outage_worst_bytes"], found["outage_worst_s"]) == (4000, 49.9)
    assert found["outage_bytes"] == 16_100
    none = measures(DeliveryLog())
    assert (none["outage_worst_bytes"], none["outage_worst_s"]) == (None, 0.0)


def test_what_leaves_in_a_second_of_an_outage_is_more_than_was_asked() -> None:
    """2 MB in the middle of three seconds of nothing, and a bundle, which may leave."""
    record = followed(5, [(0.0, 80 * MBIT), (1.0, 0), (4.0, 80 * MBIT)])
    record.bundle_bytes = 1514
    assert measures(record)["excess_share"] == 0
    leak = 2_000_000
    record.marks = [(at, size + leak * (at > 2.5)) for at, size in record.marks]
    delivered = measures(record)["delivered_bits"]
    share = measures(record)["excess_share"]
    assert share == pytest.approx(8 * (leak - 1514) / delivered, rel=1e-6)


def test_outages_are_added_up_and_the_slowest_return_is_told() -> None:
    """Three of 0.5 s, 0.25 s and 1 s; of whatever order."""
    record = DeliveryLog(bundle_bytes=1514)
    rates = [(0.0, 10**6), (1.0, 0), (1.5, 10**6), (2.0, 0), (2.25, 10**6), (3.0, 0), (4.0, 10**6)]
    record.rates += rates
    record.marks += [(at_s, 0) for at_s in (0.0, 5.0)]
    for times_s in ((0.004, 0.001, 0.002), (0.001, 0.004, None), (0.002, None, 0.004)):
        record.outages[:] = [OutageSeen(100, resume_s) for resume_s in times_s]
        found = measures(record)
        assert (found["outages"], found["outage_s"], found["outage_bytes"]) == (3, 1.75, 300)
        assert found["resume_ms"] == 4.0


def test_an_outage_that_lasts_until_the_end_takes_its_time() -> None:
    """Of 0.5 s, and one from 2 s on in 5 s."""
    record = DeliveryLog(bundle_bytes=1514)
    record.rates += [(0.0, 10**6), (1.0, 0), (1.5, 10**6), (2.0, 0)]
    record.marks += [(at_s, 0) for at_s in (0.0, 5.0)]
    record.outages += [OutageSeen(100, 0.001), OutageSeen(50)]
    found = measures(record)
    assert (found["outages"], found["outage_s"], found["outage_bytes"]) == (2, 3.5, 150)


def test_what_was_held_instead_is_reported() -> None:
    record = followed(1, [(0.0, 80 * MBIT)])
    record.mismatches += [Mismatch(0.1, 0.3, "rate", 10, 11)] * 30
    found = measures(record)["mismatches"]
    assert len(found) == 20
    assert found[0] == {"from_s": 0.1, "to_s": 0.3, "what": "rate", "asked": 10, "held": 11}


def test_the_worst_second_counts_where_the_link_was_busy() -> None:
    record = followed(3, [(0.0, 80 * MBIT)], error=-0.1)
    record.looks = [look._replace(busy=look.from_s >= 0.95) for look in record.looks]
    steady = followed(3, [(0.0, 80 * MBIT)])
    record.marks[11:] = [(at, size - 1_000_000) for at, size in steady.marks[11:]]
    record.marks[10] = (1.0, steady.marks[10][1] - 1_000_000)
    found = measures(record)
    assert found["worst_1s"] == pytest.approx(0.1, rel=1e-3)
    assert found["busy_worst_1s"] == pytest.approx(0, abs=1e-6)
    assert found["busy_bins_1s"] == 2


def test_nothing_seen() -> None:
    found = measures(DeliveryLog())
    assert found["ratio"] is None
    assert found["mape_1s"] is None
    assert found["busy_share"] == 0
    assert found["asked_bits"] == 0


def test_asked_is_an_integral() -> None:
    rates = [(0.0, 10), (1.0, 20), (1.5, 0), (2.0, 40)]
    assert asked_between(rates, 0.0, 1.0) == pytest.approx(10)
    assert asked_between(rates, 0.5, 1.25) == pytest.approx(10)
    assert asked_between(rates, 1.5, 2.0) == 0
    assert asked_between(rates, 1.9, 12.0) == pytest.approx(400)


def test_what_was_asked_is_served_at_a_time() -> None:
    rates = [(0.0, 10), (1.0, 20), (1.5, 0), (2.0, 40)]
    assert served_at(rates, 0.0, 10) == pytest.approx(1.0)
    assert served_at(rates, 0.5, 15) == pytest.approx(1.5)
    assert served_at(rates, 0.5, 17) == pytest.approx(2.05)
    assert served_at(rates, 1.7, 40) == pytest.approx(3.0)
    assert served_at(rates[:3], 0.0, 21) == math.inf
