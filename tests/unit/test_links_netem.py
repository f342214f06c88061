"""Netem's options out and back, tables of delays, limits and seeds: arithmetic, no kernel."""

from __future__ import annotations

import struct
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.links.netem_stage import seed_of
from testbed.links.tc import netem, parameters
from testbed.links.tc.netem import NetemState, same
from testbed.links.tc.parameters import FEWEST_PACKETS, MOST_PACKETS, SMALLEST_FRAME, limit_packets
from testbed.scenario.link_state import (
    NONE,
    FourState,
    GilbertElliott,
    Impairments,
    LinkDirection,
    Slot,
)

SHARES = st.floats(0, 1)
TIMES = st.integers(0, 10**12)
MODELS = st.one_of(
    SHARES,
    st.builds(GilbertElliott, SHARES, SHARES, SHARES, SHARES),
    st.builds(FourState, SHARES, SHARES, SHARES, SHARES, SHARES),
)
SLOTS = st.builds(
    Slot,
    st.integers(1, 10**10),
    st.integers(1, 10**10),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
)
ANY = st.builds(
    Impairments,
    delay_ns=TIMES,
    jitter_ns=TIMES,
    distribution=st.sampled_from(["uniform", "normal", "pareto", "paretonormal"]),
    delay_correlation=SHARES,
    loss=MODELS,
    reorder=SHARES,
    reorder_correlation=SHARES,
    reorder_gap=st.integers(0, 1000),
    duplicate=SHARES,
    duplicate_correlation=SHARES,
    corrupt=SHARES,
    corrupt_correlation=SHARES,
    slot=st.none() | SLOTS,
    ecn=st.booleans(),
    ordered=st.booleans(),
    seed=st.none() | st.integers(0, 2**64 - 1),
)


def read(told: NetemState) -> NetemState:
    """What the message says, in the words of an answer."""
    held = netem.decode(netem.set_line(9, told, with_table=False))
    assert held is not None
    return held


@given(ANY, st.integers(0, 2**32 - 1))
def test_what_is_sent_is_what_is_read(asked: Impairments, limit: int) -> None:
    held = read(NetemState(asked, limit))
    assert held.limit_packets == limit
    assert (held.impairments.delay_ns, held.impairments.jitter_ns) == (
        asked.delay_ns,
        asked.jitter_ns,
    )
    assert (held.impairments.slot, held.impairments.seed) == (asked.slot, asked.seed)
    assert type(held.impairments.loss) is type(asked.loss) or not asked.loss
    assert same(NetemState(asked, limit), held)
    assert read(held) == held


@pytest.mark.parametrize(
    "other",
    [
        {"delay_ns": 1},
        {"jitter_ns": 1},
        {"delay_correlation": 0.1},
        {"loss": 1e-9},
        {"loss": GilbertElliott(0, 1)},
        {"loss": FourState(0)},
        {"reorder": 0.1},
        {"reorder_correlation": 0.1},
        {"duplicate": 0.1},
        {"duplicate_correlation": 0.1},
        {"corrupt": 0.1},
        {"corrupt_correlation": 0.1},
        {"slot": Slot(1, 1)},
        {"ecn": True},
        {"ordered": False},
    ],
)
def test_every_difference_is_seen(other: dict[str, object]) -> None:
    changed = NetemState(replace(NONE, **other), 1000)  # type: ignore[arg-type]
    assert same(changed, read(changed))
    assert not same(NetemState(NONE, 1000), read(changed))
    assert not same(changed, read(NetemState(NONE, 1000)))
    assert not same(changed, NetemState(changed.impairments, 1001))


def test_a_kernel_that_tells_no_seed_is_believed_and_one_that_tells_another_is_not() -> None:
    asked = NetemState(Impairments(loss=0.1, seed=5), 1000)
    silent = read(NetemState(Impairments(loss=0.1), 1000))
    assert same(asked, silent)
    assert not same(asked, silent._replace(impairments=replace(silent.impairments, seed=6)))
    assert same(NetemState(Impairments(loss=0.1), 1000), asked)


@pytest.mark.parametrize(
    ("reorder", "gap", "told"), [(0.0, 0, 0), (0.0, 5, 0), (1e-9, 0, 1), (0.1, 0, 1), (0.1, 5, 5)]
)
def test_of_packets_that_are_to_be_reordered_any_may_be(
    reorder: float, gap: int, told: int
) -> None:
    """To the kernel a gap of 0 means that none is; what it holds reads the same again."""
    asked = NetemState(Impairments(delay_ns=10**7, reorder=reorder, reorder_gap=gap), 1000)
    assert read(asked).impairments.reorder_gap == told
    assert same(asked, read(asked))


def test_everything_is_always_sent() -> None:
    """A change merges: what were left out would stay."""
    persistent = {
        "CORR",
        "DELAY_DIST",
        "REORDER",
        "CORRUPT",
        "RATE",
        "RATE64",
        "ECN",
        "SLOT",
        "LATENCY64",
        "JITTER64",
    }
    assert sent(NONE) == persistent
    assert sent(Impairments(ordered=False)) == persistent - {"RATE64"}


def sent(impairments: Impairments) -> set[str]:
    """The options of a change."""
    message = tcmsg(netem.set_line(9, NetemState(impairments, 1000)))
    message.decode()
    options = message.get_attr("TCA_OPTIONS")
    assert not (options.get_attr("TCA_NETEM_RATE")["rate"] and not impairments.ordered)
    return {name.removeprefix("TCA_NETEM_") for name, _ in options["attrs"]}


@pytest.mark.parametrize("name", ["uniform", "normal", "pareto", "paretonormal"])
def test_tables_are_quantiles(name: parameters.Distribution) -> None:
    found = parameters.entries(name)
    assert found == sorted(found)
    assert parameters.table(name) == struct.pack("=4096h", *found)
    shares = [entry / parameters.DELAY_UNIT for entry in found]
    mean, spread = {
        "uniform": (0, 0.577),
        "normal": (0, 1),
        "pareto": (-0.033, 0.82),
        "paretonormal": (-0.02, 0.84),
    }[name]
    assert fmean(shares) == pytest.approx(mean, abs=0.005)
    assert pstdev(shares) == pytest.approx(spread, abs=0.02)


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    TIMES,
    TIMES,
)
def test_a_line_holds_whatever_can_be_on_its_way(
    rate: int, queue: int, delay_ns: int, jitter_ns: int
) -> None:
    limit = limit_packets(rate, queue, Impairments(delay_ns=delay_ns, jitter_ns=jitter_ns))
    assert FEWEST_PACKETS <= limit <= MOST_PACKETS
    on_their_way = (rate / 8 * (delay_ns + 4 * jitter_ns) / 1e9 + queue) / SMALLEST_FRAME
    assert limit >= min(MOST_PACKETS, on_their_way)
    assert limit <= max(FEWEST_PACKETS, 2 * on_their_way + 2)


def test_limits_grow_with_slots_and_duplicates() -> None:
    plain = limit_packets(10**9, 0, Impairments(delay_ns=10**7))
    assert limit_packets(10**9, 0, Impairments(delay_ns=10**7, duplicate=0.1)) == 2 * plain
    slotted = Impairments(delay_ns=10**7, slot=Slot(10**6, 10**8))
    assert limit_packets(10**9, 0, slotted) > plain


def test_seeds_differ_between_ends_and_changes_and_not_between_runs() -> None:
    ends = [LinkDirection(link, way) for link in ("a", "b") for way in ("up", "down")]  # type: ignore[arg-type]
    made = [seed_of(end, seed, number) for end in ends for seed in (1, 2) for number in range(3)]
    assert len(set(made)) == len(made)
    assert seed_of(ends[0], 1, 0) == made[0]
    assert seed_of(ends[0], None, 0) is None
    assert all(seed is not None and 0 <= seed < 2**64 for seed in made)


@pytest.mark.parametrize("p13", [0.1, 0.3, 0.5, 0.7])
def test_four_states_add_up_to_all_and_not_to_nothing(p13: float) -> None:
    """The kernel adds two shares in 32 bits: one too many would be none."""
    loss = FourState(p13, p31=p13, p32=1 - p13, p14=1 - p13)
    held = read(NetemState(Impairments(loss=loss), 1000)).impairments.loss
    assert isinstance(held, FourState)
    for one, other in ((held.p13, held.p14), (held.p31, held.p32)):
        assert round(one * netem.ALL) + round(other * netem.ALL) <= netem.ALL
