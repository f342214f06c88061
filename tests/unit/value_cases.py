"""Every value coding with the options that tests use, and vectors to write with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from testbed.compress.base import Bytes, Floats, Values
from testbed.compress.layout import Layout
from testbed.compress.values.floats import Bf16, Fp16
from testbed.compress.values.int8 import Int8
from testbed.compress.values.lowrank import LowRank
from testbed.compress.values.maxmin import MaxMin
from testbed.compress.values.natural import Natural
from testbed.compress.values.qsgd import Qsgd
from testbed.compress.values.sign import OneBit, Sign
from testbed.compress.values.ternary import Ternary

SEED = 5
MATRICES = [
    ("a", (3, 5)),
    ("b", (64, 3, 9)),
    ("c", (10,)),
    ("d", (100, 80)),
    ("e", ()),
    ("f", (9, 40)),
]
MIXED = Layout.of(MATRICES)
"""Matrices, two of them too small for some ranks, a vector and a scalar."""
SHAPES = [part.rows for part in MIXED]


@dataclass(frozen=True)
class Case:
    """A class with its options; ``told``: those that its reference takes."""

    name: str
    kind: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] | None = None
    shaped: bool = False
    draws: bool = False

    def make(self, size: int) -> Values:
        """For a vector of ``size``."""
        layout = MIXED if self.shaped else Layout.whole("w", size)
        made: Values = self.kind(layout, **self.options)
        return made

    @property
    def reference(self) -> Mapping[str, Any]:
        """Options of the reference."""
        return self.options if self.told is None else self.told

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.options.values())])


CASES = [
    Case("fp16", Fp16),
    Case("bf16", Bf16),
    Case("int8", Int8),
    Case("int8", Int8, {"bucket": 8}),
    Case("onebit", OneBit),
    Case("sign", Sign),
    Case("sign", Sign, {"scale": "one"}, {"scale": 1.0}),
    Case("sign", Sign, {"scale": 0.01}),
    Case("ternary", Ternary, draws=True),
    Case("ternary", Ternary, {"clip": None}, draws=True),
    Case("qsgd", Qsgd, draws=True),
    Case("qsgd", Qsgd, {"levels": 1}, draws=True),
    Case("qsgd", Qsgd, {"levels": 20, "bucket": 16}, draws=True),
    Case("qsgd", Qsgd, {"levels": 127, "bucket": 4096}, draws=True),
    Case("natural", Natural, draws=True),
    Case("maxmin", MaxMin),
    Case("maxmin", MaxMin, {"bits": 1, "bucket": 8}),
    Case("maxmin", MaxMin, {"bits": 3, "bucket": 64}),
    Case("maxmin", MaxMin, {"bits": 8}),
    Case("maxmin", MaxMin, {"bits": 5, "rounding": "stochastic"}, draws=True),
]
SHAPED = [
    Case("onebit", OneBit, {"per": "row"}, {"shapes": SHAPES}, shaped=True),
    Case("lowrank", LowRank, {}, {"shapes": SHAPES, "ordered": True}, shaped=True),
    Case(
        "lowrank", LowRank, {"rank": 1}, {"shapes": SHAPES, "rank": 1, "ordered": True}, shaped=True
    ),
    Case(
        "lowrank", LowRank, {"rank": 5}, {"shapes": SHAPES, "rank": 5, "ordered": True}, shaped=True
    ),
]
"""For vectors of the layout ``MIXED``."""


def vectors(size: int) -> dict[str, Floats]:
    """Float32 (size,) of many kinds, all finite."""
    random = np.random.default_rng(size)
    usual = random.laplace(size=size).astype(np.float32)
    wide = random.laplace(size=size) * np.exp(30 * random.standard_normal(size))
    zeros = usual.copy()
    zeros[::3], zeros[1::3] = 0.0, -0.0
    return {
        "usual": usual,
        "denormal": usual * np.float32(1e-41),
        "huge": np.clip(usual.astype(np.float64) * 1e38, -3.4e38, 3.4e38).astype(np.float32),
        "wide": np.clip(wide, -3.4e38, 3.4e38).astype(np.float32),
        "with zeros": zeros,
        "all zero": np.zeros(size, np.float32),
        "all equal": np.full(size, -0.3, np.float32),
        "one alone": np.where(np.arange(size) == size // 2, 1e-3, 0.0).astype(np.float32),
    }


def written(coding: Values, values: Floats, seed: int = SEED) -> tuple[Bytes, Floats]:
    """The section, and a copy of what the coding says will be read."""
    section = np.full(coding.section_bytes(values.size), 0xA5, np.uint8)
    return section, coding.write(values, section, Random(seed)).copy()


def same(first: Floats, second: Floats) -> bool:
    """Bit by bit."""
    return first.dtype == second.dtype == np.float32 and bytes(first.data) == bytes(second.data)
