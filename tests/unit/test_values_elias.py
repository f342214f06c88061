"""QSGD in Elias codes: the same numbers as in codes of one length, in as many bits as they need."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from value_cases import SEED, Floats, same, vectors

from testbed.compress.base import Bytes, Sparse
from testbed.compress.layout import Layout
from testbed.compress.payload import HEADER_BYTES, decode, encode
from testbed.compress.values.qsgd import Qsgd, QsgdElias
from testbed.errors import WireError

torch = pytest.importorskip("torch")
SIZES = [0, 1, 8, 2047, 2048, 2049, 50_000]
OPTIONS = [{}, {"levels": 1}, {"levels": 127, "bucket": 8}, {"levels": 1, "bucket": 65536}]
A = Layout.whole("a", 1)


def omega(number: int) -> str:
    """Elias 1975, as text."""
    code = "0"
    while number > 1:
        code = f"{number:b}{code}"
        number = len(f"{number:b}") - 1
    return code


def stream(levels: Floats) -> Bytes:
    """The paper's Code_s of whole levels, bit by bit."""
    text, last = "", -1
    for place in np.flatnonzero(levels):
        text += omega(int(place) - last) + "01"[int(levels[place] < 0)]
        text += omega(int(abs(levels[place])))
        last = int(place)
    return np.packbits(np.array([*map(int, text)], np.uint8), bitorder="little")


def written(values: Floats, options: dict[str, int]) -> tuple[Bytes, Floats]:
    coding = QsgdElias(A, **options)
    section = np.full(coding.section_bytes(values.size), 0xA5, np.uint8)
    kept = coding.write(values, section, Random(SEED)).copy()
    return section[: coding.written_bytes(section)], kept


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_levels_in_other_bits(size: int, options: dict[str, int]) -> None:
    for kind, values in vectors(size).items():
        section, kept = written(values, options)
        fixed = Qsgd(A, **options)
        plain = np.empty(fixed.section_bytes(size), np.uint8)
        assert same(fixed.write(values, plain, Random(SEED)), kept), kind
        assert same(QsgdElias.read(section, size), kept), kind
        assert section.size <= QsgdElias(A, **options).section_bytes(size)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_stream_is_the_papers(options: dict[str, int]) -> None:
    section, kept = written(vectors(5000)["usual"], options)
    bucket, levels = options.get("bucket", 512), options.get("levels", 7)
    buckets = -(-5000 // bucket)
    head = section[: 12 + 4 * buckets]
    norms = head[12:].view("<f4").astype(np.float64).repeat(bucket)[:5000]
    whole = np.rint(kept * levels / np.where(norms > 0, norms, 1)).astype(np.float32)
    assert head[:12].view("<u4").tolist() == [bucket, levels, np.count_nonzero(whole)]
    assert np.array_equal(section[head.size :], stream(whole))


def test_a_message_is_as_long_as_its_stream() -> None:
    """The indices of a selection follow what was written, and few levels are few bytes."""
    values = torch.from_numpy(vectors(50_000)["usual"])
    coding = QsgdElias(A, levels=1, bucket=4096)
    indices = torch.arange(0, 50_000, 7)
    lengths = []
    for sparse in (Sparse(50_000, None, values), Sparse(50_000, indices, values[indices].clone())):
        sent = encode(sparse, coding, Random(SEED))
        read = decode(bytes(sent.payload), 50_000)
        assert torch.equal(read.values, sent.values)
        assert sparse.indices is None or torch.equal(read.indices, indices)
        lengths.append(len(sent.payload) - HEADER_BYTES)
    used = written(values.numpy(), {"levels": 1, "bucket": 4096})[0].size
    assert lengths[0] == used < 50_000 * 0.25 / 8  # of two bits each in codes of one length


@pytest.mark.parametrize(
    ("count", "section", "said"),
    [
        (3, "0800", "ends within"),
        (3, "07000000 07000000 00000000 00000040", "buckets of 7"),
        (3, "00000000 07000000 00000000 00000040", "in a value section of 16 B"),
        (3, "08000000 80000000 00000000 00000040", "128 levels"),
        (3, "08000000 07000000 04000000 00000040 00", "4 levels of 3"),
        (3, "08000000 07000000 00000000", "in a value section of 12 B"),
        (3, "08000000 07000000 01000000 00000040", "does not hold"),  # no stream
        (3, "08000000 07000000 01000000 00000040 02", "does not hold"),  # bits behind it
        (3, "08000000 07000000 01000000 00000040 0000", "does not hold"),  # a byte behind it
        (3, "08000000 07000000 01000000 00000040 07", "does not hold"),  # a distance above 3
        (3, "08000000 07000000 01000000 00000000 00", "do not fit"),  # a level of norm 0
        (3, "08000000 03000000 01000000 00000040 54", "does not hold"),  # level 4 of 3
    ],
)
def test_other_bytes_are_refused(count: int, section: str, said: str) -> None:
    with pytest.raises(WireError, match=said):
        QsgdElias.read(np.frombuffer(bytes.fromhex(section), np.uint8), count)


def test_bytes_that_are_right() -> None:
    """Distance 1, sign, level 7 = 10·111·0 in omega's groups; then distance 2 = 10·0, −, level 1."""
    text = "0" + "0" + omega(7) + omega(2) + "1" + omega(1)
    body = np.packbits(np.array([*map(int, text)], np.uint8), bitorder="little").tobytes()
    head = bytes.fromhex("08000000 07000000 02000000 00000040")
    read = QsgdElias.read(np.frombuffer(head + body, np.uint8), 4)
    assert read.tolist() == pytest.approx([2.0, 0.0, -2 / 7, 0.0])


def test_any_bytes_end_in_an_error_or_in_numbers() -> None:
    random, refused = np.random.default_rng(1), 0
    section, _ = written(vectors(300)["usual"], {})
    for _ in range(300):
        damaged = section.copy()
        damaged[random.integers(8, damaged.size, 3)] ^= np.uint8(1 << random.integers(8))
        try:
            assert QsgdElias.read(damaged, 300).shape == (300,)
        except WireError:
            refused += 1
    assert refused > 100
