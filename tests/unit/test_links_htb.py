"""What a class, its queue and their counters are in messages."""

from __future__ import annotations

import pytest
from pyroute2.netlink.rtnl import RTM_GETTCLASS
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.links.tc import htb
from testbed.links.tc.netlink import NetlinkMessage, encode, tree
from testbed.links.tc.parameters import LEAVES, MOST_TICKS, TICK_NS, burst_bytes, pace

MBIT = 1_000_000


@pytest.mark.parametrize("rate", [8_000, 100 * MBIT, 34_359 * MBIT, 34_360 * MBIT, 400_000 * MBIT])
def test_a_class_reads_back_as_written(rate: int) -> None:
    setting = pace(rate)
    held = htb.decode_class(htb.set_class(1, setting))
    assert held.pace == setting
    assert held.ceil_bytes == setting.rate_bytes == rate // 8
    assert held.ceil_burst_ticks == setting.burst_ticks
    seconds = setting.burst_ticks * TICK_NS / 1e9
    assert seconds * setting.rate_bytes == pytest.approx(burst_bytes(rate), rel=1e-3, abs=1)


def test_a_rate_is_never_rounded_to_nothing() -> None:
    assert pace(1).rate_bytes == 1


def test_a_burst_is_as_long_as_the_kernel_keeps_at_most() -> None:
    assert pace(43).burst_ticks < MOST_TICKS == pace(1).burst_ticks


def test_a_leaf_reads_back_as_written() -> None:
    assert htb.decode_limit(htb.set_leaf(9, LEAVES[1], 123_456)) == 123_456


def counters(packets64: int | None, tokens: int, rate: int = 1000) -> bytes:
    wide = [] if packets64 is None else [("TCA_STATS_PKT64", packets64)]
    parameters = {"rate": min(rate, 0xFFFFFFFF)}
    large = [("TCA_HTB_RATE64", rate)] if rate >= 0xFFFFFFFF else []
    fields = tree(
        ("TCA_KIND", "htb"),
        ("TCA_OPTIONS", tree(("TCA_HTB_PARMS", parameters), *large)),
        ("TCA_STATS2", tree(
            ("TCA_STATS_BASIC", {"bytes": 5_000_000_000, "packets": 7}),
            ("TCA_STATS_QUEUE", {"qlen": 3, "backlog": 4542, "drops": 2}),
            *wide,
        )),
        ("TCA_XSTATS", {"tokens": tokens, "ctokens": tokens + 10}),
    )  # fmt: skip
    return encode(NetlinkMessage(tcmsg, fields), RTM_GETTCLASS, 0)


def test_counters() -> None:
    for _ in range(2):
        read = htb.decode_counters(counters(5_000_000_007, 100))
        assert read == htb.ClassCounters(5_000_000_000, 5_000_000_007, 4542, 3, 2, 0, 1000)
        assert htb.decode_counters(counters(None, -1000)).packets == 7
        assert htb.decode_counters(counters(None, -1000)).debt_ns == 64_000
    for rate in (1, 4_294_967_294, 4_294_967_295, 10**11):
        assert htb.decode_counters(counters(None, 0, rate)).rate_bytes == rate


def test_an_overhead_is_charged_and_reads_back() -> None:
    setting = pace(10 * MBIT, 38)
    assert setting == pace(10 * MBIT)._replace(overhead_bytes=38)
    assert htb.decode_class(htb.set_class(1, setting)).pace == setting
