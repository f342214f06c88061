"""What papers promise of each value coding: bounds of the error, expected values, sizes.

Expected values are tested with z-scores: of some thousands of normal ones none exceeds 6 in magnitude,
except with a probability below 1e-5; seeds are fixed.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from value_cases import CASES, MIXED, SHAPED, Case, vectors, written

from testbed.compress.base import Floats, Recipe, RecipeChoice
from testbed.compress.layout import Layout
from testbed.compress.values.floats import Bf16, Fp16
from testbed.compress.values.int8 import Int8
from testbed.compress.values.lowrank import LowRank
from testbed.compress.values.maxmin import MaxMin
from testbed.compress.values.natural import Natural
from testbed.compress.values.qsgd import Qsgd
from testbed.compress.values.sign import OneBit, Sign
from testbed.compress.values.ternary import Ternary
from testbed.errors import InputError

LAYOUT = Layout.whole("w", 1)
TINY = np.finfo(np.float64).tiny
floats = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40
).map(lambda held: np.array(held, np.float32))


def kept(kind: Any, values: Floats, seed: int = 1, **options: Any) -> np.ndarray[Any, Any]:
    """float64."""
    made = kind(Layout.whole("w", values.size), **options)
    return written(made, values, seed)[1].astype(np.float64)


def usual(size: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).laplace(size=size).astype(np.float32)


def square(vector: np.ndarray[Any, Any]) -> float:
    return float(np.square(vector, dtype=np.float64).sum())


@given(floats)
@settings(max_examples=examples(200), deadline=None)
def test_halves_are_the_nearest(values: Floats) -> None:
    tensor = torch.from_numpy(values)
    assert np.array_equal(kept(Fp16, values), tensor.clamp(-65504, 65504).half().double().numpy())
    most = torch.finfo(torch.bfloat16).max
    assert np.array_equal(kept(Bf16, values), tensor.clamp(-most, most).bfloat16().double().numpy())


def test_halves_never_become_infinite() -> None:
    values = np.array([65519.0, 65520.0, -1e38, np.finfo(np.float32).max], np.float32)
    assert kept(Fp16, values).tolist() == [65504.0, 65504.0, -65504.0, 65504.0]
    most = float(torch.finfo(torch.bfloat16).max)
    assert kept(Bf16, values)[3] == most
    assert kept(Bf16, -values)[3] == -most


@given(floats)
@settings(max_examples=examples(200), deadline=None)
def test_int8_is_off_by_half_a_level(values: Floats) -> None:
    read, peak = kept(Int8, values, bucket=8), np.abs(values.astype(np.float64))
    for begin in range(0, values.size, 8):
        own = slice(begin, begin + 8)
        half = peak[own].max() / 254
        assert (np.abs(read[own] - values[own]) <= half * (1 + 1e-5) + 1e-45).all()
        greatest = peak[own].argmax()
        assert read[own][greatest] == values[own][greatest]


@given(floats, st.integers(1, 8), st.sampled_from(["nearest", "stochastic"]))
@settings(max_examples=examples(200), deadline=None)
def test_maxmin_is_off_by_half_a_level_or_less_than_one(
    values: Floats, bits: int, rounding: str
) -> None:
    read = kept(MaxMin, values, bits=bits, bucket=8, rounding=rounding)
    for begin in range(0, values.size, 8):
        own = slice(begin, begin + 8)
        exact = values[own].astype(np.float64)
        level = (exact.max() - exact.min()) / (2**bits - 1)
        limit = level / 2 if rounding == "nearest" else level
        rounded = 2**-23 * np.abs(exact).max() + 1e-45
        assert (np.abs(read[own] - exact) <= limit * (1 + 1e-9) + rounded).all()
        assert (read[own].min(), read[own].max()) == (exact.min(), exact.max())


def test_onebit_keeps_both_means_and_beats_the_sign() -> None:
    values = usual(5000) + np.float32(0.3)
    read = kept(OneBit, values)
    above, below = values[values >= 0].astype(np.float64), values[values < 0].astype(np.float64)
    assert set(read) == {np.float32(above.mean()), np.float32(below.mean())}
    removed = above.size * above.mean() ** 2 + below.size * below.mean() ** 2
    assert square(values - read) == pytest.approx(square(values) - removed, rel=1e-5)
    assert square(values - read) <= square(values - kept(Sign, values))


def test_sign_contracts_by_what_error_feedback_is_proved_with() -> None:
    values = usual(5000)
    ratio = np.abs(values).sum(dtype=np.float64) ** 2 / (values.size * square(values))
    left = square(values - kept(Sign, values))
    assert left == pytest.approx((1 - ratio) * square(values), rel=1e-5)
    assert kept(Sign, np.array([0.0, -0.0, -2.0], np.float32), scale="one").tolist() == [1, 1, -1]
    assert set(np.abs(kept(Sign, values, scale=0.25))) == {0.25}


def test_rows_have_means_of_their_own() -> None:
    values = usual(MIXED.size)
    made = OneBit(MIXED, per="row")
    read = written(made, values)[1]
    for part in MIXED:
        rows, columns = part.rows
        own = slice(part.offset, part.offset + part.size)
        for row, seen in zip(
            values[own].reshape(rows, columns), read[own].reshape(rows, columns), strict=True
        ):
            for chosen in (row >= 0, row < 0):
                if chosen.any():
                    assert set(seen[chosen]) == {np.float32(row[chosen].mean(dtype=np.float64))}
    part_only = values[:100]
    assert np.array_equal(written(made, part_only)[1], kept(OneBit, part_only).astype(np.float32))


UNBIASED = [
    (Ternary, {"clip": None}),
    (Ternary, {}),
    (Qsgd, {"bucket": 64}),
    (Qsgd, {"bucket": 64, "levels": 1}),
    (Qsgd, {"bucket": 64, "levels": 127}),
    (Natural, {}),
    (MaxMin, {"bucket": 64, "rounding": "stochastic"}),
]


@pytest.mark.parametrize(("kind", "options"), UNBIASED, ids=str)
def test_expected_values(kind: Any, options: dict[str, Any]) -> None:
    once = usual(64, seed=3) * np.exp(np.random.default_rng(4).normal(size=64)).astype(np.float32)
    once[7] = 0.0
    seeds, copies = 50, 200
    drawn = np.concatenate(
        [
            kept(kind, np.tile(once, copies), seed, **options).reshape(copies, 64)
            for seed in range(seeds)
        ]
    )
    expected = once.astype(np.float64)
    if options == {}:
        scale = np.abs(drawn).max() if kind is Ternary else np.inf
        expected = np.clip(expected, -scale, scale)
        assert (expected != once).any() == (kind is Ternary), "nothing was cut off"
    spread = drawn.std(axis=0) / sqrt(len(drawn))
    off = np.abs(drawn.mean(axis=0) - expected)
    assert (off <= 6 * spread + 1e-6 * np.abs(expected)).all(), (
        off / np.maximum(spread, TINY)
    ).max()


def test_natural_second_moment() -> None:
    once = np.exp(np.random.default_rng(2).normal(size=256)).astype(np.float32)
    drawn = kept(Natural, np.tile(once, 4000)).reshape(-1, 256)
    relative = np.square(drawn / once - 1).mean(axis=0)
    power = 2.0 ** np.floor(np.log2(once.astype(np.float64)))
    share = once / power - 1
    exact = share * (1 - share) * power**2 / once.astype(np.float64) ** 2
    assert exact.max() <= 1 / 8 + 1e-12
    assert np.allclose(relative, exact, atol=0.02)
    assert relative.mean() <= 1 / 8
    assert set(np.log2(drawn.ravel()) % 1) == {0.0}


def test_natural_far_below_and_at_the_top() -> None:
    limits = np.array([3.4e38, 1e-45, -1e-10, 0.0], np.float32)
    assert set(kept(Natural, limits)[[0, 3]]) == {2.0**127, 0.0}
    far = np.array([2.0**100] + [2.0**-28] * 20_000, np.float32)
    drawn = kept(Natural, far)[1:]
    least = 2.0**-25  # 126 powers below 2^101
    assert set(drawn) == {0.0, least}
    share = 2.0**-3
    assert (drawn > 0).sum() == pytest.approx(share * 20_000, abs=6 * sqrt(share * 20_000))


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_qsgd_variance(levels: int) -> None:
    bucket = 512
    values = np.tile(usual(bucket, seed=5), 400)
    drawn = kept(Qsgd, values, bucket=bucket, levels=levels)
    left = square(drawn - values) / square(values)
    assert left <= min(bucket / levels**2, sqrt(bucket) / levels)


def test_lowrank_finds_what_has_low_rank_and_improves_from_step_to_step() -> None:
    random = np.random.default_rng(1)
    layout = Layout.of([("m", (80, 60))])
    exact = (random.normal(size=(80, 2)) @ random.normal(size=(2, 60))).astype(np.float32).ravel()
    coding = LowRank(layout)
    read = written(coding, exact)[1]
    assert square(read - exact) <= 1e-10 * square(exact)
    noisy = exact + random.normal(size=exact.size).astype(np.float32)
    best = square(np.linalg.svd(noisy.reshape(80, 60), compute_uv=False)[2:])
    coding, lefts = LowRank(layout), []
    for step in range(30):
        lefts.append(square(written(coding, noisy, step)[1] - noisy))
    assert best <= lefts[0] * (1 + 1e-6)
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(lefts))
    assert lefts[-1] <= best * (1 + 1e-3)
    assert lefts[0] > best * 1.001, "the first step is not the last"


def test_lowrank_starts_again_where_nothing_was() -> None:
    coding, zeros = LowRank(Layout.of([("m", (20, 30))])), np.zeros(600, np.float32)
    assert not written(coding, zeros)[1].any()
    values = np.outer(np.arange(20), np.arange(30)).astype(np.float32).ravel()
    assert np.allclose(written(coding, values)[1], values, rtol=1e-5, atol=1e-3)


def test_lowrank_needs_everything() -> None:
    coding = LowRank(MIXED)
    with pytest.raises(
        InputError, match=r"not 10 of \d+ elements\. Use it with the selector 'dense'"
    ):
        coding.section_bytes(10)


@pytest.mark.parametrize("case", [*CASES, *SHAPED], ids=str)
def test_bits_are_those_of_the_formula(case: Case) -> None:
    """Exactly: the bits of each value, rounded up to a byte, and what stands beside them."""
    count = MIXED.size
    options = case.options
    buckets = -(-count // options.get("bucket", 512))
    rows = sum(rows for rows, _ in (part.rows for part in MIXED))
    factored = {rank: _factors(rank) for rank in (1, 2, 5)}
    levels = options.get("levels", 7)
    by_row = options.get("per") == "row"
    expected = {
        "fp16": 16 * count,
        "bf16": 16 * count,
        "int8": 8 * count + 32 * buckets + 32,
        "onebit": count + 32 + (64 * (rows + len(MIXED.parts)) if by_row else 64),
        "sign": count + 32,
        "ternary": 8 * -(-count // 5) + 32,
        "qsgd": count * int(np.ceil(np.log2(2 * levels + 1))) + 32 * buckets + 64,
        "natural": 8 * count + 8,
        "maxmin": count * options.get("bits", 4) + 64 * buckets + 64,
        "lowrank": 32 * factored[options.get("rank", 2)] + 32 + 96 * len(MIXED.parts),
    }[case.name]
    section, _ = written(case.make(count), vectors(count)["usual"])
    assert section.size == -(-expected // 8)


def _factors(rank: int) -> int:
    return sum(min(rank * sum(part.rows), part.size) for part in MIXED)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "int8",
            {"bucket": 100},
            "bucket: it is not a power of two; write for example 64, got 100",
        ),
        ("int8", {"bucket": 4}, "bucket: .*greater than or equal to 8, got 4"),
        ("int8", {"bucket": 512.0}, "bucket: .*valid integer, got 512.0"),
        ("int8", {"bits": 4}, "value coding 'int8': unknown option 'bits'"),
        ("qsgd", {"levels": 0}, "levels: .*greater than or equal to 1, got 0"),
        ("qsgd", {"levels": 128}, "levels: .*less than or equal to 127, got 128"),
        ("maxmin", {"bits": 9}, "bits: .*less than or equal to 8, got 9"),
        ("maxmin", {"rounding": "up"}, "rounding: .*'nearest' or 'stochastic', got 'up'"),
        ("onebit", {"per": "column"}, "per: .*'tensor' or 'row', got 'column'"),
        ("sign", {"scale": "max"}, "scale: .*'mean' or 'one', got 'max'"),
        ("sign", {"scale": -1.0}, "scale: .*positive float32, got -1.0"),
        ("sign", {"scale": 1e39}, "positive float32"),
        ("sign", {"scale": True}, "scale: .*valid number, got True"),
        ("ternary", {"clip": 0}, "clip: .*greater than 0, got 0"),
        ("ternary", {"clip": float("nan")}, "clip: .*got nan"),
        ("lowrank", {"rank": 0}, "rank: .*greater than or equal to 1, got 0"),
        ("lowrank", {"rank": True}, "rank: .*valid integer, got True"),
    ],
)
def test_options_that_cannot_be(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recipe(values=RecipeChoice(name, options)).check()
