"""Sums of sparse messages."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_rig import whole

from testbed.compress.aggregate import Aggregate, DeviceSupport, HostSupport
from testbed.compress.base import BufferPool, PayloadBuffer, Sparse
from testbed.compress.layout import Layout
from testbed.compress.payload import decode, encode, join, payload_bytes, read_message
from testbed.errors import WireError

torch.set_num_threads(1)


def sparse(size: int, **elements: float) -> Sparse:
    indices = [int(name[1:]) for name in elements]
    return Sparse(size, torch.tensor(indices), torch.tensor(list(elements.values())))


def test_union_and_mean() -> None:
    aggregate = Aggregate(100)
    aggregate.add(sparse(100, _3=4.0, _50=1.0))
    aggregate.add(sparse(100, _3=4.0, _7=-2.0))
    mean = aggregate.mean(4)
    assert mean.indices is not None
    assert mean.indices.tolist() == [3, 7, 50]
    assert mean.values.tolist() == [2.0, -0.5, 0.25]


def test_elements_that_cancel_are_still_sent() -> None:
    aggregate = Aggregate(100)
    aggregate.add(sparse(100, _3=4.0))
    aggregate.add(sparse(100, _3=-4.0))
    mean = aggregate.mean(2)
    assert mean.indices is not None
    assert mean.indices.tolist() == [3]


def test_dense_as_soon_as_one_message_is() -> None:
    aggregate = Aggregate(3)
    aggregate.add(Sparse(3, None, torch.tensor([1.0, 2.0, 3.0])))
    aggregate.add(sparse(3, _1=2.0))
    mean = aggregate.mean(2)
    assert mean.indices is None
    assert mean.values.tolist() == [0.5, 2.0, 1.5]


def signs(count: int) -> int:
    """Section of a value coding of one bit for each value."""
    return 4 + -(-count // 8)


@pytest.mark.parametrize(("count", "dense", "dense_of_signs"), [(20, False, False), (500, False, True), (995, True, True)])  # fmt: skip
def test_dense_when_sparse_would_be_no_shorter(
    count: int, dense: bool, dense_of_signs: bool
) -> None:
    """Which depends on how the mean's values are written."""
    for aggregate, expected in (
        (Aggregate(1000), dense),
        (Aggregate(1000, value_bytes=signs), dense_of_signs),
        (Aggregate(1000, value_bytes=signs, keeps_zero=False), False),
    ):
        aggregate.add(Sparse(1000, torch.arange(count), torch.ones(count)))
        mean = aggregate.mean(1)
        assert (mean.indices is None) is expected
        assert torch.equal(whole(mean), (torch.arange(1000) < count).float())


def test_a_full_message_is_dense_however_values_are_written() -> None:
    aggregate = Aggregate(10, value_bytes=signs, keeps_zero=False)
    aggregate.add(Sparse(10, None, torch.ones(10)))
    assert aggregate.mean(1).indices is None


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 500), st.data())
def test_the_shorter_of_both_is_what_the_wire_takes(size: int, data: st.DataObject) -> None:
    chosen = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    aggregate = Aggregate(size)
    aggregate.add(Sparse(size, torch.tensor(chosen), torch.ones(len(chosen))))
    mean = aggregate.mean(1)
    assert len(encode(mean).payload) == payload_bytes(size, len(chosen))
    assert torch.equal(whole(mean), aggregate._sum)


def test_sum_is_taken_in_order_and_in_float32() -> None:
    """1e8 + 1 − 1e8 depends on the order in float32: the caller's order is kept."""
    terms = [1e8, 1.0, -1e8]
    for order, expected in (([0, 1, 2], 0.0), ([0, 2, 1], 1.0)):
        aggregate = Aggregate(50)
        for term in order:
            aggregate.add(sparse(50, _9=terms[term]))
        assert aggregate.mean(1).values.tolist() == [expected]


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.sets(st.integers(0, 199)), min_size=1, max_size=4), max_size=5))
def test_rounds_leave_nothing_behind(rounds: list[list[set[int]]]) -> None:
    """However full a round was, the next one begins with zeros, in the same buffers."""
    aggregate = Aggregate(200)
    for messages in rounds:
        aggregate.reset()
        expected = torch.zeros(200)
        for number, chosen in enumerate(messages, 1):
            indices = torch.tensor(sorted(chosen), dtype=torch.int64)
            aggregate.add(Sparse(200, indices, torch.full((len(chosen),), float(number))))
            expected[indices] += number
        mean = aggregate.mean(2)
        assert torch.equal(whole(mean), expected / 2)
        if mean.indices is not None:
            assert mean.indices.tolist() == sorted(set().union(*messages))


def test_reset_starts_again_in_the_same_buffers() -> None:
    aggregate = Aggregate(64)
    aggregate.add(Sparse(64, None, torch.ones(64)))
    first = aggregate.mean(1)
    place = first.values.data_ptr()
    aggregate.reset()
    aggregate.add(sparse(64, _5=3.0))
    again = aggregate.mean(3)
    assert again.indices is not None
    assert (again.indices.tolist(), again.values.tolist()) == ([5], [1.0])
    assert again.values.data_ptr() == place


def test_a_round_allocates_nothing_after_the_first() -> None:
    size, scratch, buffer = 1_000_000, BufferPool(), PayloadBuffer()
    aggregate = Aggregate(size)
    payloads = [
        bytearray(encode(Sparse(size, (at := torch.arange(k, size, 40)), torch.ones(at.numel()))).payload)
        for k in range(4)
    ]  # fmt: skip

    def one_round() -> bytes:
        aggregate.reset()
        for payload in payloads:
            aggregate.add(decode(payload, size, scratch))
        return bytes(encode(aggregate.mean(4), buffer=buffer).payload[:100])

    first = one_round()
    tracemalloc.start()
    again = one_round()
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert again == first
    assert held < 10_000


def test_mean_twice_is_the_same() -> None:
    aggregate = Aggregate(64)
    aggregate.add(sparse(64, _5=3.0))
    first = bytes(encode(aggregate.mean(3)).payload)
    assert bytes(encode(aggregate.mean(3)).payload) == first


def test_sparse_and_dense_mean_agree_after_the_wire() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(500, generator=generator) for _ in range(4)]
    aggregate, full = Aggregate(500), torch.zeros(500)
    for gradient in gradients:
        keep = gradient.abs().topk(30).indices.sort().values
        aggregate.add(decode(encode(Sparse(500, keep, gradient[keep])).payload, 500))
        full[keep] += gradient[keep]
    mean = decode(encode(aggregate.mean(4)).payload, 500)
    assert mean.indices is not None
    assert torch.equal(whole(mean), full / 4)


def test_messages_of_several_payloads() -> None:
    """A parameter that is sent whole beside one that is not."""
    layout = Layout.of([("weight", (50, 2)), ("bias", (2,))])
    parts = [sparse(100, _3=4.0, _50=1.0), Sparse(2, None, torch.tensor([2.0, 6.0]))]
    message = join([bytes(encode(part).payload) for part in parts], PayloadBuffer())
    aggregate, scratch = Aggregate(102), BufferPool()
    for _ in range(2):
        aggregate.add(read_message(message, layout, scratch))
    mean = aggregate.mean(4)
    assert mean.indices is not None
    assert mean.indices.tolist() == [3, 50, 100, 101]
    assert mean.values.tolist() == [2.0, 0.5, 1.0, 3.0]


def test_another_size_is_refused() -> None:
    with pytest.raises(WireError, match="for 3 elements where 4"):
        Aggregate(4).add(sparse(3, _1=1.0))


@pytest.mark.parametrize("indices", [[5, 200], [-1, 5], [7, 7], [9, 8]])
def test_indices_that_cannot_be_are_refused_before_they_are_summed(indices: list[int]) -> None:
    aggregate = Aggregate(100)
    with pytest.raises(WireError, match=r"index|ascend"):
        aggregate.add(Sparse(100, torch.tensor(indices), torch.ones(2)))
    assert not aggregate._sum.any()
    aggregate.reset()
    assert aggregate.mean(1).count == 0


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 300), st.data())
def test_both_supports_are_the_same_set(size: int, data: st.DataObject) -> None:
    host, device = HostSupport(size), DeviceSupport(size, torch.device("cpu"))
    chosen: set[int] = set()
    for _ in range(3):
        more = data.draw(st.sets(st.integers(0, size - 1)))
        chosen |= more
        for support in (host, device):
            support.add(torch.tensor(sorted(more), dtype=torch.int64))
            assert support.count() == len(chosen)
            assert support.indices().tolist() == sorted(chosen)
            assert support.count() == len(chosen)
    for support in (host, device):
        support.clear()
        assert support.count() == support.indices().numel() == 0


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.sets(st.integers(0, 99)), min_size=1, max_size=3), max_size=4))
def test_means_are_the_same_with_either_support(rounds: list[list[set[int]]]) -> None:
    here, there = Aggregate(100), Aggregate(100)
    there._support = DeviceSupport(100, torch.device("cpu"))
    for messages in rounds:
        means = []
        for aggregate in (here, there):
            aggregate.reset()
            for number, chosen in enumerate(messages, 1):
                indices = torch.tensor(sorted(chosen), dtype=torch.int64)
                aggregate.add(Sparse(100, indices, torch.full((len(chosen),), float(number))))
            means.append(encode(aggregate.mean(3)).payload)
        assert bytes(means[0]) == bytes(means[1])
