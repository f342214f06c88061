"""What ``read`` does with bytes: documented ones, damaged ones and any others."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from value_cases import CASES, MIXED, SHAPED, Case, same, vectors, written

from testbed.compress.base import Bytes, Floats
from testbed.compress.layout import Layout
from testbed.compress.values.floats import Bf16, Fp16
from testbed.compress.values.int8 import Int8
from testbed.compress.values.lowrank import LowRank
from testbed.compress.values.maxmin import MaxMin
from testbed.compress.values.natural import Natural
from testbed.compress.values.qsgd import Qsgd
from testbed.compress.values.sign import OneBit, Sign
from testbed.compress.values.ternary import Ternary
from testbed.errors import WireError

EVERY = [*CASES, *SHAPED]
STABLE = [case for case in EVERY if not case.draws and case.name != "lowrank"]
every = pytest.mark.parametrize("case", EVERY, ids=str)
KINDS: list[Any] = list({case.kind: None for case in EVERY})

GOLDEN: list[tuple[Any, str, list[float]]] = [
    (Fp16, "003c 00c0 0100 ff7b", [1.0, -2.0, 2**-24, 65504.0]),
    (Bf16, "803f 00c0", [1.0, -2.0]),
    (Int8, "08000000 0000fe42 7f 81 00", [127.0, -127.0, 0.0]),
    (OneBit, "00000000 00004040 000080bf 0a", [3.0, -1.0, 3.0, -1.0]),
    (OneBit, "01000000 02000000 01000000 00000040 00000000 00000000 000080bf 02", [2.0, -1.0]),
    (Sign, "0000003f 05", [-0.5, 0.5, -0.5]),
    (Ternary, "0000003f a7 01", [-0.5, 0.5, 0.0, 0.0, -0.5, 0.5]),
    (Qsgd, "08000000 07000000 00000040 e0 06", [-2.0, 2.0, -2 / 7]),
    (Natural, "00 7f ff 00 01", [1.0, -1.0, 0.0, 2.0**-126]),
    (Natural, "01 7f", [2.0]),
    (MaxMin, "08000000 02000000 000080bf 00000040 38", [-1.0, 1.0, 2.0]),
    (
        LowRank,
        "02000000 01000000 01000000 00000000 05000000 06000000 01000000 00004040"
        "0000803f 00000000 00000000 00000000 00000000"
        "0000803f 00000040 00000000 00000000 00000000 00000000",
        [3.0, 1.0, 2.0, *[0.0] * 28],
    ),
]
"""Bytes as ``docs/reference/values.md`` has them, and what they say."""

REFUSED: list[tuple[Any, int, str, str]] = [
    (Fp16, 1, "007c", "not finite"),
    (Fp16, 1, "01fe", "not finite"),
    (Bf16, 1, "807f", "not finite"),
    (Int8, 1, "07000000 0000fe42 7f", "buckets of 7"),
    (Int8, 1, "00000000 0000fe42 7f", "buckets of 0"),
    (Int8, 1, "00001000 0000fe42 7f", "buckets of 1048576"),
    (Int8, 1, "08000000 0000807f 7f", "not finite"),
    (Int8, 1, "08000000 0000fec2 7f", "below 0"),
    (Int8, 1, "08000000 00000080 00", "below 0"),
    (Int8, 1, "08000000 0000fe42 7e", "do not fit"),
    (Int8, 1, "08000000 0000fe42 80", "do not fit"),
    (Int8, 1, "08000000 00000000 01", "do not fit"),
    (Int8, 1, "0800", "ends within"),
    (OneBit, 2, "00000000 00004040 000080bf 0a", "after the last value"),
    (OneBit, 2, "00000000 000040c0 000080bf 02", "wrong sign"),
    (OneBit, 2, "00000000 00004040 0000803f 02", "wrong sign"),
    (OneBit, 2, "00000000 00004040 00000080 02", "below 0"),
    (OneBit, 2, "00000000 00004040 000080bf 00", "without values"),
    (OneBit, 2, "00000000 00004040 000080bf 03", "without values"),
    (OneBit, 2, "01000000 02000000 02000000 00000040 00000000 00000000 000080bf 02", "not of 2"),
    (OneBit, 2, "01000000 00000000 02000000 00000040 00000000 00000000 000080bf 02", "not of 2"),
    (OneBit, 2, "ffffffff 02000000", "4294967295 matrices"),
    (OneBit, 2, "01000000 ffffffff ffffffff 00000000", "not of 2"),
    (Sign, 3, "0000003f 0d", "after the last value"),
    (Sign, 3, "000000bf 05", "below 0"),
    (Sign, 3, "00000000 05", "have signs"),
    (Ternary, 5, "0000003f f3", "five ternary digits"),
    (Ternary, 4, "0000003f 51", "not all of them are used"),
    (Ternary, 5, "00000000 01", "have signs"),
    (Ternary, 5, "0000c0ff 01", "not finite"),
    (Qsgd, 2, "08000000 07000000 00000040 f0", "do not fit"),
    (Qsgd, 2, "08000000 07000000 00000000 70", "do not fit"),
    (Qsgd, 2, "08000000 00000000 00000040 00", "0 levels"),
    (Qsgd, 2, "08000000 80000000 00000040 00", "128 levels"),
    (Qsgd, 1, "08000000 07000000 00000040 17", "after the last value"),
    (Natural, 1, "00 80", "−0"),
    (Natural, 1, "80 7f", "beyond float32"),
    (Natural, 1, "01 7d", "lower than"),
    (MaxMin, 2, "08000000 09000000 000080bf 00000040 0f00", "codes of 9 bits"),
    (MaxMin, 2, "08000000 00000000 000080bf 00000040", "codes of 0 bits"),
    (MaxMin, 2, "08000000 02000000 00000040 000080bf 0c", "above its greatest"),
    (MaxMin, 2, "08000000 02000000 000080bf 00000040 08", "do not fit"),
    (MaxMin, 2, "08000000 02000000 000080bf 000080bf 0c", "do not fit"),
    (MaxMin, 2, "08000000 02000000 000080bf 00000040 1c", "after the last value"),
    (LowRank, 1, "01000000 01000000 01000000 00000000 0000c07f", "not finite"),
    (LowRank, 4, "01000000 02000000 02000000 01000000" + "00000000" * 4, "longer in factors"),
    (LowRank, 9, "01000000 03000000 03000000 01000000 0000c03f" + "00000000" * 5, "out of range"),
    (
        LowRank,
        9,
        "01000000 03000000 03000000 01000000" + "00000000" * 5 + "ffff7f7f",
        "out of range",
    ),
    (
        LowRank,
        9,
        "01000000 03000000 03000000 01000000" + "00000000" * 5 + "0000c07f",
        "out of range",
    ),
    (LowRank, 1, "00000000", "not of 1 values"),
]


def from_hex(text: str) -> Bytes:
    return np.frombuffer(bytes.fromhex(text), np.uint8).copy()


def read_or_refuse(kind: Any, section: Bytes, count: int) -> Floats | None:
    """None where it is refused; nothing but WireError may be raised, and all that is read is finite."""
    before = section.copy()
    try:
        read: Floats = kind.read(section, count)
    except WireError:
        return None
    finally:
        assert np.array_equal(section, before), "the section was changed"
    assert read.dtype == np.float32
    assert read.shape == (count,)
    assert np.isfinite(read).all()
    return read


@pytest.mark.parametrize(("kind", "text", "expected"), GOLDEN)
def test_documented_bytes(kind: Any, text: str, expected: list[float]) -> None:
    section = from_hex(text)
    read = kind.read(section, len(expected))
    assert np.array_equal(read, np.array(expected, np.float32))


def test_documented_bytes_are_written() -> None:
    for kind, text, expected in GOLDEN:
        options: dict[str, Any] = {"bucket": 8} if kind in (Int8, MaxMin) else {}
        layout = Layout.whole("w", len(expected))
        if kind is MaxMin:
            options["bits"] = 2
        if kind is OneBit and len(expected) == 2:
            options, layout = {"per": "row"}, Layout.of([("m", (2, 1))])
        if kind in (Qsgd, Ternary, Natural, LowRank):
            continue  # they draw
        section, _ = written(kind(layout, **options), np.array(expected, np.float32))
        assert np.array_equal(section, from_hex(text)), kind


@pytest.mark.parametrize(("kind", "count", "text", "said"), REFUSED)
def test_refused(kind: Any, count: int, text: str, said: str) -> None:
    with pytest.raises(WireError, match=said):
        kind.read(from_hex(text), count)


@every
def test_other_lengths_and_counts_are_refused(case: Case) -> None:
    values = vectors(MIXED.size)["usual"]
    section, _ = written(case.make(values.size), values)
    longer = np.append(section, np.zeros(1, np.uint8))
    for wrong in (section[:-1], longer, section[:3], section[:0]):
        with pytest.raises(WireError):
            case.kind.read(wrong, values.size)
    for count in (values.size - 9, values.size + 9, 2**40):
        with pytest.raises(WireError):
            case.kind.read(section, count)


@pytest.mark.parametrize("kind", KINDS)
@given(st.binary(max_size=60), st.integers(0, 40))
@settings(max_examples=examples(150), deadline=None)
def test_any_bytes(kind: Any, data: bytes, count: int) -> None:
    read_or_refuse(kind, np.frombuffer(data, np.uint8), count)


@pytest.mark.parametrize("case", CASES, ids=str)
@given(st.integers(1, 30), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_damaged_sections(case: Case, count: int, data: st.DataObject) -> None:
    values = np.random.default_rng(count).laplace(size=count).astype(np.float32)
    section, _ = written(case.make(count), values)
    place = data.draw(st.integers(0, section.size - 1))
    section[place] ^= data.draw(st.integers(1, 255))
    read_or_refuse(case.kind, section, count)


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_damaged_shapes(case: Case) -> None:
    values, random = vectors(MIXED.size)["usual"], Random(1)
    section, _ = written(case.make(values.size), values)
    for place in [*range(80), *(random.randrange(section.size) for _ in range(100))]:
        damaged = section.copy()
        damaged[place] ^= random.randrange(1, 256)
        read_or_refuse(case.kind, damaged, values.size)


@pytest.mark.parametrize("case", STABLE, ids=str)
def test_what_is_read_is_written_the_same_way(case: Case) -> None:
    for kind, values in vectors(MIXED.size).items():
        if kind == "denormal":
            continue  # levels may be finer than float32 is there
        section, kept = written(case.make(values.size), values)
        again, kept_again = written(case.make(values.size), case.kind.read(section, values.size))
        assert np.array_equal(again, section), kind
        assert same(kept_again, kept), kind


HUGE = [
    struct.pack("<I", 2**32 - 1),
    struct.pack("<II", 8, 4),
    struct.pack("<III", 1, 2**32 - 1, 2**32 - 1),
    struct.pack("<III", 1, 2**20, 2**20),
    struct.pack("<IIII", 1, 2**20, 2**20, 1),
    struct.pack("<IIIIIII", 2, 2**32 - 1, 1, 0, 1, 2**32 - 1, 64),
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_bytes_take_more_memory_than_they_must(kind: Any) -> None:
    """A hundred bytes that speak of billions."""
    tracemalloc.start()
    try:
        for head in HUGE:
            for count in (2**40, 2**32 - 1, 1000):
                section = np.frombuffer(head.ljust(100, b"\0"), np.uint8)
                read_or_refuse(kind, section, count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
