"""Synthetic traces: shapes as described, the same on every machine, and those shipped are current."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.traces import RateTrace, generate, read, write_csv

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios" / "traces").glob("*.csv"))


def mbit(trace: RateTrace) -> list[float]:
    return [rate / 1e6 for rate in trace.rates_bits]


def test_shapes() -> None:
    step = generate.step(before=10, after=2, at_s=3, seconds=5)
    assert (step.times_s, mbit(step), step.duration_s) == ((0.0, 3), [10, 2], 5)
    square = generate.square(low=1, high=5, period_s=4)
    assert (square.times_s, mbit(square), square.duration_s) == ((0.0, 2.0), [5, 1], 4.0)
    ramp = generate.ramp(start=0, end=10, seconds=5, every_s=1)
    assert (mbit(ramp), ramp.duration_s) == ([0, 2.5, 5, 7.5, 10], 5.0)
    saw = generate.sawtooth(low=0, high=10, seconds=5, every_s=1)
    assert mbit(saw) == [10, 8, 6, 4, 2]


def test_a_random_walk_stays_inside_and_moves() -> None:
    walk = mbit(
        generate.random_walk(low=20, high=30, deviation=9, seconds=100, every_s=0.1, seed=1)
    )
    assert len(walk) == 1000
    assert min(walk) >= 20
    assert max(walk) <= 30
    assert len(set(walk)) > 900


def test_a_markov_chain_stays_as_often_as_it_is_told() -> None:
    chain = mbit(generate.markov(levels=[1, 5, 9], stay=0.9, seconds=5000, every_s=1, seed=1))
    stays = sum(a == b for a, b in pairwise(chain)) / len(chain)
    assert set(chain) == {1, 5, 9}
    assert stays == pytest.approx(0.9, abs=0.02)


def test_a_token_bucket_is_fast_until_it_is_empty() -> None:
    bucket = partial(
        generate.token_bucket,
        peak=100, base=40, budget_s=10, noise=0.0, seconds=60, every_s=1, seed=1,
    )  # fmt: skip
    greedy = mbit(bucket(busy=1.0))
    assert greedy == [100] * 10 + [40] * 50
    idle = mbit(bucket(busy=0.0))
    assert idle == [100] * 60


def test_the_same_arguments_give_the_same_trace() -> None:
    def walk(seed: int) -> RateTrace:
        return generate.random_walk(low=1, high=9, deviation=1, seconds=9, every_s=1, seed=seed)

    assert walk(1) == walk(1)
    assert walk(1).rates_bits != walk(2).rates_bits
    assert walk(1).name == ("random_walk(low=1, high=9, deviation=1, seconds=9, every_s=1, seed=1)")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_traces_are_what_their_first_line_says(path: Path) -> None:
    comment = path.read_text().splitlines()[0].removeprefix("# ")
    call = comment.removeprefix("made by testbed.traces.generate.")
    made: RateTrace = eval(f"generate.{call}", {"generate": generate})
    assert write_csv(made, comment=comment) == path.read_text()
    again = read(path)
    assert (again.times_s, again.rates_bits) == (made.times_s, made.rates_bits)
