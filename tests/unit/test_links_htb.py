"""Our bytes as another implementation of the protocol reads them."""

from __future__ import annotations

import struct

import pytest

from testbed.links import htb
from testbed.links.netlink import attribute, attributes, message, nested
from testbed.links.plan import LEAVES, burst_bytes

MBIT = 1_000_000


def decoded(body: bytes, kind: int = 36) -> object:
    tcmsg = pytest.importorskip("pyroute2.netlink.rtnl.tcmsg")
    read = tcmsg.tcmsg(message(kind, 0, body))
    read.decode()
    return read


def test_class_in_pyroute2s_eyes() -> None:
    read = decoded(htb.class_body(7, htb.Pace(1_250_000, 18_925, 64)), htb.NEW_CLASS)
    assert (read["index"], read["handle"], read["parent"]) == (7, htb.CLASS, htb.ROOT_HANDLE)  # type: ignore[index]
    assert read.get_attr("TCA_KIND") == "htb"  # type: ignore[attr-defined]
    parms = read.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")  # type: ignore[attr-defined]
    for which in ("rate", "ceil"):
        assert parms[which] == 1_250_000
        assert parms[f"{which}_mpu"] == 64
        assert parms[f"{which}_overhead"] == 0
    assert (parms["buffer"], parms["cbuffer"], parms["quantum"]) == (18_925, 18_925, 60_000)


def test_root_and_leaf_in_pyroute2s_eyes() -> None:
    read = decoded(htb.root_body(3))
    init = read.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")  # type: ignore[attr-defined]
    assert (init["version"], init["defcls"]) == (3, htb.CLASS & 0xFFFF)
    leaf = decoded(htb.leaf_body(3, LEAVES[0], 64_000))
    assert (leaf["handle"], leaf["parent"]) == (LEAVES[0] << 16, htb.CLASS)  # type: ignore[index]


def answer(body: bytes) -> bytes:
    return message(40, 0, body)


@pytest.mark.parametrize("rate", [8_000, 100 * MBIT, 34_359 * MBIT, 34_360 * MBIT, 400_000 * MBIT])
def test_a_class_reads_back_as_written(rate: int) -> None:
    setting = htb.pace(rate)
    held = htb.decode_class(answer(htb.class_body(1, setting)))
    assert held.pace == setting
    assert held.ceil_bytes == setting.rate_bytes == rate // 8
    assert held.ceil_burst_ticks == setting.burst_ticks
    seconds = setting.burst_ticks * htb.TICK_NS / 1e9
    assert seconds * setting.rate_bytes == pytest.approx(burst_bytes(rate), rel=1e-3, abs=1)


def test_a_rate_is_never_rounded_to_nothing() -> None:
    assert htb.pace(1).rate_bytes == 1


def test_a_burst_is_as_long_as_the_kernel_keeps_at_most() -> None:
    assert htb.pace(43).burst_ticks < htb.MOST_TICKS == htb.pace(1).burst_ticks


def test_a_leaf_reads_back_as_written() -> None:
    index, leaf = htb.decode_qdisc(htb.leaf_body(9, LEAVES[1], 123_456))
    assert index == 9
    assert (leaf.kind, leaf.limit_bytes, leaf.parent) == ("bfifo", 123_456, htb.CLASS)


def counters(packets64: int | None, tokens: int, rate: int = 1000) -> bytes:
    stats = [
        attribute(1, struct.pack("=QI", 5_000_000_000, 7)),
        attribute(3, struct.pack("=IIIII", 3, 4542, 2, 0, 0)),
    ]
    if packets64 is not None:
        stats.append(attribute(8, struct.pack("=Q", packets64)))
    xstats = attribute(4, struct.pack("=IIIii", 0, 0, 0, tokens, tokens + 10))
    settings = htb.class_body(1, htb.Pace(rate, 1))
    return answer(settings + nested(7, *stats) + xstats)


def test_counters() -> None:
    layouts: htb.Layouts = {}
    for _ in range(2):
        read = htb.decode_counters(counters(5_000_000_007, 100), layouts)
        assert read == htb.Counters(5_000_000_000, 5_000_000_007, 4542, 3, 2, 0, 1000)
        assert htb.decode_counters(counters(None, -1000), layouts).packets == 7
        assert htb.decode_counters(counters(None, -1000), layouts).debt_ns == 64_000
    assert len(layouts) == 2
    for rate in (1, 4_294_967_294, 4_294_967_295, 10**11):
        assert htb.decode_counters(counters(None, 0, rate), layouts).rate_bytes == rate


def test_an_overhead_is_charged_and_reads_back() -> None:
    setting = htb.pace(10 * MBIT, 38)
    assert setting == htb.pace(10 * MBIT)._replace(overhead_bytes=38)
    assert htb.decode_class(answer(htb.class_body(1, setting))).pace == setting
    read = decoded(htb.class_body(1, setting), htb.NEW_CLASS)
    parms = read.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")  # type: ignore[attr-defined]
    assert (parms["rate_overhead"], parms["ceil_overhead"]) == (38, 38)


def test_attributes_are_padded_and_found() -> None:
    data = attribute(1, "ab") + attribute(2, b"12345") + nested(3, attribute(4, 9))
    found = attributes(data)
    assert found[1] == b"ab\0"
    assert found[2] == b"12345"
    assert attributes(found[3])[4] == struct.pack("=I", 9)
    assert attributes(b"\0\0\0\0\0\0\0\0") == {}
