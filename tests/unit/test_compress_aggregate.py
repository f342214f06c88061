"""Sums of sparse messages."""

from __future__ import annotations

import pytest
import torch

from testbed.compress.aggregate import Aggregate
from testbed.compress.base import Sparse
from testbed.compress.wire import decode, encode
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


def test_dense_when_sparse_would_be_no_shorter() -> None:
    aggregate = Aggregate(1000)
    aggregate.add(Sparse(1000, torch.arange(995), torch.ones(995)))
    mean = aggregate.mean(1)
    assert mean.indices is None
    assert mean.values.sum() == 995


def test_sum_is_taken_in_order_and_in_float32() -> None:
    """1e8 + 1 − 1e8 depends on the order in float32: the caller's order is kept."""
    terms = [1e8, 1.0, -1e8]
    for order, expected in (([0, 1, 2], 0.0), ([0, 2, 1], 1.0)):
        aggregate = Aggregate(50)
        for term in order:
            aggregate.add(sparse(50, _9=terms[term]))
        assert aggregate.mean(1).values.tolist() == [expected]


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


def test_mean_twice_is_the_same() -> None:
    aggregate = Aggregate(64)
    aggregate.add(sparse(64, _5=3.0))
    assert bytes(encode(aggregate.mean(3))) == bytes(encode(aggregate.mean(3)))


def test_sparse_and_dense_mean_agree_after_the_wire() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(500, generator=generator) for _ in range(4)]
    aggregate, whole = Aggregate(500), torch.zeros(500)
    for gradient in gradients:
        keep = gradient.abs().topk(30).indices.sort().values
        aggregate.add(decode(encode(Sparse(500, keep, gradient[keep]))))
        whole[keep] += gradient[keep]
    mean = decode(encode(aggregate.mean(4)))
    assert mean.indices is not None
    out = torch.zeros(500)
    out[mean.indices] = mean.values
    assert torch.equal(out, whole / 4)


def test_another_size_is_refused() -> None:
    with pytest.raises(WireError, match="for 3 elements where 4"):
        Aggregate(4).add(sparse(3, _1=1.0))
