"""``testbed bench gpu`` on the CPU: what it measures and says, never how fast; and without a CUDA device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_here import carried_out_in

from testbed.bench.compress.device import (
    ALGORITHMS,
    BISECTION,
    JUDGED,
    MOST_OFF,
    MOST_READS,
    DeviceBench,
    _limits,
)
from testbed.bench.compress.inputs import drifting
from testbed.bench.compress.select import PLAIN, TORCH
from testbed.compress.base import selectors

ARGUMENTS = ("bench", "gpu", "--device", "cpu", "--quick", "--quiet")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the command prints, which is also in its file."""
    folder = tmp_path_factory.mktemp("gpu")
    more = ("--elements", "20000", "--elements", "5000", "--density", "0.02", "--json")
    ended = carried_out_in(folder, *ARGUMENTS, *more)
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    (path,) = folder.glob("measurements/*_gpu/bench.json")
    assert json.loads(path.read_text()) == printed
    return printed


def test_the_memory_is_copied_and_read(measured: Any) -> None:
    assert set(measured) == {"suites", "machine"} and measured["machine"]["device"] == "cpu"
    rows = {row["of"]: row for row in measured["suites"]["memory"]["rows"]}
    assert {name: row["bytes"] for name, row in rows.items()} == {
        "copy": 8 << 20, "read": 4 << 20, "launch and wait": 0,
    }  # fmt: skip
    for row in rows.values():
        assert row["bytes_per_s"] * row["median_s"] == pytest.approx(row["bytes"])


def test_every_selector_is_measured_in_readings_of_the_memory(measured: Any) -> None:
    suite = measured["suites"]["selection"]
    assert suite["checks"] == [] and suite["absent"][-1].startswith("limits: ")
    rate = max(row["bytes_per_s"] for row in measured["suites"]["memory"]["rows"])
    assert suite["about"] == {"bytes_per_s": rate}
    for elements in (20_000, 5_000):
        rows = {row["method"]: row for row in suite["rows"] if row["elements"] == elements}
        assert {*selectors} - {"dense"} | {TORCH, BISECTION} <= {*rows}
        base = rows[TORCH]
        assert base["kernels"] is None and base["reads_with_statistics"] is None
        for name, row in rows.items():
            assert row["density"] == 0.02 and row["achieved"] > 0
            assert row["reads"] == pytest.approx(row["median_s"] * rate / 4 / elements)
            assert row["reads_queued"] is None, "the CPU queues nothing"
            assert row[f"over {TORCH}"] == pytest.approx(row["median_s"] / base["median_s"])
            if name != TORCH:
                assert row["reads_with_statistics"] > row["reads"]
                kind = "CudaKernels" if name.endswith(PLAIN) else "CpuKernels"
                assert row["kernels"] == kind, "the strong baseline uses PyTorch's histograms"
        exact = [rows[name] for name in ("topk", "radix", f"radix{PLAIN}", TORCH)]
        assert [row["off"] for row in exact] == [0.0] * 4
        assert rows["laplace"]["off"] <= MOST_OFF


def test_steps_have_their_parts_and_stand_beside_those_of_the_threshold(measured: Any) -> None:
    suite = measured["suites"]["step"]
    rows = {row["algorithm"]: row for row in suite["rows"]}
    assert tuple(rows) == ALGORITHMS and suite["absent"] == []
    for name, row in rows.items():
        parts = row["compute_s"] + row["compress_s"] + row["apply_s"]
        assert 0 < parts <= row["step_s"] * 1.001
        base = rows["laplace-0.001" if name.endswith("-0.001") else "laplace-0.01"]
        for part in ("step", "compress"):
            assert row[f"{part} over laplace"] == row[f"{part}_s"] / base[f"{part}_s"]
    assert rows["none"]["payload_bytes"] > 4 * rows["none"]["parameters"]
    for name in ("topk-0.01", "radix-0.01"):
        assert 4 < rows[name]["payload_bytes"] / (0.01 * rows[name]["parameters"]) < 8
    assert rows["topk-0.001"]["payload_bytes"] < rows["topk-0.01"]["payload_bytes"] / 5


def test_limits_are_for_long_vectors_and_the_threshold() -> None:
    row = {
        "method": "laplace",
        "elements": JUDGED,
        "density": 0.01,
        "reads_queued": 1.6,
        "off": 0.04,
    }
    reads, off = _limits(row)
    assert (reads.met, off.met) == (False, True)
    assert MOST_READS == 1.5
    assert _limits({**row, "elements": JUDGED - 1}) == []
    assert _limits({**row, "method": "laplace (PyTorch)"}) == []


def test_vectors_drift_and_keep_their_scales() -> None:
    first, second, *_, last = drifting(100_000, 12, torch.device("cpu"))
    assert (second @ first / second.norm() / first.norm()).item() == pytest.approx(0.9, abs=0.02)
    assert (last.norm() / first.norm()).item() == pytest.approx(1.0, abs=0.05)
    scales = torch.stack([part.abs().mean() for part in first.chunk(20)])
    assert scales.max() > 8 * scales.min()
    again = drifting(100_000, 1, torch.device("cpu"))[0]
    assert torch.equal(again, first)


def test_only_the_suites_that_were_named_are_measured(tmp_path: Path) -> None:
    ended = carried_out_in(tmp_path, *ARGUMENTS, "--suite", "memory", "--json")
    assert list(json.loads(ended.stdout)["suites"]) == ["memory"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--suite", "links"), 2, "there is no suite 'links'"),
        (("--density", "1"), 2, "density 1 of 100000 elements is all of them"),
        (("--device", "tpu"), 2, "unknown device 'tpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: tuple[str, ...], code: int, sentence: str, tmp_path: Path
) -> None:
    ended = carried_out_in(tmp_path, *ARGUMENTS, *arguments)
    assert ended.returncode == code and sentence in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_cuda_device_the_machine_cannot(tmp_path: Path) -> None:
    ended = carried_out_in(tmp_path, "bench", "gpu", "--quick")
    assert ended.returncode == 3 and "PyTorch sees no CUDA device" in ended.stderr


def test_a_model_that_cannot_be_trained_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("testbed.bench.compress.device.MODELS", ("cnn9",))
    bench = DeviceBench("cpu", quick=True)
    suite = bench.run(tmp_path, lambda _: None, 1, ["step"]).suites["step"]
    assert suite.rows == [] and "cnn9" in suite.absent[0]
