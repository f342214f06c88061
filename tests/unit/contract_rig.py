"""What the tests of compression's contract run over: every selector, value coding and memory there is."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
import torch

from testbed.compress.base import Recipe, RecipeChoice, codings, memories, needs_all, selectors
from testbed.compress.compressor import Compressor, EncodedBucket
from testbed.compress.layout import Layout
from testbed.compress.payload import payload_bytes

NEEDED: dict[str, dict[str, Any]] = {"threshold": {"at": 0.5}}
"""Options without which a selector cannot be made."""


AS_FEEDBACK: dict[str, dict[str, Any]] = {"feedback": {}, "dgc": {"momentum": 0.0}}
"""Memories that are error feedback with these options."""


WITH_EVERY_SELECTOR = ("int8", "onebit")


WITH_EVERY_CODING = ("dense", "topk")


MODEL = Layout.of([("conv.weight", (10, 5)), ("conv.bias", (10,)), ("head.weight", (4, 10))])
"""100 elements in three parameters."""


SMALL = Layout.of([("conv.weight", (4, 5)), ("conv.bias", (4,)), ("head.weight", (2, 8))])
"""40 elements in three parameters."""
HALVES = {
    "first": Layout.of([("conv.weight", (4, 5))]),
    "second": Layout.of([("conv.bias", (4,)), ("head.weight", (2, 8))]),
}
"""``SMALL`` in two buckets."""


LARGE = Layout.of([("conv.weight", (40, 40)), ("conv.bias", (40,)), ("head.weight", (10, 40))])
"""2040 elements: enough for selectors to sample, to fit, and to learn from step to step."""


def recipe(selector: str, values: str, memory: str) -> Recipe:
    return Recipe(
        RecipeChoice(selector, NEEDED.get(selector, {})), RecipeChoice(values), RecipeChoice(memory)
    )


def combinations() -> Iterator[Any]:
    """Every selector with every memory and some codings; every coding with every memory and some selectors."""
    made = {
        *product(selectors, ("fp32",), memories),
        *product(selectors, WITH_EVERY_SELECTOR, ("feedback",)),
        *product(WITH_EVERY_CODING, codings, memories),
    }
    for selector, values, memory in sorted(made):
        if selector == "dense" or not needs_all(codings.get(values)):
            yield pytest.param(recipe(selector, values, memory), id=f"{selector}-{values}-{memory}")


ALL = list(combinations())


def random_vector(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def received(compressor: Compressor, packed: EncodedBucket, name: str = "all") -> torch.Tensor:
    out = torch.full((packed.size,), 7.0)
    compressor.decompress(name, packed.payload, out)
    return out


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file, weights_only=True)
    return read


def messages(
    compressor: Compressor, rng: Random, steps: Sequence[int], size: int = MODEL.size
) -> list[bytes]:
    return [
        bytes(compressor.compress("all", random_vector(size, step), 0.1, rng).payload)
        for step in steps
    ]


def predicted(made: Recipe, packed: EncodedBucket, seeded: bool) -> int:
    """The length of a payload, from the numbers in its record alone."""
    values = made.make_values(Layout.whole("all", packed.size))
    return payload_bytes(
        packed.size,
        packed.count,
        values.section_bytes,
        keeps_zero=values.keeps_zero,
        seeded=seeded,
    )
