"""Threshold quantisation with several fixed thresholds."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from value_cases import Floats, same, vectors

from testbed.compatibility import resolve
from testbed.compress.base import Bytes, Recipe, RecipeChoice
from testbed.compress.layout import Layout
from testbed.compress.values.thresholds import Thresholds
from testbed.errors import InputError, WireError

LEVELS = [[0.5], [0.5, 1.0, 2.0], [0.1 * number for number in range(1, 128)], [1e-41, 1e38]]


def expected(values: Floats, levels: list[float]) -> Floats:
    """By search, as numpy does it."""
    steps = np.array([0.0, *levels], np.float32)
    at = np.searchsorted(steps[1:], np.abs(values), side="right")
    kept: Floats = np.where(at > 0, np.sign(values), np.float32(0)) * steps[at]
    return kept + np.float32(0.0)


@pytest.mark.parametrize("levels", LEVELS, ids=len)
@pytest.mark.parametrize("size", [0, 1, 7, 2048, 5000])
def test_the_greatest_threshold_that_is_reached(size: int, levels: list[float]) -> None:
    for kind, values in vectors(size).items():
        coding = Thresholds(Layout.whole("w", size), levels=levels)
        section = np.full(coding.section_bytes(size), 0xA5, np.uint8)
        kept = coding.write(values, section, Random(0))
        assert same(kept + np.float32(0.0), expected(values, levels)), kind
        assert same(Thresholds.read(section, size), kept), kind
        bits = int(np.ceil(np.log2(2 * len(levels) + 1)))
        assert section.size == 4 + 4 * len(levels) + -(-size * bits // 8)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("00000000", "0 thresholds"),
        ("80000000", "128 thresholds"),
        ("01000000 0000003f", "of 8 B where 3"),
        ("01000000 00000000 15", "do not ascend"),
        ("02000000 0000803f 0000003f 9200", "do not ascend"),
        ("01000000 0000807f 15", "not finite"),
        ("01000000 0000003f 17", "of no threshold"),
        ("01000000 0000003f 55", "after the last value"),
    ],
)
def test_other_bytes_are_refused(section: str, said: str) -> None:
    with pytest.raises(WireError, match=said):
        Thresholds.read(np.frombuffer(bytes.fromhex(section), np.uint8), 3)


def test_bytes_that_are_right() -> None:
    section: Bytes = np.frombuffer(bytes.fromhex("020000000000003f0000803fcc04"), np.uint8)
    assert Thresholds.read(section, 4).tolist() == [1.0, -0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("levels", "said"), [([], "at least 1"), ([2.0, 1.0], "do not ascend"), ([0.0], "positive")]
)
def test_thresholds_that_cannot_be(levels: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recipe(values=RecipeChoice("thresholds", {"levels": levels})).check()


def test_the_pattern_sends_what_reaches_the_least() -> None:
    row = resolve("thresholds-0.25")
    assert row.selector_options == {"at": 0.25}
    assert row.values_options == {"levels": [0.25, 0.5, 1.0]}
    assert row.memory == "feedback"
