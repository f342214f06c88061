"""Synthetic traces: shapes as described, the same on every machine, and those shipped are current."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.traces import generate
from testbed.traces.generate import write_csv
from testbed.traces.rate_trace import RateTrace
from testbed.traces.readers import read

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


def test_a_token_bucket_gives_no_bits_away() -> None:
    made = generate.token_bucket(
        peak=100, base=40, budget_s=10, noise=0.0, busy=1.0, seconds=70, every_s=7, seed=1
    )
    assert mbit(made) == pytest.approx([100, 40 + 3 * 60 / 7, *[40] * 8])
    rested = mbit(
        generate.token_bucket(
            peak=100, base=40, budget_s=1, noise=0.0, busy=0.5, seconds=200, every_s=1, seed=3
        )
    )
    assert set(rested) == {40, 80, 100}


def test_a_day_has_a_busiest_hour() -> None:
    day = partial(
        generate.diurnal, low=20, high=100, period_s=24, busiest_s=20, persistence=0.5, seconds=48,
        every_s=1, seed=1,
    )  # fmt: skip
    calm = mbit(day(noise=0.0))
    assert [i for i, rate in enumerate(calm) if rate == min(calm)] == [20, 44]
    assert [i for i, rate in enumerate(calm) if rate == max(calm)] == [8, 32]
    assert (min(calm), max(calm)) == (20, 100)
    rough = mbit(day(noise=0.2))
    assert max(rough) <= 100
    assert min(rough) >= 0
    assert rough != calm


def test_a_day_s_noise_is_as_large_and_as_lasting_as_asked() -> None:
    made = mbit(
        generate.diurnal(
            low=1000, high=2000, period_s=1e9, busiest_s=0, noise=0.05, persistence=0.8,
            seconds=20_000, every_s=1, seed=2,
        )
    )  # fmt: skip
    mean = sum(made) / len(made)
    apart = [rate - mean for rate in made]
    variance = sum(x * x for x in apart) / len(apart)
    together = sum(a * b for a, b in pairwise(apart)) / len(apart)
    assert variance**0.5 / mean == pytest.approx(0.05, rel=0.06)
    assert together / variance == pytest.approx(0.8, abs=0.03)


walk = partial(generate.random_walk, low=1, high=9, deviation=1, seconds=9, every_s=1, seed=1)
chain = partial(generate.markov, levels=[1], stay=0.5, seconds=9, every_s=1, seed=1)
bucket = partial(
    generate.token_bucket,
    peak=9, base=1, budget_s=1, busy=0.5, noise=0, seconds=9, every_s=1, seed=1,
)  # fmt: skip
nan, inf = float("nan"), float("inf")
WRONG: list[Callable[[], RateTrace]] = [
    lambda: generate.step(before=1, after=2, at_s=0, seconds=5),
    lambda: generate.step(before=1, after=2, at_s=5, seconds=5),
    lambda: generate.step(before=-1, after=2, at_s=1, seconds=5),
    lambda: generate.square(low=2, high=1, period_s=5),
    lambda: generate.square(low=1, high=2, period_s=0),
    lambda: generate.square(low=1, high=inf, period_s=1),
    lambda: generate.ramp(start=-1, end=2, seconds=5, every_s=1),
    lambda: generate.ramp(start=1, end=nan, seconds=5, every_s=1),
    lambda: generate.ramp(start=1, end=2, seconds=5, every_s=0),
    lambda: generate.sawtooth(low=1, high=2, seconds=inf, every_s=1),
    lambda: generate.sawtooth(low=1, high=2, seconds=1e9, every_s=1),
    lambda: walk(deviation=-1),
    lambda: walk(low=10),
    lambda: walk(seconds=nan),
    lambda: chain(levels=[]),
    lambda: chain(levels=[-1]),
    lambda: chain(stay=1.1),
    lambda: bucket(busy=2),
    lambda: bucket(noise=-0.1),
    lambda: bucket(base=10),
    lambda: bucket(budget_s=-1),
    lambda: bucket(budget_s=nan),
]


@pytest.mark.parametrize("made", WRONG, ids=range(len(WRONG)))
def test_arguments_that_make_no_trace_are_refused(made: Callable[[], RateTrace]) -> None:
    with pytest.raises(ValueError) as caught:
        made()
    assert re.search("rates|share|jump|level|budget|both are more than 0", str(caught.value))


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
