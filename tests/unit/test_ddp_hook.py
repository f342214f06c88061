"""Any algorithm in DistributedDataParallel: two processes over gloo, beside the testbed's own worker and server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import ddp_refusals as refusals
import ddp_scenarios as scenarios
import numpy as np
import pytest
import torch
from ddp_models import made
from ddp_rig import Ranks
from virtual_setup import ALGORITHMS, Stage

from testbed.algorithms import PATTERNS
from testbed.compatibility import known, resolve
from testbed.compress.base import Recipe, RecipeChoice
from testbed.compress.payload import payload_bytes

torch.set_num_threads(1)
WATCHING = ("accordion", "adalag", "algc", "lags", "lgreco")
EVERY = [
    # the others are refused
    *(r.name for r in known() if r.controller not in WATCHING and r.exchange == "ps"),
    *(pattern.example for pattern in PATTERNS if pattern.row.exchange == "ps"),
    "laplace-0.01+int8",
    "topk-0.1+qsgd-4bit+layers",
]
SIZE = sum(parameter.numel() for parameter in made("wide").parameters())


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def assert_nothing_is_lost(outcomes: list[dict[str, Any]]) -> None:
    """Over all ranks and steps: what was applied and what is still kept is what there was to send."""
    for name, mean in outcomes[0]["mean"].items():
        gradients = sum(outcome["ours"][name] for outcome in outcomes)
        kept = sum(outcome["residual"].get(name, 0.0) for outcome in outcomes)
        np.testing.assert_allclose(len(outcomes) * mean + kept, gradients, atol=2e-5, err_msg=name)


def assert_alike(outcomes: list[dict[str, Any]]) -> None:
    """All ranks have the same parameters, bit for bit."""
    assert len({outcome["parameters"] for outcome in outcomes}) == 1


@pytest.mark.parametrize(
    "algorithm", ["none", "topk-0.05", "radix-0.01", "bf16", "signsgd", "onebit-double"]
)
def test_it_trains_bit_for_bit_as_the_testbed_does(
    ranks: Ranks, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, algorithm, resolve(algorithm))
    played = Stage(2, algorithm).play()
    outcomes = ranks.do(scenarios.digits, algorithm, steps=30, batch_size=32, seed=1)
    assert_alike(outcomes)
    assert outcomes[0]["parameters"] == played.summaries["server"]["parameters"]
    for rank, outcome in enumerate(outcomes):
        steps = played.of(f"worker-{rank}", "step")
        assert outcome["losses"] == [record["loss"] for record in steps]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.1},
        {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.1, "static_graph": True},
        {"bucket_cap_mb": 0.1, "find_unused_parameters": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("reload_at", [None, 4])
def test_sent_and_kept_are_what_there_was(
    ranks: Ranks, options: dict[str, Any], reload_at: int | None
) -> None:
    outcomes = ranks.do(scenarios.train, "topk-0.02", 7, reload_at, ddp=options)
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)
    assert any(abs(kept).max() > 1e-3 for kept in outcomes[0]["residual"].values())
    if options.get("bucket_cap_mb"):
        assert len(outcomes[0]["buckets"][-1]) > 1
    if not options.get("find_unused_parameters"):  # with it, buckets stay as they are
        assert outcomes[0]["buckets"][0] != outcomes[0]["buckets"][-1]


def test_a_bucket_of_kernels_in_channels_last(ranks: Ranks) -> None:
    outcomes = ranks.do(scenarios.train, "topk-0.1", 5, 3, model="convolutional")
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)
    assert outcomes[0]["residual"]["2.weight"].shape == (8, 6, 3, 3)


def test_gradients_that_are_added_up_before_they_are_sent(ranks: Ranks) -> None:
    outcomes = ranks.do(scenarios.train, "topk-0.05", 4, micro=3)
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)


def test_every_parameter_by_itself(ranks: Ranks) -> None:
    recipe = Recipe(
        RecipeChoice("topk"), memory=RecipeChoice("feedback"), layers=True, dense_below=100
    )
    outcomes = ranks.do(scenarios.train, recipe, 5, 3, state={"density": 0.05})
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)
    left = {name for name, kept in outcomes[0]["residual"].items() if kept.any()}
    assert left == {"1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "7.weight"}


def test_a_process_group_of_its_own(ranks: Ranks) -> None:
    outcomes = ranks.do(scenarios.in_a_group, "topk-0.05")
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)


def test_every_rank_draws_for_itself(ranks: Ranks) -> None:
    """Of the elements that one rank picks at random the other picks a tenth, too, and not all."""
    picked = [
        np.concatenate([
            ((outcome["residual"][name] == 0) & (gradient != 0)).ravel()
            for name, gradient in outcome["ours"].items()
        ])
        for outcome in ranks.do(scenarios.train, "randk-0.1", 1)
    ]  # fmt: skip
    assert all(0.02 < each.mean() < 0.12 for each in picked)
    assert (picked[0] & picked[1]).sum() < 0.3 * picked[0].sum()


def test_controllers_that_agree_draw_the_same_and_others_do_not(ranks: Ranks) -> None:
    agreed, own = (ranks.do(scenarios.adapted, name) for name in ("adatopk-agreed", "adatopk"))
    assert agreed[0] == agreed[1] and len(set(agreed[0])) > 1
    assert own[0] != own[1]


def test_payloads_of_different_lengths(ranks: Ranks) -> None:
    outcomes = ranks.do(scenarios.densities, "topk-0.5", [0.003, 0.4], 5)
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("algorithm", ["topk-0.3", "onebit"])
def test_parameters_that_some_or_no_ranks_use(ranks: Ranks, algorithm: str, view: bool) -> None:
    outcomes = ranks.do(scenarios.both_then_one_then_none, algorithm, gradient_as_bucket_view=view)
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)


@pytest.mark.parametrize("algorithm", EVERY)
def test_every_algorithm_gives_all_ranks_the_same(ranks: Ranks, algorithm: str) -> None:
    outcomes = ranks.do(scenarios.train, algorithm, 4, 3, ddp={"bucket_cap_mb": 0.1})
    assert_alike(outcomes)
    means = np.concatenate([mean.ravel() for mean in outcomes[0]["mean"].values()])
    gradients = np.concatenate([own.ravel() for own in outcomes[0]["ours"].values()])
    assert np.isfinite(means).all()
    assert means @ gradients > 0


@pytest.mark.parametrize(("kind", "most"), [("float32", 1e-6), ("bfloat16", 2e-3)])
def test_dense_is_what_plain_ddp_does(ranks: Ranks, kind: str, most: float) -> None:
    for differences in ranks.do(scenarios.beside_plain, getattr(torch, kind)):
        assert max(differences) <= most


@pytest.mark.parametrize(("model", "kind", "buckets"), [("wide", torch.bfloat16, 1), ("mixed", None, 2)])  # fmt: skip
def test_half_precision_is_compressed_in_single(
    ranks: Ranks, model: str, kind: torch.dtype | None, buckets: int
) -> None:
    outcomes = ranks.do(scenarios.half_precision, "topk-0.1", model, kind)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["buckets"] == buckets
    assert outcomes[0]["kinds"] == ["torch.float32"]


def test_a_checkpoint_goes_on_bit_for_bit(ranks: Ranks) -> None:
    straight = ranks.do(scenarios.train, "topk-0.05", 6)
    resumed = ranks.do(scenarios.train, "topk-0.05", 6, reload_at=4)
    assert [o["parameters"] for o in straight] == [o["parameters"] for o in resumed]


def test_a_gradient_that_is_not_finite_is_an_error_on_all_ranks(ranks: Ranks) -> None:
    for text, total in ranks.do(refusals.not_a_number, step=3, rank=1, name="3.weight"):
        assert text.startswith("GradientError: rank 1: the gradient of '3.weight' holds nan")
        assert total == 3.0


def test_any_other_failure_reaches_all_ranks(ranks: Ranks) -> None:
    (there, total), (here, _) = ranks.do(refusals.defective)
    assert here == "RuntimeError: index 7 is out of bounds"
    assert there == "ExperimentError: rank 1: RuntimeError: index 7 is out of bounds"
    assert total == 3.0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("float64", r"InputError: parameter '1\.weight' is torch\.float64"),
        ("unknown", r"InputError: unknown algorithm 'topk_0\.1'"),
        ("density", r"InputError: algorithm 'adatopk': its controller 'adatopk' chooses"),
        ("zero", r"InputError: "),
        ("delay", r"InputError: the controller needs a delay"),
        ("residual", r"InputError: something is remembered of '9\.weight'"),
        ("shape", r"InputError: '1\.bias' has the shape \(300,\)"),
        ("memory", r"InputError: memory 'none' cannot take over"),
    ],
)
def test_what_cannot_be_is_refused(ranks: Ranks, what: str, message: str) -> None:
    for text in ranks.do(refusals.refused, what):
        assert re.match(message, text), text


def test_bodies_of_any_lengths_arrive(ranks: Ranks) -> None:
    lengths = [[0, 0], [5, 0], [0, 900], [900, 900], [64, 1], [2000, 3], [1, 1], [1999, 2000]]
    for taken in ranks.do(scenarios.channel, lengths + [[10, 20]] * 10):
        # all ranks' messages are as long as the longest of the last eight steps, in 64 B
        assert taken[:4] == [32, 32 + 5, 32 + 64 + 900 - 64, 32 + 960]
        assert taken[5:8] == [32 + 960 + 2000 - 960, 32 + 2048, 32 + 2048]
        assert taken[-1] == 32 + 64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1, 0, 3), "WireError: rank {} sent another bucket"),
        ((0, 1, 3), "WireError: rank {} sent another bucket"),
        ((0, 0, 101), "WireError: rank 0 sent 101 B of kind 0"),
    ],
)
def test_ranks_that_send_different_things_all_learn_of_it(
    ranks: Ranks, given: tuple[int, int, int], message: str
) -> None:
    for rank, text in enumerate(ranks.do(refusals.channels_apart, *given)):
        assert text.startswith(message.format(1 - rank))


def test_ranks_with_different_algorithms_do_not_train_apart(ranks: Ranks) -> None:
    for rank, text in enumerate(ranks.do(refusals.apart, ["signsgd", "none"])):
        assert f"rank {1 - rank} sent another bucket" in text
        assert "by the same algorithm" in text


def test_reports(ranks: Ranks) -> None:
    count = round(0.1 * SIZE)
    payload = payload_bytes(SIZE, count)
    for reports in ranks.do(scenarios.counted, "topk-0.1", 3):
        *steps, totals = reports
        for report in steps:
            assert report["elements"] == SIZE
            assert report["sent_count"] == count
            assert report["density"] == pytest.approx(0.1, abs=1e-4)
            assert report["payload_bytes"] == payload
            assert report["dense_bytes"] == 4 * SIZE
            assert report["bytes_sent"] == report["bytes_received"] == report["message_bytes"]
        # 8 B say which parameters are idle; no second collective once the length is known
        assert steps[-1]["message_bytes"] == 32 + -(-(8 + payload) // 64) * 64
        assert totals["steps"] == 3
        assert totals["payload_bytes"] == 3 * payload


def test_a_controller_chooses(ranks: Ranks) -> None:
    outcomes = ranks.do(scenarios.controlled)
    assert_alike(outcomes)
    for outcome in outcomes:
        assert len(set(outcome["densities"])) > 3
    assert outcomes[0]["densities"] != outcomes[1]["densities"]


def test_ranks_with_different_numbers_of_batches(ranks: Ranks) -> None:
    assert len(set(ranks.do(scenarios.uneven, [3, 6]))) == 1


def test_it_needs_no_engine_and_no_netlink() -> None:
    code = (
        "import sys\n"
        "for name in ('docker', 'pyroute2', 'typer', 'rich', 'matplotlib', 'prometheus_client'):\n"
        "    sys.modules[name] = None\n"
        "import testbed.training.ddp.hook as hook\n"
        "hook.CompressionState, hook.compressed_hook\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
