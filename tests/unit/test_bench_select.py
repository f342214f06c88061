"""What the benchmarks of selection measure and report; never how fast."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from testbed.bench.cli import app
from testbed.bench.compress import select
from testbed.bench.compress.inputs import (
    Step,
    Training,
    _fitting,
    drawn,
    read_once,
    recorded,
    steps,
    timed,
    vectors,
)
from testbed.compress.base import AccumulatedGradient, selectors
from testbed.compress.selectors.topk import TopK
from testbed.errors import InputError

SMALL = Training("digits", "mlp", 1.0)


def silent(text: str) -> None:
    assert text


def test_alternatives_take_turns_and_warm_turns_do_not_count() -> None:
    calls: list[tuple[str, int]] = []

    def call(name: str, turn: int) -> int:
        assert not gc.isenabled()
        calls.append((name, turn))
        return 10 * turn

    found = timed({n: lambda turn, n=n: call(n, turn) for n in "ab"}, 2, 1, silent)
    assert gc.isenabled()
    assert calls == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert found["a"].results == found["b"].results == [10, 20]
    assert all(seconds >= 0 for seconds in found["a"].seconds)
    assert min(found["a"].seconds) <= found["a"].median_s <= max(found["a"].seconds)


def test_reading_reads_everything() -> None:
    memory = np.arange(100_001, dtype=np.int64)
    assert read_once(memory) == 100_001 * 100_000 // 2
    assert read_once(np.ones(3, np.float32)) == 0x3F80_0000_3F80_0000, "whole words of 8 bytes"


def test_drawn_vectors() -> None:
    found = drawn(50_000, 3)
    assert len(found.flats) == 3
    for flat in found.flats:
        assert flat.dtype == torch.float32
        b = float(flat.abs().mean())
        assert 0.0005 < b < 0.002
        assert abs(float(flat.mean())) < 5 * b * (2 / 50_000) ** 0.5
        assert float((flat.abs() > b).double().mean()) == pytest.approx(np.exp(-1), abs=0.015)
    assert not torch.equal(found.flats[0], found.flats[1])
    assert torch.equal(found.flats[2], drawn(50_000, 3).flats[2])


def test_recorded_vectors_are_a_trainings() -> None:
    found = recorded(15_000, 2, 0.01, silent, SMALL)
    size, wanted = SMALL.elements(), []
    for step in steps(SMALL, TopK(), 0.01):
        wanted.append(step.given.flat.clone())
        if step.number == 13:
            break
    assert size < 15_000 < 2 * size
    assert f"{size:,} parameters: 2 consecutive" in found.about
    for turn, flat in enumerate(found.flats):
        assert torch.equal(flat, torch.cat(wanted[10 + turn : 12 + turn])[:15_000])


def test_training_goes_on_as_error_feedback_says() -> None:
    """p of a step is its gradient and what was left of the last p."""
    left, total = torch.zeros(SMALL.elements()), 0.0
    for step in steps(SMALL, TopK(), 0.1):
        gradient = step.given.flat - left
        total += float(gradient.abs().sum())
        left = step.given.flat.clone()
        left[step.sent.indices] -= step.sent.values
        if step.number == 3:
            break
    assert total > 0
    assert step.sent.count == round(0.1 * SMALL.elements())


def test_unknown_source_and_density() -> None:
    with pytest.raises(InputError, match="unknown source 'x'"):
        vectors("x", 10, 1, 0.1, silent)
    with pytest.raises(InputError, match="is all of them"):
        select.run(10, 1.0, 1, "laplace", 1, silent)


def test_select_as_json() -> None:
    words = "--elements 20000 --density 0.02 --threads 1 --source laplace --repeat 2 --json --quiet"
    before = torch.get_num_threads()
    result = CliRunner().invoke(app, ["select", *words.split()])
    assert result.exit_code == 0, result.output
    assert torch.get_num_threads() == before
    found = json.loads(result.stdout)
    assert list(found) == ["elements", "density", "threads", "source", "references", "results"]
    assert (found["elements"], found["density"], found["threads"]) == (20_000, 0.02, 1)
    assert found["source"] == "laplace"
    assert list(found["references"]) == ["torch.topk", "np.partition", "read_once"]
    assert all(seconds > 0 for seconds in found["references"].values())
    rows = {row["method"]: row for row in found["results"]}
    plain = {f"{name} (PyTorch)" for name in selectors if name not in select.NO_PASSES}
    assert set(rows) == {*selectors.names(), *plain, "radix (no statistics)"}
    for name in plain:
        ours = rows[name.removesuffix(" (PyTorch)")]
        assert rows[name]["achieved_density"] == pytest.approx(ours["achieved_density"], rel=0.1)
    for row in rows.values():
        assert list(row) == ["method", "median_s", "achieved_density", "passes"]
        assert row["median_s"] > 0
        assert 0 < row["achieved_density"] <= 1
    assert rows["radix"]["achieved_density"] == rows["topk"]["achieved_density"] == 0.02
    for name in ("laplace", "laplace (PyTorch)"):
        assert rows[name]["achieved_density"] == pytest.approx(0.02, rel=0.05)
        assert 2 < rows[name]["passes"] < 3


def test_select_judges_what_limits_are_stated_for() -> None:
    result = CliRunner().invoke(
        app, ["select", "--elements", "5000", "--repeat", "1", "--threads", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "absent: limits on times" in result.stdout
    found = select.run(5000, 0.01, 1, "laplace", 1, silent)
    assert not found.suite().checks
    checks = {check.name for check in replace(found, elements=25_000_000).suite().checks}
    assert checks == {
        "torch.topk / laplace", "np.partition / laplace", "radix / laplace", "laplace / read once",
        "np.partition / radix",
    }  # fmt: skip


def test_both_opponents_find_the_largest() -> None:
    flat = drawn(10_000, 1).flats[0]
    assert select.torch_topk(flat, 0.01).count == 100
    assert (
        select._np_partition(
            flat.numpy(), np.empty(10_000, np.int32), np.empty(10_000, np.bool_), 0.01
        ).count
        == 100
    )


def test_threshold_counts_every_step() -> None:
    said: list[str] = []
    suite = select.measure_thresholds(said.append, 5, [SMALL], [0.1, 0.01])
    assert [row["density"] for row in suite.rows] == [0.1, 0.01]
    for row in suite.rows:
        assert row["training"] == SMALL.name
        assert row["elements"] == SMALL.elements()
        assert row["steps"] == 5
        assert row["within"] == 1.0
        assert 0.95 <= row["sent_p5"] <= row["sent_p50"] <= row["sent_p95"] <= 1.05
        assert 2 <= row["passes"] <= 5
        assert row["one_shot_p50"] >= 0
        assert row["fit_laplace"] > 0
    assert len(suite.checks) == 4
    assert [check.met for check in suite.checks[:2]] == [True, True]
    assert len(said) == 2


def test_a_count_outside_the_tolerance_is_seen() -> None:
    counted = select.CountedSelection(SMALL, 0.1, SMALL.elements())
    for step in steps(SMALL, TopK(), 0.2):  # twice as many as asked for
        counted.take(step)
        if step.number == 2:
            break
    assert counted.within == 0.0
    assert counted.ratios == pytest.approx([2.0, 2.0], rel=0.01)


def test_zeros_are_no_miss() -> None:
    """Where fewer elements are not 0 than asked for, sending all of these is right."""
    counted = select.CountedSelection(SMALL, 0.5, SMALL.elements())
    flat = torch.zeros(SMALL.elements())
    flat[:100] = 1.0
    given = AccumulatedGradient(flat, 100.0, 1.0)
    sent = selectors.get("laplace")().select(given, 0.5, Random(0))
    counted.take(Step(1, given, sent))
    assert counted.ratios == [1.0]


def test_the_model_that_is_recorded_fits() -> None:
    assert _fitting(25_000_000).width == 1.0
    assert _fitting(1_000_000).elements() <= 1_000_000 < _fitting(25_000_000).elements()
    assert _fitting(10).width == 0.125
