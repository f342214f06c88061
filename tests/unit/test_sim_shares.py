"""Weighted max-min fairness: worked examples, and its definition on anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.sim.link_state import RateShares, share

FREE = np.inf


def shared(
    capacity: list[float],
    paths: list[list[int]],
    weight: list[float] | None = None,
    limit: list[float] | None = None,
) -> RateShares:
    """``paths`` of any length; the free link comes last by itself."""
    many = max(map(len, paths))
    filled = np.array([path + [len(capacity)] * (many - len(path)) for path in paths])
    return share(
        np.array([*capacity, FREE]),
        filled,
        np.array(weight or [1.0] * len(paths)),
        np.array(limit or [np.inf] * len(paths)),
    )


def test_one_link_is_shared_evenly() -> None:
    assert shared([12.0], [[0], [0], [0]]).rate == pytest.approx([4.0, 4.0, 4.0])


def test_what_one_cannot_use_others_get() -> None:
    """Flow 0 has 2 on its own link; the other two divide the remaining 8 of the common one."""
    found = shared([2.0, 10.0], [[0, 1], [1], [1]])
    assert found.rate == pytest.approx([2.0, 4.0, 4.0])
    assert list(found.tightest) == [0, 1, 1]


def test_the_textbook_example() -> None:
    """Bertsekas and Gallager, figure 6.11: one long flow, and one on each of three links."""
    found = shared([1.0, 1.0, 2.0], [[0, 1, 2], [0], [1], [2]])
    assert found.rate == pytest.approx([0.5, 0.5, 0.5, 1.5])


def test_weights_divide_a_link() -> None:
    assert shared([10.0], [[0], [0]], weight=[4.0, 1.0]).rate == pytest.approx([8.0, 2.0])


def test_a_limit_holds_a_flow() -> None:
    found = shared([10.0], [[0], [0]], limit=[1.0, np.inf])
    assert found.rate == pytest.approx([1.0, 9.0])
    assert list(found.tightest) == [-1, 0]


def test_a_dead_link_gives_nothing() -> None:
    assert shared([0.0, 9.0], [[0, 1], [1]]).rate == pytest.approx([0.0, 9.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], list[list[int]], list[float], list[float]]:
    links, flows = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    capacity = draw(st.lists(st.floats(0.0, 100.0), min_size=links, max_size=links))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True)
    paths = draw(st.lists(path, min_size=flows, max_size=flows))
    weight = draw(st.lists(st.floats(0.1, 10.0), min_size=flows, max_size=flows))
    limit = draw(st.lists(st.floats(0.1, 200.0), min_size=flows, max_size=flows))
    return capacity, paths, weight, limit


@given(cases())
def test_it_is_max_min_fair(
    case: tuple[list[float], list[list[int]], list[float], list[float]],
) -> None:
    """No link carries too much; who has less than its limit has a full link on which nobody has more by weight."""
    capacity, paths, weight, limit = case
    rate = shared(*case).rate
    load = [
        sum(r for r, path in zip(rate, paths, strict=True) if n in path)
        for n in range(len(capacity))
    ]
    for carried, most in zip(load, capacity, strict=True):
        assert carried <= most + 1e-6
    level = [r / w for r, w in zip(rate, weight, strict=True)]
    for flow, path in enumerate(paths):
        if rate[flow] >= limit[flow] * (1 - 1e-9):
            assert rate[flow] <= limit[flow] * (1 + 1e-9)
            continue
        assert any(
            load[n] >= capacity[n] - 1e-6
            and all(level[o] <= level[flow] + 1e-6 for o, other in enumerate(paths) if n in other)
            for n in path
        )
