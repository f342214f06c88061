"""``testbed bench gpu`` on a CUDA device: everything is measured there, and what is judged says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from testbed.bench.cli import app
from testbed.bench.compress.device import ALGORITHMS, DeviceBench
from testbed.compress.base import selectors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


def test_quick_measures_everything_and_judges_no_time(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(
        app, ["gpu", "--quick", "--quiet", "--json", "--out", str(tmp_path)]
    )
    assert outcome.exit_code == 0, (outcome.exception, outcome.output)
    printed = json.loads(outcome.stdout)
    assert printed["machine"]["device"] == torch.cuda.get_device_name()
    suites = printed["suites"]
    assert all(row["median_s"] > 0 for row in suites["memory"]["rows"])
    methods = {row["method"]: row for row in suites["selection"]["rows"]}
    assert {*selectors} - {"dense"} <= {*methods}, suites["selection"]["absent"]
    assert methods["laplace"]["off"] <= 0.05 and methods["radix"]["off"] == 0.0
    assert all(row["reads_queued"] > 0 for row in methods.values())
    assert suites["selection"]["checks"] == []
    assert [row["algorithm"] for row in suites["step"]["rows"]] == [*ALGORITHMS], suites["step"][
        "absent"
    ]


def test_long_vectors_are_judged(tmp_path: Path) -> None:
    bench = DeviceBench("cuda", [10_000_000], [0.01])
    suite = bench.run(tmp_path, lambda _: None, 1, ["selection"]).suites["selection"]
    reads, off = suite.checks
    assert reads.name.endswith(", queued")
    assert (reads.limit, off.limit) == ("at most 1.5", "at most 0.05")
    assert reads.measured is not None and reads.measured > 0
    assert off.met
