"""Bytes shared out, and errors kept to: against every combination there is."""

from __future__ import annotations

from functools import partial
from itertools import product
from random import Random

import numpy as np
import pytest

from testbed.control.algc import (
    Cost,
    Limit,
    edges,
    highest,
    ladder,
    minimise_error,
    one_for_all,
)
from testbed.control.base import LEVELS
from testbed.control.cost_model import DensitySizes
from testbed.control.layerwise import error_at
from testbed.control.lgreco import PARTS, cheapest

STEPS = ladder(0.01, 0.5)[::2]
SIZES = DensitySizes(ratio=1.5)


def random_curve(rng: Random) -> list[float]:
    """Falls from sparse to dense, bent as that of exact top-k is."""
    energy, bend = 10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(0, 3)
    return [energy * (1 - k) / (1 + bend * k) for k in LEVELS]


def whole(costs: dict[str, Cost], budget: float) -> list[Limit]:
    return [Limit(costs, budget)]


def problem(seed: int, many: int = 4) -> tuple[dict[str, list[float]], dict[str, Cost], float]:
    """Curves, costs, and a budget between the least and the most that they can take."""
    rng = Random(seed)
    curves = {f"l{n}": random_curve(rng) for n in range(many)}
    sizes = {name: float(round(10.0 ** rng.uniform(2, 5))) for name in curves}
    costs: dict[str, Cost] = {name: partial(SIZES.both, size) for name, size in sizes.items()}
    least, most = (sum(cost(k) for cost in costs.values()) for k in (STEPS[0], STEPS[-1]))
    return curves, costs, least + rng.random() * (most - least)


@pytest.mark.parametrize("seed", range(30))
def test_least_error_against_every_combination(seed: int) -> None:
    curves, costs, budget = problem(seed)
    best = min(
        sum(error_at(curves[name], k) for name, k in zip(curves, chosen, strict=True))
        for chosen in product(STEPS, repeat=len(curves))
        if sum(costs[name](k) for name, k in zip(curves, chosen, strict=True)) <= budget
    )
    found = minimise_error(curves, costs, whole(costs, budget), STEPS)
    spent = sum(costs[name](k) for name, k in found.items())
    error = sum(error_at(curves[name], k) for name, k in found.items())
    assert spent <= budget * (1 + 1e-9)
    assert spent == pytest.approx(budget, rel=1e-6), "there is a use for every byte"
    assert error <= best * (1 + 0.02)
    uniform = one_for_all(list(costs), whole(costs, budget), STEPS[0], STEPS[-1])
    assert error <= sum(error_at(curve, uniform) for curve in curves.values()) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_nested_limits_against_every_combination(seed: int) -> None:
    """Layers that are ready later have limits of their own."""
    curves, costs, budget = problem(seed)
    names, rng = list(curves), Random(seed)
    limits = [Limit({name: costs[name] for name in names[n:]}, budget * share) for n, share in ((0, 1.0), (1, 0.9 * rng.random()), (3, 0.3 * rng.random()))]  # fmt: skip

    def kept(found: dict[str, float]) -> bool:
        return all(limit.left(found) >= -1e-9 * budget for limit in limits)

    def error(found: dict[str, float]) -> float:
        return sum(error_at(curves[name], k) for name, k in found.items())

    every = (dict(zip(names, chosen, strict=True)) for chosen in product(STEPS, repeat=len(names)))
    best = min((error(found) for found in every if kept(found)), default=None)
    found = minimise_error(curves, costs, limits, STEPS)
    if best is None:
        assert any(set(limit.costs) <= {n for n, k in found.items() if k == STEPS[0]} for limit in limits)  # fmt: skip
        return
    assert kept(found)
    assert error(found) <= best * (1 + 0.02)
    k = one_for_all(names, limits, STEPS[0], STEPS[-1])
    assert kept(dict.fromkeys(names, k))
    assert error(found) <= error(dict.fromkeys(names, k)) * (1 + 1e-9)


def test_more_bytes_nowhere_fewer_elements() -> None:
    curves, costs, _ = problem(3, many=6)
    before = dict.fromkeys(curves, 0.0)
    for budget in np.geomspace(100, 1e7, 60):
        found = minimise_error(curves, costs, whole(costs, float(budget)), STEPS)
        assert all(found[name] >= before[name] * (1 - 1e-9) for name in curves)
        before = found
    assert set(before.values()) == {STEPS[-1]}


def test_nothing_to_spend_and_nothing_to_gain() -> None:
    curves, costs, _ = problem(4)
    assert set(minimise_error(curves, costs, whole(costs, 0.0), STEPS).values()) == {STEPS[0]}
    flat = {name: [0.0] * len(LEVELS) for name in curves}
    assert set(minimise_error(flat, costs, whole(costs, 1e9), STEPS).values()) == {STEPS[0]}
    assert set(minimise_error(curves, costs, whole(costs, float("inf")), STEPS).values()) == {
        STEPS[-1]
    }


def test_one_for_all_is_the_highest_that_fits() -> None:
    _, costs, budget = problem(5)
    k = one_for_all(list(costs), whole(costs, budget), 0.001, 1.0)
    assert sum(cost(k) for cost in costs.values()) <= budget
    assert sum(cost(k * 1.001) for cost in costs.values()) > budget
    assert one_for_all(list(costs), whole(costs, 0.0), 0.001, 1.0) == 0.001
    assert one_for_all(list(costs), whole(costs, 1e12), 0.001, 1.0) == 1.0
    assert highest(lambda k: 1000 * k, 10.0, 0.001, 1.0) == pytest.approx(0.01)


@pytest.mark.parametrize("seed", range(30))
def test_knapsack_against_every_combination(seed: int) -> None:
    """No dearer than what keeps to the bound with a ten-thousandth less for every item, and the bound is kept."""
    rng = Random(seed)
    many, choices = 4, 5
    costs = [sorted(rng.uniform(1, 100) for _ in range(choices)) for _ in range(many)]
    errors = [sorted((rng.uniform(0, 10) for _ in range(choices)), reverse=True) for _ in costs]
    allowed = rng.uniform(5, 25)
    found = cheapest(costs, errors, allowed)

    def least(bound: float) -> float | None:
        totals = [
            sum(costs[i][c] for i, c in enumerate(chosen))
            for chosen in product(range(choices), repeat=many)
            if sum(errors[i][c] for i, c in enumerate(chosen)) <= bound
        ]
        return min(totals, default=None)

    strict = least(allowed * (1 - many / PARTS))
    if found is None:
        assert strict is None
        return
    assert sum(errors[i][c] for i, c in enumerate(found)) <= allowed * (1 + 1e-9)
    cost, best = sum(costs[i][c] for i, c in enumerate(found)), least(allowed)
    assert best is not None
    assert cost >= best - 1e-9
    assert strict is None or cost <= strict + 1e-9


def test_knapsack_says_when_nothing_fits() -> None:
    assert cheapest([[1.0, 2.0]], [[5.0, 3.0]], 2.9) is None
    assert cheapest([[1.0, 2.0]], [[5.0, 3.0]], 3.0) == [1]
    assert cheapest([], [], 1.0) == []


def linear(scale: float) -> Cost:
    return lambda k: scale * k


def falling(top: float) -> list[float]:
    """Energy left out, from none at density 1 to ``top`` at half of it and below."""
    return [0.0, top / 2, *([top] * (len(LEVELS) - 2))]


def test_an_edge_saves_so_much_error_for_each_byte() -> None:
    """From density 1/2 to 1: 500 B more and 10 less of error; half a step of log k between."""
    (edge,) = edges("a", falling(10.0), linear(1000.0), [0.5, 1.0])
    assert (edge.name, edge.from_, edge.to, edge.saved) == ("a", 0.5, 1.0, 10.0 / 500)
    assert edges("a", [5.0] * len(LEVELS), linear(1000.0), [0.5, 1.0]) == []


def test_a_layer_whose_limit_is_spent_leaves_the_others_theirs() -> None:
    """The one that saves most by byte has nothing left; the other's limit has room for all."""
    curves = {"a": falling(1000.0), "b": falling(1.0)}
    costs = {"a": linear(1000.0), "b": linear(1000.0)}
    limits = [Limit({"a": costs["a"]}, 500.0), Limit({"b": costs["b"]}, 1000.0)]
    assert minimise_error(curves, costs, limits, [0.5, 1.0]) == {"a": 0.5, "b": 1.0}


def test_one_limit_that_is_spent_is_enough_to_end_a_layer() -> None:
    costs = {"a": linear(1000.0)}
    limits = [Limit(costs, 500.0), Limit(costs, 5000.0)]
    assert minimise_error({"a": falling(10.0)}, costs, limits, [0.5, 1.0]) == {"a": 0.5}


def test_where_nothing_limits_all_is_sent() -> None:
    costs = {"a": linear(1000.0)}
    assert minimise_error({"a": falling(10.0)}, costs, [], [0.5, 1.0]) == {"a": 1.0}
    assert one_for_all(["a"], [], 0.25, 0.5) == 0.5


def test_a_budget_that_is_just_met_is_met() -> None:
    assert highest(linear(8.0), 4.0, 0.25, 0.5) == 0.5
    assert one_for_all(["a"], [Limit({"a": linear(8.0)}, 4.0)], 0.25, 0.5) == 0.5
    assert highest(lambda k: float(k > 0.3), 0.0, 0.1, 0.9) == pytest.approx(0.3)
    assert highest(linear(8.0), 1.0, 0.25, 0.5) == 0.25
