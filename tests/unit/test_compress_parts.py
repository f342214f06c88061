"""Small parts of compression by hand: layouts, shards, memory that grows, options, and where a gradient is no number."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from testbed.compress.aggregate import DeviceSupport, HostSupport
from testbed.compress.base import BufferPool, PayloadBuffer, Selection
from testbed.compress.compressor import Compressor, EncodedBucket, together
from testbed.compress.gradient_stats import element_count, error_curve, refuse, stride
from testbed.compress.layout import Layout, Part, cut, in_buckets
from testbed.compress.memory import join_parameters, key, parameters_of, split_by_parameter
from testbed.errors import GradientError, InputError

LAYOUT = Layout.of([("a.w", (3, 2, 2)), ("a.b", (3,)), ("c", ()), ("d.w", (2, 5))])


def test_parts_follow_one_another() -> None:
    assert [(part.offset, part.size, part.rows) for part in LAYOUT] == [
        (0, 12, (3, 4)), (12, 3, (1, 3)), (15, 1, (1, 1)), (16, 10, (2, 5)),
    ]  # fmt: skip
    assert LAYOUT.size == 26
    assert (Layout(()).size, Layout.whole("x", 9).size) == (0, 9)
    assert [LAYOUT.at(position).name for position in (0, 11, 12, 14, 15, 16, 25)] == [
        "a.w", "a.w", "a.b", "a.b", "c", "d.w", "d.w",
    ]  # fmt: skip
    layers = LAYOUT.layers()
    assert [(layer.name, layer.begin, layer.end) for layer in layers] == [
        ("a", 0, 15), ("", 15, 16), ("d", 16, 26),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'b' begins at 3 where 2 is next"):
        Layout((Part("a", 0, (2,)), Part("b", 3, (2,))))


def test_vectors_go_by_the_names_of_parameters() -> None:
    flat = torch.arange(26.0)
    apart = split_by_parameter(flat, LAYOUT, "v")
    assert list(apart) == ["a.w/v", "a.b/v", "c/v", "d.w/v"]
    assert apart["a.w/v"].shape == (3, 2, 2) and apart["c/v"].shape == ()
    assert apart["a.b/v"].tolist() == [12.0, 13.0, 14.0]
    back = join_parameters(apart, LAYOUT, "v")
    assert back is not None and torch.equal(back, flat)
    some = join_parameters({"a.b/v": torch.ones(3)}, LAYOUT, "v")
    assert some is not None and some.nonzero().flatten().tolist() == [12, 13, 14]
    assert join_parameters(apart, LAYOUT) is None
    assert (key("a", ""), key("a", "v")) == ("a", "a/v")
    assert parameters_of(["a.w", "a.w/v", "x", "x/v", "a.w/v/u"], {"a.w"}) == ["a.w", "a.w/v"]
    with pytest.raises(InputError, match="'c' has 1 elements, and 2 of it were remembered"):
        join_parameters({"c": torch.ones(2)}, LAYOUT)


@pytest.mark.parametrize(
    ("size", "density", "count"),
    [(10, 1.0, 10), (10, 0.25, 2), (10, 0.35, 4), (10, 0.01, 1), (3, 0.5, 2), (1, 0.1, 1)],
)
def test_a_density_is_a_number_of_elements_and_at_least_one(
    size: int, density: float, count: int
) -> None:
    assert element_count(size, density) == count


@pytest.mark.parametrize("density", [0.0, -0.1, 1.0000001, float("nan")])
def test_densities_are_above_nothing_and_at_most_all(density: float) -> None:
    with pytest.raises(InputError, match="outside"):
        element_count(10, density)


def test_where_a_gradient_is_no_number_is_told_by_parameter_and_element() -> None:
    flat = torch.zeros(26)
    refuse(flat, LAYOUT)
    flat[14], flat[20] = float("inf"), float("nan")
    with pytest.raises(GradientError, match=r"'a.b' holds inf at element 2 \(2 such elements"):
        refuse(flat, LAYOUT)
    places = torch.tensor([0, 17])
    with pytest.raises(GradientError, match=r"the mean of 'd.w' holds nan at element 1 \(1 such"):
        refuse(torch.tensor([1.0, float("nan")]), LAYOUT, places, "mean")


def test_memory_grows_by_an_eighth_more_than_is_asked_for_and_is_kept() -> None:
    scratch, buffer = BufferPool(), PayloadBuffer()
    first = scratch.array("x", 80, np.float32)
    assert (first.size, first.base.size) == (80, 90)
    assert scratch.array("x", 90, np.float32).base is first.base
    assert scratch.array("x", 91, np.float32).base is not first.base
    assert scratch.room("y")(3).dtype == np.float32
    taken = buffer.take(80)
    assert (len(taken), len(taken.obj)) == (80, 90)
    assert buffer.take(90).obj is taken.obj
    assert buffer.take(91).obj is not taken.obj


def test_shards_end_between_rows() -> None:
    """26 elements over two: the cut at 13 is moved to where a row ends; over four likewise."""
    assert [(shard.begin, shard.end) for shard in cut(LAYOUT, 2)] == [(0, 13), (13, 26)]
    assert [shard.span for shard in cut(LAYOUT, 1)] == [slice(0, 26)]
    four = cut(LAYOUT, 4)
    assert [(shard.begin, shard.end) for shard in four] == [(0, 8), (8, 13), (13, 21), (21, 26)]
    assert [shard.name for shard in four] == ["shard-0", "shard-1", "shard-2", "shard-3"]
    assert [(part.name, part.shape) for part in four[0].layout] == [("a.w[0:2]", (2, 2, 2))]
    assert [(part.name, part.shape) for part in four[1].layout] == [
        ("a.w[2:3]", (1, 2, 2)), ("a.b[0:1]", (1,)),
    ]  # fmt: skip
    assert [(part.name, part.shape) for part in four[2].layout] == [
        ("a.b[1:3]", (2,)), ("c", ()), ("d.w[0:1]", (1, 5)),
    ]  # fmt: skip
    matrix = Layout.of([("m", (3, 100)), ("b", (1,))])
    assert [shard.begin for shard in cut(matrix, 4)] == [0, 100, 200, 300]
    with pytest.raises(InputError, match="301 parameters cannot be spread over 5 servers"):
        cut(matrix, 5)


def test_buckets_close_when_they_have_their_bytes() -> None:
    """Layers of 15, 1 and 10 elements, from the last on: 40 B, 4 B, 60 B."""
    spans = {
        least: [(b.begin, b.end, b.name) for b in in_buckets(LAYOUT, least)]
        for least in (40, 41, 45, 1000)
    }
    assert spans[40] == [(16, 26, "bucket-0"), (0, 16, "bucket-1")]
    assert spans[41] == [(15, 26, "bucket-0"), (0, 15, "bucket-1")]
    assert spans[45] == spans[1000] == [(0, 26, "bucket-0")]


@pytest.mark.parametrize("size", [1, 64, 65, 130])
def test_a_set_of_elements_is_the_same_on_host_and_device(size: int) -> None:
    for made in (HostSupport(size), DeviceSupport(size, torch.device("cpu"))):
        assert (made.count(), made.indices().tolist()) == (0, [])
        made.add(torch.tensor([0, size - 1]).unique())
        made.add(torch.tensor([size // 2]))
        expected = sorted({0, size // 2, size - 1})
        assert (made.count(), made.indices().tolist()) == (len(expected), expected)
        assert made.count() == len(expected)
        made.clear()
        assert (made.count(), made.indices().tolist()) == (0, [])


def test_messages_together_took_the_passes_of_their_elements() -> None:
    def packed(size: int, how: Selection | None) -> EncodedBucket:
        return EncodedBucket(memoryview(b""), size, 1, how)

    one, two = packed(100, Selection(3.0, 0.5, 2)), packed(300, Selection(1.0, 0.25, 5))
    assert together([one]) == one.selection
    assert together([one, two]) == Selection((100 * 3.0 + 300 * 1.0) / 400, None, 7)
    assert together([one, packed(5, None)]) is None
    empty = together([packed(0, Selection(3.0)), packed(0, Selection(1.0))])
    assert empty == Selection(0.0)


def test_a_message_is_itemised_by_parameter_from_its_first_element_to_its_last() -> None:
    """Sent are the first elements of all four parameters, and the last ones of two."""
    compressor, flat = Compressor.named("topk", "none", {"all": LAYOUT}), torch.zeros(26)
    compressor.itemise = True
    places = [0, 11, 12, 15, 16, 25]
    flat[places] = torch.arange(1.0, 7.0)
    packed = compressor.compress("all", flat, 6 / 26, Random(0))
    assert [share.count for share in packed.parts] == [2, 1, 1, 2]
    length = len(packed.payload)
    assert [share.bytes for share in packed.parts] == [length * n / 6 for n in (2, 1, 1, 2)]
    whole = compressor.compress("all", flat, 1.0, Random(0))
    assert [share.count for share in whole.parts] == [part.size for part in LAYOUT]


def test_a_curve_looks_at_every_s_th_element_with_an_s_prime_to_the_length() -> None:
    """At most 4096 of them: 2 would do for 8192, but shares a factor; 3 does not."""
    assert [stride(size) for size in (1, 4096, 4097, 8192, 8193)] == [1, 1, 2, 3, 4]
    assert stride(3 * 4096) == 5


def test_a_curve_by_hand() -> None:
    """Squares 16, 9, 4, 1 of 30: of four elements 1, 2, 3 and 4 are sent."""
    vector = torch.tensor([1.0, -4.0, 2.0, 3.0])
    found = error_curve(vector, [1.0, 0.75, 0.5, 0.25, 0.01])
    assert found == pytest.approx([30.0, 0.0, 1 / 30, 5 / 30, 14 / 30, 14 / 30])
    assert error_curve(torch.zeros(3), [1.0, 0.5]) == [0.0, 0.0, 0.0]
    with pytest.raises(GradientError, match="the energy of 1 elements is nan"):
        error_curve(torch.tensor([float("nan")]), [1.0])
