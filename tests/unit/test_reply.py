"""The server's reply: any value coding on the way down, and a memory for what it leaves out."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from testbed.algorithm import Algorithm
from testbed.compress.base import Sparse, codings, needs_all
from testbed.compress.layout import Layout
from testbed.compress.payload import decode
from testbed.errors import GradientError, InputError
from testbed.training.averaging import UpdateEncoder

LAYOUT = Layout.of([("a.weight", (20, 30)), ("a.bias", (20,)), ("b.weight", (37, 10))])
SIZE = LAYOUT.size


def mean_of(seed: int, share: float = 1.0) -> Sparse:
    """A round's mean; of ``share`` of the elements."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(SIZE, generator=generator)
    if share == 1.0:
        return Sparse(SIZE, None, values)
    indices = (torch.rand(SIZE, generator=generator) < share).nonzero().flatten()
    return Sparse(SIZE, indices, values[indices])


def whole(sparse: Sparse) -> Tensor:
    if sparse.indices is None:
        return sparse.values.clone()
    return torch.zeros(sparse.size).index_copy_(0, sparse.indices, sparse.values)


def reply(coding: str, memory: str = "none") -> UpdateEncoder:
    return UpdateEncoder(Algorithm("a", down=coding, down_memory=memory), LAYOUT)


def balance(made: UpdateEncoder, rounds: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Σ means, Σ replies, and what is left out, after so many rounds."""
    given, sent, rng = (*torch.zeros(2, SIZE, dtype=torch.float64), Random(1))
    for seed in range(rounds):
        mean = mean_of(seed, share)
        given += whole(mean).double()
        sent += whole(decode(made.encode(mean, rng), SIZE)).double()
    held = made.state()["memory"]
    left = [
        held[part.name].flatten().double() if held else torch.zeros(part.size) for part in LAYOUT
    ]
    return given, sent, torch.cat(left)


@pytest.mark.parametrize("memory", ["none", "feedback"])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_float32_leaves_nothing_out(memory: str, share: float) -> None:
    made = reply("fp32", memory)
    for seed in range(3):
        mean = mean_of(seed, share)
        given = mean.values.clone()
        back = decode(made.encode(mean, Random(0)), SIZE)
        assert torch.equal(whole(back), whole(Sparse(SIZE, mean.indices, given)))


@pytest.mark.parametrize(
    ("coding", "share"),
    [
        (c, share)
        for c in sorted(codings)
        for share in (1.0, 0.3)
        if share == 1 or not needs_all(codings.get(c))
    ],
)
def test_what_a_reply_leaves_out_is_kept(coding: str, share: float) -> None:
    """Σ replies + residual = Σ means, whatever the coding and whichever elements a round had."""
    given, sent, left = balance(reply(coding, "feedback"), 6, share)
    scale = float(torch.stack([given, sent, left]).abs().max())
    torch.testing.assert_close(sent + left, given, rtol=0, atol=1e-5 * scale)
    assert coding == "fp32" or float(left.norm()) > 0


@pytest.mark.parametrize("coding", ["bf16", "int8", "onebit"])
def test_with_a_memory_replies_stay_closer_to_the_means(coding: str) -> None:
    """The same mean in every round: its rounding errors add up unless they are made up for."""
    gaps = {}
    for memory in ("none", "feedback"):
        made, rng, mean = reply(coding, memory), Random(1), whole(mean_of(1))
        gap = torch.zeros(SIZE, dtype=torch.float64)
        for _ in range(60):
            gap += mean - whole(decode(made.encode(Sparse(SIZE, None, mean.clone()), rng), SIZE))
        gaps[memory] = float(gap.norm())
    assert gaps["feedback"] < 0.5 * gaps["none"]


@pytest.mark.parametrize("coding", ["onebit", "qsgd", "lowrank"])
def test_what_is_carried_survives_a_checkpoint(coding: str) -> None:
    straight, before = reply(coding, "feedback"), reply(coding, "feedback")
    for made in (straight, before):
        for seed in range(3):
            made.encode(mean_of(seed), Random(seed))
    after = reply(coding, "feedback")
    after.load(before.state())
    for seed in range(3, 6):
        payloads = [bytes(made.encode(mean_of(seed), Random(seed))) for made in (straight, after)]
        assert payloads[0] == payloads[1]


def test_a_reply_is_as_sparse_with_a_memory_as_without() -> None:
    """What a round left out of elements that nobody sends again waits for a round that has them."""
    made = reply("sign", "feedback")
    first, second = mean_of(1, 0.3), mean_of(2, 0.1)
    made.encode(first, Random(0))
    back = decode(made.encode(second, Random(0)), SIZE)
    assert back.indices is not None
    assert second.indices is not None
    assert torch.equal(back.indices, second.indices)


@pytest.mark.parametrize(("coding", "whole_at"), [("fp32", 0.99), ("bf16", 0.99), ("sign", 1.0)])
def test_means_are_whole_where_that_is_shorter_and_zeros_can_be_written(
    coding: str, whole_at: float
) -> None:
    """A sign has no zero: what nobody sent must not come down as plus or minus something."""
    for share in (0.5, 0.99, 1.0):
        made = reply(coding)
        aggregate = made.aggregate
        mean = mean_of(1, share)
        aggregate.add(mean)
        back = decode(made.encode(aggregate.mean(1), Random(0)), SIZE)
        assert (back.indices is None) == (share >= whole_at)
        assert torch.equal(whole(back) != 0, whole(mean) != 0)


def test_the_mean_stays_as_it_is() -> None:
    mean = mean_of(1)
    before = mean.values.clone()
    made = reply("sign", "feedback")
    made.encode(mean, Random(0))
    assert torch.equal(mean.values, before)


def test_the_same_randomness_gives_the_same_bytes() -> None:
    made = [bytes(reply("qsgd").encode(mean_of(3), Random(seed))) for seed in (5, 5, 6)]
    assert made[0] == made[1] != made[2]


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(InputError, match="unknown memory 'lots'"):
        reply("fp32", "lots")
    with pytest.raises(InputError, match="unknown value coding 'morse'"):
        reply("morse")


@pytest.mark.parametrize("share", [1.0, 0.1])
@pytest.mark.parametrize("coding", ["fp32", "fp16"])
def test_a_mean_that_is_not_finite_is_refused(coding: str, share: float) -> None:
    """Finite gradients can add up to infinity, which 16 bits would pass off as their greatest number."""
    mean = mean_of(1, share)
    place = int(mean.values.numel() * 0.8)
    mean.values[place] = float("inf")
    with pytest.raises(
        GradientError, match=r"the mean gradient of 'b\.weight' holds inf at element"
    ):
        reply(coding).encode(mean, Random(0))


def test_great_means_are_finite() -> None:
    great = Sparse(SIZE, None, torch.full((SIZE,), 3e38))  # their sum is not
    assert torch.equal(whole(decode(reply("fp32").encode(great, Random(0)), SIZE)), great.values)


@pytest.mark.parametrize("memory", ["none", "feedback"])
def test_the_greatest_of_the_mean_go_down(memory: str) -> None:
    """Global top-k: without a memory of this mean; with one of it and all that was not sent before."""
    made = UpdateEncoder(Algorithm("a", down_density=0.05, down_memory=memory), LAYOUT)
    count, left = round(0.05 * SIZE), torch.zeros(SIZE)
    for seed, share in enumerate((1.0, 0.3, 0.01)):
        left = whole(mean_of(seed, share)) + (left if memory == "feedback" else 0)
        back = decode(made.encode(mean_of(seed, share), Random(0)), SIZE)
        sent = min(count, int(left.count_nonzero()))
        assert back.indices is not None
        assert back.count == made.sent_count == sent
        assert set(back.indices.tolist()) == set(left.abs().topk(sent).indices.tolist())
        torch.testing.assert_close(back.values, left[back.indices])
        left = left - whole(back)


def test_a_global_top_k_is_as_short_as_its_elements() -> None:
    """Wherever the workers' elements lie: the reply of a union of 30 % has 5 %."""
    lengths = {}
    for density in (0.05, 1.0):
        made = UpdateEncoder(Algorithm("a", down_density=density), LAYOUT)
        lengths[density] = len(made.encode(mean_of(1, 0.3), Random(0)))
    assert lengths[0.05] < 0.3 * lengths[1.0]
