"""Effects of factors that are on or off: against cases worked out by hand."""

from __future__ import annotations

from itertools import combinations
from math import exp, log

import pytest

from analysis.papers.algc import (
    Cell,
    FactorialResult,
    cells,
    complete,
    conditional,
    draw,
    effects,
    means,
)
from analysis.statistics import interval
from analysis.style import narrows_style

ABC = ("a", "b", "c")
NONE: Cell = frozenset()


def of(*names: str) -> Cell:
    return frozenset(names)


def test_cells_come_by_how_many_factors_are_on() -> None:
    assert cells("ab") == [NONE, of("a"), of("b"), of("a", "b")]
    assert len(set(cells(ABC))) == 8


def test_two_factors_by_hand() -> None:
    # a: from 16 to 4 and from 8 to 1: mean of ¼ and ⅛. b: ½ and ¼. Together: √(⅛ ÷ ¼).
    values = {NONE: {1: 16.0}, of("a"): {1: 4.0}, of("b"): {1: 8.0}, of("a", "b"): {1: 1.0}}
    found = {effect.name: effect for effect in effects("ab", values)}
    assert list(found) == ["a", "b", "a × b"]
    assert found["a"].ratio.mean == pytest.approx((1 / 4 * 1 / 8) ** 0.5)
    assert found["b"].ratio.mean == pytest.approx((1 / 2 * 1 / 4) ** 0.5)
    assert found["a × b"].ratio.mean == pytest.approx((1 / 2) ** 0.5)
    assert all(effect.seeds == 1 and not effect.differs for effect in found.values())


@pytest.mark.parametrize("chosen", [c for n in (1, 2, 3) for c in combinations(ABC, n)])
def test_an_effect_alone_is_found_alone(chosen: tuple[str, ...]) -> None:
    def sign(cell: Cell) -> int:
        return (-1) ** sum(one not in cell for one in chosen)

    values = {cell: {1: 5.0 * exp(0.3 / 2 * sign(cell))} for cell in cells(ABC)}
    for effect in effects(ABC, values):
        expected = exp(0.3) if effect.factors == chosen else 1.0
        assert effect.ratio.mean == pytest.approx(expected), effect.name


def test_factors_that_multiply_have_no_interaction() -> None:
    values = {
        cell: {1: 7.0 * (0.5 if "a" in cell else 1) * (3.0 if "c" in cell else 1)}
        for cell in cells(ABC)
    }
    found = [effect.ratio.mean for effect in effects(ABC, values)]
    assert found == pytest.approx([0.5, 1, 3, 1, 1, 1, 1])


def test_intervals_are_paired_by_seed() -> None:
    # seeds differ a hundredfold, but a halves, or all but halves, the measure with each
    shares = {1: 0.5, 2: 0.4, 3: 0.625}
    values = {
        cell: {seed: 100.0**seed * (share if "a" in cell else 1) for seed, share in shares.items()}
        for cell in cells("ab")
    }
    a, b, both = effects("ab", values)
    by_hand = interval([log(share) for share in shares.values()]).through(exp)
    assert (a.ratio.mean, a.ratio.low, a.ratio.high) == pytest.approx(
        (by_hand.mean, by_hand.low, by_hand.high)
    )
    assert a.differs and a.ratio.mean == pytest.approx(0.5)
    assert (b.ratio.low, b.ratio.high, both.ratio.mean) == pytest.approx((1.0, 1.0, 1.0))


def test_only_seeds_with_all_cells_count() -> None:
    values = {cell: {1: 1.0, 2: 2.0, 3: 3.0} for cell in cells("ab")}
    values[of("a")] = {1: 1.0, 2: float("nan"), 4: 4.0}
    values[of("b")] = {1: 1.0, 3: 0.0}
    assert complete("ab", values) == [1]
    assert complete("abc", values) == []
    nothing = effects("abc", values)
    assert [effect.seeds for effect in nothing] == [0] * 7
    assert nothing[0].ratio.mean is None and not nothing[0].differs


def test_points_are_at_their_ticks() -> None:
    """Of several measures around them."""
    values = {cell: {1: 1.0, 2: 2.0 + len(cell)} for cell in cells("ab")}
    own = effects("ab", values)
    with narrows_style():
        left, right = draw(FactorialResult("ab", values, {"time": own, "steps": own})).axes[:2]
    below = [line.get_ydata()[0] for line in left.get_lines() if line.get_marker() != "None"]  # type: ignore[index]
    assert sorted(set(below)) == pytest.approx([-0.11, 0.11, 0.89, 1.11, 1.89, 2.11])
    at = [line.get_ydata()[0] for line in right.get_lines()]  # type: ignore[index]
    assert {0, 1, 2, 3} == set(at)


def test_means_and_what_a_factor_does_by_the_others() -> None:
    values = {
        NONE: {1: 10.0, 2: 40.0}, of("a"): {1: 5.0, 2: 20.0},
        of("b"): {1: 8.0, 2: 32.0}, of("a", "b"): {1: 8.0, 2: 32.0},
    }  # fmt: skip
    assert means("ab", values)[NONE].mean == pytest.approx(20.0)
    by_others = conditional("ab", "a", values)
    assert by_others[NONE].mean == pytest.approx(0.5)
    assert by_others[of("b")].mean == pytest.approx(1.0)
    assert list(by_others) == [NONE, of("b")]
