"""``make gpu``: every part is carried out and noted, whatever becomes of it, and runs are summed up from their records."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCENARIO = """
name: small
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links: {default: {up: {rate: 10 Mbit/s, queue: 20 ms}, down: {rate: 10 Mbit/s, queue: 20 ms}}}
train: {task: digits, model: mlp, stop: {steps: 3}, pace: 10 ms}
algorithms: [topk-0.01]
"""


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_results", ROOT / "tools" / "gpu_results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "testbed", *words], cwd=ROOT, check=True, timeout=200)


def noted(tool: ModuleType, out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code = tool.main([*words, "--fabric", "sim", "--out", str(out)])
    return code, json.loads((out / "results.json").read_text())


def test_runs_and_benchmarks_that_lie_there_are_summed_up(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    run = [str(tmp_path / "small.yaml"), "--fabric", "sim", "--quiet", "--no-figures"]
    command("run", *run, "--out", str(tmp_path / "table-1"))
    bench = ["--device", "cpu", "--quick", "--quiet", "--suite", "selection"]
    command("bench", "gpu", *bench, "--out", str(tmp_path))
    code, results = noted(tool, tmp_path, "--part", "tests", "--seconds", "0.2")
    assert code == 1  # pytest alone takes longer to begin
    assert results["parts"]["tests"]["exit_code"] is None
    (summed,) = results["runs"]
    (path,) = tmp_path.glob("table-1/runs/*/summary.json")
    summary = json.loads(path.read_text())
    assert summed["run"] == path.parent.name
    assert summed["commit"] == results["machine"]["commit"]
    assert {key: summary[key] for key in tool.ABOUT_RUN} == {
        key: summed[key] for key in tool.ABOUT_RUN
    }
    assert (summed["steps"], summed["verdict"]) == (3, "valid")
    assert {*results["suites"]} == {"memory", "selection"}
    assert "tests: stopped" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_parts_say_so_and_the_next_follow(tool: ModuleType, tmp_path: Path) -> None:
    code, results = noted(tool, tmp_path, "--part", "bench", "--part", "tests")
    assert code == 1
    bench, tests = results["parts"]["bench"], results["parts"]["tests"]
    assert bench["exit_code"] == 3
    assert "sees no CUDA device" in bench["last_line"]
    assert bench["last_line"] in (tmp_path / "bench.log").read_text()
    assert tests["exit_code"] == 0
    assert " skipped in " in tests["last_line"] and "failed" not in tests["last_line"]
    assert (results["runs"], results["suites"]) == ([], {})


def test_every_part_is_a_command_that_there_is(tool: ModuleType, tmp_path: Path) -> None:
    """Scenarios and folders are there; Table 1 has the plan of that size."""
    for part, command in tool.commands(tool.arguments(["--out", str(tmp_path)])).items():
        paths = [
            word for word in command if word.startswith(("tests/", "/")) and "--out" not in word
        ]
        assert [*filter(None, paths)], part
        assert all((ROOT / word).exists() or word.startswith(str(tmp_path)) for word in paths), part


def test_an_unknown_part_is_named(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--part", "nothing", "--out", str(tmp_path / "out")]) == 2
    assert "'nothing'; known: tests, bench, demo" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
