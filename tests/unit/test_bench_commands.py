"""``testbed bench scale``, ``coded``, ``agreement``, ``control`` and ``exchange`` as they are called, in virtual time."""

from __future__ import annotations

import json
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import command_here
import pytest
from one_by_one import one_by_one

from testbed.bench import coded as coded_run
from testbed.bench import controllers as response_run
from testbed.bench import sim_agreement
from testbed.bench.coded import SHARES, pace_s
from testbed.bench.exchange.cases import EXCHANGES
from testbed.bench.sim_agreement import CONDITION_NAMES, MEASURED, AgreementCell
from testbed.bench.sim_scale import ScaleSize, scenario
from testbed.bench.waveforms import WAVEFORMS
from testbed.errors import ExperimentError, InputError
from testbed.host import user_namespace
from testbed.runner.experiment import prepare
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.load import load

PEERS = """
name: peers
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
train:
  task: digits
  model: mlp
  batch: 24
  optimizer: {name: sgd, lr: 0.1}
  pace: 50 ms
  stop: {steps: 30}
  evaluate_every: 30
algorithms: [ssgd]
congestion: cubic
"""
OPTIMIZER = "  optimizer: {name: sgd, lr: 0.1}\n"


call = partial(command_here.call, "bench")


def told(*arguments: object) -> Any:
    """What it says on standard output, as JSON."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    return json.loads(result.stdout)


def written(out: Path, name: str) -> tuple[Path, Any]:
    """The directory of the only measurement, and what its file holds."""
    (path,) = out.glob(f"measurements/*/{name}.json")
    return path.parent, json.loads(path.read_text())


@pytest.mark.nightly
def test_scale_measures_every_size(tmp_path: Path) -> None:
    sizes = ("--workers", 2, "--workers", 40, "--servers", 1)
    found = told("scale", *sizes, "--steps", 2, "--out", tmp_path)
    directory, kept = written(tmp_path, "scale")
    assert kept == found
    few, many = found["rows"]
    assert [(row["servers"], row["workers"]) for row in (few, many)] == [(1, 2), (1, 40)]
    for row in (few, many):
        parts = [row[f"{part}_s"] for part in ("compute", "send", "wait", "receive")]
        assert row["step_s"] == pytest.approx(sum(parts), rel=0.02)
        assert row["compute_s"] == pytest.approx(0.1, rel=0.01)
        # windows grow in a run of two steps; what is expected knows of no windows
        assert 0.95 < row["step_s"] / row["expected_step_s"] < 1.4
        assert 0 < row["run_per_step_s"] == pytest.approx(row["run_s"] / 2)
        # a process that has loaded its libraries, and not this one's share of them
        assert 50e6 < row["memory_bytes"] < 4e9
    # all gradients pass the server's link
    assert many["expected_step_s"] > few["expected_step_s"]
    assert many["step_s"] > few["step_s"]
    assert found["about"]["steps"] == 2 and found["checks"] == []
    assert {path.name for path in directory.glob("scale*")} >= {
        "scale.png", "scale.csv", "scale-1-2.yaml", "scale-1-40.yaml",
    }  # fmt: skip
    assert len(list(directory.glob("virtual/runs/*/summary.json"))) == 2


def test_scale_puts_workers_into_racks_of_a_hundred(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(scenario(ScaleSize(8, 250), 3, "none")))
    experiment = prepare(path)
    roles = [spec.role for spec in experiment.specs]
    assert (roles.count("server"), roles.count("worker")) == (8, 250)
    assert list(load(path).scenario.racks) == ["rack-0", "rack-1", "rack-2"]
    rates = experiment.timeline.highest_rates()
    assert rates[LinkDirection("server-0", "up")] == 25 * 10**9
    assert rates[LinkDirection("workers-2-49", "up")] == 10**9
    assert rates[LinkDirection("rack-0", "up")] == 10 * 10**9


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials one after the other: the processes in which they lie side by side have their own tests."""
    monkeypatch.setattr(coded_run, "side_by_side", one_by_one)


@pytest.mark.nightly
@pytest.mark.usefixtures("in_this_process")
def test_coded_learns_then_measures_then_models(tmp_path: Path) -> None:
    source = tmp_path / "peers.yaml"
    source.write_text(PEERS)
    known = told(
        "coded", source, "--fabric", "sim", "--accuracy", 0.2, "--most", 20, "--steps", 3,
        "--algo", "cssgd-r2", "--rate", 0.1, "--share", 0.2, "--out", tmp_path,
    )  # fmt: skip
    directory, kept = written(tmp_path, "coded")
    assert kept == known
    assert set(known["reached_s"]) == {"ssgd-multicast", "asgd"}
    assert known["learning_rate"] == {"ssgd-multicast": 0.1, "asgd": 0.1}
    assert 2 <= known["steps"] <= 20 and known["steps"] % 2 == 0
    real = known["real"]
    assert real["pace_s"] == pytest.approx(pace_s(0.2, real["communication_s"]))
    assert set(known["steps_real"]) == {"ssgd-multicast", "cssgd-r2"}
    assert set(known["virtual"]) == {f"{share:g}" for share in SHARES}
    for found in (known["steps_real"], *(of["steps"] for of in known["virtual"].values())):
        assert all(of["verdict"] == "valid" and of["step_s"] > 0 for of in found.values())
    rows = known["rows"]
    assert len(rows) == 3 * (1 + len(SHARES))
    assert [row["links"] for row in rows] == ["real"] * 3 + ["virtual"] * 9
    first, coded, whole = rows[:3]
    assert (first["scheme"], first["saved_ssgd"]) == ("ssgd-multicast", 0.0)
    assert coded["time_s"] == pytest.approx(known["steps"] * coded["step_s"])
    # a packet that is coded serves two at once
    assert coded["sent_mb_step"] < 0.9 * first["sent_mb_step"]
    assert isfinite(whole["time_s"]) and whole["time_s"] == known["async_real"]["time_s"]
    # the share of a step that computes is the one that was asked for
    part = known["steps_real"]["ssgd-multicast"]
    assert part["phases_s"]["compute"] / part["step_s"] == pytest.approx(0.2, abs=0.04)
    assert (directory / "scenarios").is_dir() and len(list(directory.glob("real/runs/*"))) == 4


@pytest.mark.usefixtures("in_this_process")
def test_coded_says_which_accuracy_nothing_reached(tmp_path: Path) -> None:
    source = tmp_path / "peers.yaml"
    (tmp_path / "walk.csv").write_text("time_s,rate_mbit_s\n0,40\n30,30\n")
    trace = "{kind: trace, links: [server], file: walk.csv, at_end: hold}"
    source.write_text(f"{PEERS.replace(OPTIMIZER, '')}events: [{trace}]\n")
    result = call(
        "coded", source, "--fabric", "sim", "--accuracy", 1.0, "--most", 5, "--rate", 0.1,
        "--out", tmp_path, "--quiet",
    )  # fmt: skip
    assert isinstance(result.exception, ExperimentError)
    assert "ssgd-multicast reached no accuracy of 1 within 5 steps" in str(result.exception)


def test_agreement_judges_measurements_again(tmp_path: Path) -> None:
    cells = {AgreementCell("static", workers, 100): {"none": [0.5, 0.6]} for workers in (2, 8)}
    kept = {"steps": 3, "verdicts": {}, "failed": {}, "runs": sim_agreement.to_json(cells)}
    (tmp_path / MEASURED).write_text(json.dumps(kept))
    result = call("agreement", "--again", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (1 if found["met"] is False else 0)
    assert {row["workers"] for row in found["rows"]} == {2, 8}
    assert all(row["measured_s"] == pytest.approx(0.55) for row in found["rows"])
    assert all(0.1 < row["simulated_s"] < 2.0 for row in found["rows"])
    assert json.loads((tmp_path / "agreement.json").read_text()) == found
    assert (tmp_path / "agreement.png").stat().st_size > 500


def test_agreement_without_a_measurement_names_what_failed(tmp_path: Path) -> None:
    kept = {"steps": 3, "verdicts": {}, "failed": {"cross-4-50": "no iperf3"}, "runs": []}
    (tmp_path / MEASURED).write_text(json.dumps(kept))
    found = told("agreement", "--again", tmp_path)
    assert (found["rows"], found["absent"]) == ([], ["cross-4-50: no iperf3"])
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.nightly
def test_control_answers_for_one_waveform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_run, "FIXED", {"topk-0.01": 0.01, "topk-0.3": 0.3})
    found = told(
        "control", "--waveform", "step-down", "--algo", "adatopk", "--steps", 20, "--target", 0.3,
        "--out", tmp_path,
    )  # fmt: skip
    directory, kept = written(tmp_path, "step_responses")
    assert kept["rows"] == found["rows"]
    assert {row["waveform"] for row in found["rows"]} == {"step-down"}
    assert found["rows"][0]["algorithm"] == "adatopk"
    assert {path.stem for path in directory.glob("*.png")} == {
        "control_adatopk", "control_regrets",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence", "known"),
    [
        (("control", "--waveform", "triangle"), "unknown waveform 'triangle'", WAVEFORMS),
        (("agreement", "--condition", "storm"), "unknown condition 'storm'", CONDITION_NAMES),
        (("exchange", "--exchange", "pigeon"), "pigeon", EXCHANGES),
        (("link", "--suite", "pigeon"), "no suite 'pigeon'", ("static", "certificate")),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(
    arguments: tuple[str, ...], sentence: str, known: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(user_namespace, "become_able", lambda _: None)
    result = call(*arguments, "--out", tmp_path)
    assert isinstance(result.exception, InputError) and result.exception.exit_code == 2
    said = str(result.exception)
    assert sentence in said and all(name in said for name in known), said
    assert f"--{arguments[1].removeprefix('--')}" in said
    assert not list(tmp_path.glob("measurements/*"))


def test_exchanges_that_take_too_long_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_namespace, "become_able", lambda _: None)
    # four gradients of 10 MB into the server and out again: 6.4 s at 100 Mbit/s
    found = told(
        "exchange", "--exchange", "ps-loop", "--nodes", 4, "--bytes", 10_000_000,
        "--link", "100 Mbit/s", "--longest", 6.3, "--out", tmp_path,
    )  # fmt: skip
    assert found["results"] == []
    (absent,) = found["absent"]
    assert (
        "ps-loop with 4 nodes, 10000000 B, 100 Mbit/s" in absent and "longer than 6.3 s" in absent
    )
