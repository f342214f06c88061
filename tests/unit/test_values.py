"""Value codings against their references in PyTorch, and what every one of them must hold to."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from random import Random

import numpy as np
import pytest
import torch
from random_reference import uniforms
from value_cases import CASES, MIXED, SEED, SHAPED, Case, same, vectors, written

from testbed.bench.reference import DECODE, ENCODE, Draw
from testbed.compress.base import codings
from testbed.compress.builtin import coding_of
from testbed.compress.kernels import compilation
from testbed.compress.kernels.compilation import CHUNK

every = pytest.mark.parametrize("case", CASES, ids=str)
every_one = pytest.mark.parametrize("case", [*CASES, *SHAPED], ids=str)
SIZES = [1, 2, 7, 8, 9, 511, 512, 513, 5000]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def hashed(seed: int) -> Draw:
    """Return a function that draws what the loops draw from a seed."""

    def draw(count: int) -> torch.Tensor:
        return torch.from_numpy(uniforms(seed, count))

    return draw


def compare(case: Case, values: np.ndarray, kind: str) -> None:
    """Section and values read are those of the reference; nothing else is touched."""
    coding, before = case.make(values.size), values.copy()
    section, kept = written(coding, values)
    assert same(values, before), f"{kind}: the values were changed"
    draw = hashed(Random(SEED).getrandbits(64))
    expected = ENCODE[case.name](torch.from_numpy(values), draw, **case.reference).numpy()
    assert np.array_equal(section, expected), f"{kind}: another section"
    read = type(coding).read(section, values.size)
    assert same(read, kept), f"{kind}: other values are read than were promised"
    theirs = DECODE[case.name](torch.from_numpy(section), values.size).numpy()
    assert np.array_equal(read, theirs), f"{kind}: other values"
    assert np.isfinite(read).all(), f"{kind}: not finite"


@every
@pytest.mark.parametrize("size", SIZES)
def test_bit_for_bit_like_the_reference(case: Case, size: int) -> None:
    for kind, values in vectors(size).items():
        compare(case, values, kind)


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_shaped_ones_like_the_reference(case: Case) -> None:
    for kind, values in vectors(MIXED.size).items():
        compare(case, values, kind)


@every
def test_across_chunks(case: Case) -> None:
    values = vectors(CHUNK + 12_345)
    for kind in ("usual", "wide"):
        compare(case, values[kind], kind)


@every
def test_any_number_of_threads(case: Case) -> None:
    values = np.random.default_rng(1).laplace(size=4 * CHUNK + 77).astype(np.float32)
    alone, kept = written(case.make(values.size), values)
    torch.set_num_threads(3)
    together, others = written(case.make(values.size), values)
    assert np.array_equal(alone, together)
    assert same(kept, others)
    assert same(kept, case.kind.read(alone, values.size))


@every
def test_nothing_at_all(case: Case) -> None:
    coding = case.make(0)
    section, kept = written(coding, np.empty(0, np.float32))
    assert kept.shape == (0,)
    assert case.kind.read(section, 0).shape == (0,)


@every_one
def test_any_address_and_bytes_that_cannot_be_written_to(case: Case) -> None:
    values = vectors(MIXED.size)["usual"]
    section, kept = written(case.make(values.size), values)
    room = np.full(section.size + 3, 0xA5, np.uint8)
    moved = room[1 : 1 + section.size]
    assert same(case.make(values.size).write(values, moved, Random(SEED)), kept)
    assert np.array_equal(moved, section)
    assert room[0] == 0xA5
    assert (room[1 + section.size :] == 0xA5).all()
    assert same(case.kind.read(moved, values.size), kept)
    frozen = np.frombuffer(section.tobytes(), np.uint8)
    assert same(case.kind.read(frozen, values.size), kept)
    values.flags.writeable = False
    assert np.array_equal(written(case.make(values.size), values)[0], section)


@every_one
def test_buffers_are_kept(case: Case) -> None:
    coding, places = case.make(MIXED.size), set()
    section = np.empty(coding.section_bytes(MIXED.size), np.uint8)
    for seed in range(3):
        values = vectors(MIXED.size)["usual"] * np.float32(1 + seed)
        places.add(coding.write(values, section, Random(seed)).__array_interface__["data"][0])
    assert len(places) == 1


@every_one
def test_a_seed_decides(case: Case) -> None:
    values = vectors(MIXED.size)["usual"]
    first, _ = written(case.make(values.size), values, seed=1)
    again, _ = written(case.make(values.size), values, seed=1)
    other, _ = written(case.make(values.size), values, seed=2)
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (not case.draws and case.name != "lowrank")


@every_one
def test_zero_is_kept_where_it_says_so(case: Case) -> None:
    for kind in ("with zeros", "one alone"):
        values = vectors(MIXED.size)[kind]
        _, kept = written(case.make(values.size), values)
        if case.kind.keeps_zero:
            assert not kept[values == 0.0].any(), kind


def test_numbers_on_the_wire() -> None:
    numbers = {case.name: case.kind.code for case in (*CASES, *SHAPED)}
    assert numbers == {
        "fp16": 1, "bf16": 2, "int8": 3, "onebit": 4, "sign": 5,
        "ternary": 6, "qsgd": 7, "natural": 8, "maxmin": 9, "lowrank": 10,
    }  # fmt: skip
    for case in (*CASES, *SHAPED):
        assert codings.get(case.name) is case.kind is coding_of(case.kind.code)


def test_nothing_is_compiled_after_the_warm_up() -> None:
    compilation.all()
    before = compiled()
    assert len(before) > 20
    for case in (*CASES, *SHAPED):
        section, _ = written(case.make(MIXED.size), vectors(MIXED.size)["usual"])
        case.kind.read(section, MIXED.size)
    assert compiled() == before


def compiled() -> dict[str, int]:
    """How many kinds of arguments every loop has been compiled for."""
    found = {}
    for name in ("float_codecs", "bit_packing", "sign_codecs", "lowrank"):
        module = import_module(f"testbed.compress.kernels.{name}")
        found |= {
            f"{name}.{loop}": len(held.signatures)
            for loop, held in vars(module).items()
            if hasattr(held, "signatures")
        }
    return found
