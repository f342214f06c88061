"""Service curves by hand: how long messages take over links whose rate changes."""

from __future__ import annotations

import pytest

from testbed.fidelity.completion import measure_groups
from testbed.fidelity.service_curve import OfferedLoad, downloads_done, groups, serve, uploads_done
from testbed.records.intervals import quantiles
from testbed.records.link_log import LinkLog
from testbed.scenario.link_state import LinkDirection, wire_bytes

Steps = list[tuple[float, float]]
ABOUT = {"abs": 2e-6}


def measure(rounds, steps, links, *others, **options):
    return measure_groups(groups(rounds, steps, links), *others, **options)


def rates(**ends: Steps):
    """``bits`` of links given as ``worker_0_up=[(from_s, rate), …]``."""

    def bits(end: LinkDirection, start_s: float, stop_s: float) -> float:
        pieces = ends[f"{end.link}_{end.direction}".replace("-", "_")]
        total = 0.0
        for index, (begin, rate) in enumerate(pieces):
            until = pieces[index + 1][0] if index + 1 < len(pieces) else float("inf")
            total += rate * max(0.0, min(stop_s, until) - max(start_s, begin))
        return total

    return bits


ALWAYS_10M = [(-1e9, 10e6)]


def test_serve_follows_the_rate_through_an_outage() -> None:
    bits = rates(a_up=[(0.0, 10e6), (1.0, 0.0), (3.0, 5e6)])
    assert serve(bits, LinkDirection("a", "up"), 0.0, 5e6) == pytest.approx(0.5, **ABOUT)
    # 5 Mbit in the first half second after 0.5, nothing until 3, the other 5 Mbit at 5 Mbit/s.
    assert serve(bits, LinkDirection("a", "up"), 0.5, 10e6) == pytest.approx(4.0, **ABOUT)


def test_serve_gives_up_after_a_day() -> None:
    assert serve(rates(a_up=[(0.0, 0.0)]), LinkDirection("a", "up"), 5.0, 1.0) == 86405.0


def test_uploads_together_take_what_the_servers_link_needs() -> None:
    bits = rates(w0_up=ALWAYS_10M, w1_up=ALWAYS_10M, s_down=ALWAYS_10M)
    loads = [OfferedLoad("w0", 1e6, 0.0), OfferedLoad("w1", 1e6, 0.0)]
    assert uploads_done(bits, loads, "s") == pytest.approx(0.2, **ABOUT)


def test_staggered_uploads_leave_the_servers_link_idle_between() -> None:
    bits = rates(w0_up=ALWAYS_10M, w1_up=ALWAYS_10M, s_down=ALWAYS_10M)
    apart = [OfferedLoad("w0", 1e6, 0.0), OfferedLoad("w1", 1e6, 0.5)]
    assert uploads_done(bits, apart, "s") == pytest.approx(0.6, **ABOUT)
    overlapping = [OfferedLoad("w0", 1e6, 0.0), OfferedLoad("w1", 1e6, 0.05)]
    assert uploads_done(bits, overlapping, "s") == pytest.approx(0.2, **ABOUT)


def test_a_slow_sender_decides() -> None:
    bits = rates(w0_up=[(0, 1e6)], w1_up=ALWAYS_10M, s_down=ALWAYS_10M)
    loads = [OfferedLoad("w0", 1e6, 0.0), OfferedLoad("w1", 1e6, 0.0)]
    assert uploads_done(bits, loads, "s") == pytest.approx(1.0, **ABOUT)


def test_bits_that_have_not_arrived_cannot_be_served() -> None:
    # The sender is slow while the server's link is fast, and fast when that is slow: 1 Mbit passes in
    # the first 0.1 s, the other 10 Mbit wait for a link that by then gives 10 Mbit/s. Each link alone
    # would be done at 0.2 s.
    bits = rates(w0_up=[(0.0, 10e6), (0.1, 100e6)], s_down=[(0.0, 100e6), (0.1, 10e6)])
    assert uploads_done(bits, [OfferedLoad("w0", 11e6, 0.0)], "s") == pytest.approx(1.1, abs=1e-3)


def test_downloads_share_the_servers_link_and_wait_for_the_slowest() -> None:
    bits = rates(s_up=ALWAYS_10M, w0_down=ALWAYS_10M, w1_down=ALWAYS_10M)
    loads = [OfferedLoad("w0", 1e6, 2.0), OfferedLoad("w1", 1e6, 2.0)]
    assert downloads_done(bits, loads, "s") == pytest.approx(2.2, **ABOUT)
    bits = rates(s_up=ALWAYS_10M, w0_down=ALWAYS_10M, w1_down=[(0, 2e6)])
    assert downloads_done(bits, loads, "s") == pytest.approx(2.5, **ABOUT)


def test_wire_bytes_are_full_segments_with_their_headers() -> None:
    assert wire_bytes(1448) == 1514
    assert wire_bytes(1449) == 1449 + 2 * 66
    assert wire_bytes(144_800) == 151_400


def sample(from_s: float, to_s: float, asked: float, drops: int = 0) -> dict:
    return {
        "kind": "sample", "link": "s", "direction": "down", "from_s": from_s, "to_s": to_s,
        "asked_bits": asked, "delivered_bits": 0, "drops": drops,
    }  # fmt: skip


def test_history_integrates_samples_and_holds_rates_beyond_them() -> None:
    end = LinkDirection("s", "down")
    history = LinkLog([sample(1, 2, 20e6, drops=1), sample(0, 1, 10e6), {"kind": "other"}])
    assert end in history
    assert history.bits(end, 0.0, 2.0) == pytest.approx(30e6)
    assert history.bits(end, 0.5, 1.5) == pytest.approx(15e6)
    assert history.bits(end, -1.0, 0.0) == pytest.approx(10e6)
    assert history.bits(end, 2.0, 5.0) == pytest.approx(60e6)
    assert history.dropped([end], 0.0, 1.1)
    assert not history.dropped([end], 0.0, 1.0)
    assert not history.dropped([LinkDirection("s", "up")], 0.0, 1.1)
    with pytest.raises(KeyError):
        history.bits(LinkDirection("s", "up"), 0, 1)


def test_history_without_a_sample_in_between() -> None:
    history = LinkLog([sample(0, 1, 10e6), sample(3, 4, 20e6)])
    assert history.bits(LinkDirection("s", "down"), 0.0, 4.0) == pytest.approx(70e6)


def group(late_s: float, size: int = 144_800) -> tuple[list[dict], list[dict]]:
    """One round: two workers at 10 Mbit/s each way, ``late_s`` off the exact times."""
    seconds = 2 * 8 * wire_bytes(size) / 10e6
    up_s, reply_s = 1 + seconds, 2 + seconds
    messages = [
        {"sender": n, "bytes": size, "sent_s": 1.0, "arrived_s": up_s + late_s} for n in (1, 2)
    ]
    round_ = {
        "step": 0,
        "node": "s",
        "messages": messages,
        "send_start_s": 2.0,
        "bytes_down": 2 * size,
    }
    steps = [{"step": 0, "node": f"w{n}", "bytes_down": size, "arrived_s": reply_s} for n in (0, 1)]
    return [round_], steps


LINKS = {1: "w0", 2: "w1"}
EVEN = rates(
    w0_up=ALWAYS_10M, w1_up=ALWAYS_10M, s_down=ALWAYS_10M,
    w0_down=ALWAYS_10M, w1_down=ALWAYS_10M, s_up=ALWAYS_10M,
)  # fmt: skip


def test_exact_messages_use_nothing_of_the_tolerance() -> None:
    found = measure(*group(0.0), LINKS, EVEN)
    assert (found["groups"], found["judged"], found["not_judged"]["short"]) == (2, 2, 0)
    assert found["used"]["max"] < 1e-3


def test_the_error_is_measured_against_one_percent_and_two_packets() -> None:
    seconds = 2 * 8 * 151_400 / 10e6
    tolerance = 0.01 * seconds + 2 * 8 * 1514 / 10e6
    found = measure(*group(0.01), LINKS, EVEN)
    assert found["used"]["max"] == pytest.approx(0.01 / tolerance, rel=1e-3)
    assert found["error"]["max"] == pytest.approx(0.01 / seconds, rel=1e-3)
    assert found["error_ms"]["max"] == pytest.approx(10.0, rel=1e-3)
    early = measure(*group(-0.01), LINKS, EVEN)
    assert early["used"]["max"] == pytest.approx(found["used"]["max"], rel=1e-3)


def test_what_is_not_judged_is_counted() -> None:
    short = measure(*group(0.5, size=2000), LINKS, EVEN)
    assert (short["judged"], short["not_judged"]["short"]) == (0, 2)
    assert short["all_error_ms"]["max"] == pytest.approx(500, rel=1e-3)
    excuses = {"drops": lambda group: group.start_s < 1.5, "stolen": lambda _: True}
    lossy = measure(*group(0.5), LINKS, EVEN, excuses)
    assert (lossy["judged"], lossy["not_judged"]) == (
        0, {"short": 0, "unsampled": 0, "drops": 1, "stolen": 1},
    )  # fmt: skip
    dark = measure(*group(0.0), LINKS, LinkLog([]).bits)
    assert (dark["groups"], dark["judged"], dark["not_judged"]["unsampled"]) == (2, 0, 2)


def test_a_constant_delay_on_the_way_is_expected() -> None:
    rounds, steps = group(0.05)
    there = measure(
        rounds, [], LINKS, EVEN, delay=lambda end: 0.02 if end.direction == "up" else 0.03
    )
    assert there["used"]["max"] < 1e-3
    without = measure(rounds, [], LINKS, EVEN)
    assert without["error_ms"]["max"] == pytest.approx(50, rel=1e-3)
    delays = {LinkDirection("s", "up"): 0.04, LinkDirection("w1", "down"): 0.01}
    for step in steps:
        step["arrived_s"] += 0.05
    back = measure(rounds, steps, LINKS, EVEN, delay=lambda end: delays.get(end, 0.0))
    assert back["error_ms"]["p50"] == pytest.approx(0, abs=0.01)


def test_what_every_packet_costs_besides_is_expected() -> None:
    rounds, _ = group((1538 / 1514 - 1) * 2 * 8 * 151_400 / 10e6)
    assert measure(rounds, [], LINKS, EVEN, overhead=lambda _: 24)["used"]["max"] < 1e-3
    assert measure(rounds, [], LINKS, EVEN)["error"]["max"] == pytest.approx(
        1538 / 1514 - 1, rel=1e-3
    )


def test_an_unfinished_step_has_no_download_group() -> None:
    rounds, steps = group(0.0)
    assert measure(rounds, steps[:1], LINKS, EVEN)["groups"] == 1


def test_quantiles_are_values_that_occurred() -> None:
    assert quantiles([3.0]) == {"p50": 3.0, "p99": 3.0, "p99_at_least": 3.0, "max": 3.0}
    hundred = quantiles(range(1, 101))
    assert hundred == {"p50": 50, "p99": 99, "p99_at_least": 97, "max": 100}
    assert set(quantiles([]).values()) == {None}


@pytest.mark.parametrize("count", [*range(1, 25), 99, 101, 150, 199, 200, 201, 1000])
def test_quantiles_have_the_nearest_rank(count: int) -> None:
    """The least value that the share of all do not exceed, whatever their number."""
    measured = quantiles([float(value) for value in range(count, 0, -1)])
    for name, share in (("p50", 50), ("p99", 99)):
        value = measured[name]
        assert value is not None
        assert 100 * value >= share * count > 100 * (value - 1), name
    assert measured["max"] == count


def test_how_many_outliers_tell_something_of_the_p99() -> None:
    # P(at least 4 of 100 above the true p99) is 1.8 %, of 3 it is 7.9 %; of 160: 5 is 2.3 %, 4 is 7.8 %.
    for count, tell in ((1, 1), (5, 1), (6, 2), (100, 4), (160, 5), (1_000_000, 10_165)):
        values = [0.0] * (count - tell) + [1.0] * tell
        assert quantiles(values)["p99_at_least"] == 1.0, count
        assert quantiles([0.0, *values[:-1]])["p99_at_least"] == 0.0, count
