"""``testbed bench scale``, ``coded``, ``agreement``, ``control`` and ``exchange`` as they are called, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from testbed.bench.agreement import measure
from testbed.bench.agreement.matrix import CONDITION_NAMES, Cell
from testbed.bench.agreement.run import MEASURED
from testbed.bench.coded import run as coded_run
from testbed.bench.exchange.table import EXCHANGES
from testbed.bench.response.waveforms import WAVEFORMS
from testbed.bench.scale.growth import Size, scenario
from testbed.cli import VERBS, application
from testbed.errors import ExperimentError, InputError
from testbed.fabric import rootless
from testbed.scenario.load import load
from testbed.scenario.shape import End
from testbed.session.experiment import prepare
from testbed.session.parallel import Finished, Task
from testbed.session.run import run as carry_out

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


def call(*arguments: object) -> Result:
    """One verb of ``testbed bench``."""
    return CliRunner().invoke(
        application({"bench": VERBS["bench"]}), ["bench", *map(str, arguments)]
    )


def told(*arguments: object) -> Any:
    """What it says on standard output, as JSON."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    return json.loads(result.stdout)


def written(out: Path, name: str) -> tuple[Path, Any]:
    """The directory of the only measurement, and what its file holds."""
    (path,) = out.glob(f"measurements/*/{name}.json")
    return path.parent, json.loads(path.read_text())


def test_scale_puts_workers_into_racks_of_a_hundred(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(scenario(Size(8, 250), 3, "none")))
    experiment = prepare(path)
    roles = [spec.role for spec in experiment.specs]
    assert (roles.count("server"), roles.count("worker")) == (8, 250)
    assert list(load(path).scenario.racks) == ["rack-0", "rack-1", "rack-2"]
    rates = experiment.timeline.highest_rates()
    assert rates[End("server-0", "up")] == 25 * 10**9
    assert rates[End("workers-2-49", "up")] == 10**9
    assert rates[End("rack-0", "up")] == 10 * 10**9


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials one after the other: the processes in which they lie side by side have their own tests."""

    def alone(tasks: Sequence[Task], out: Path, _: int) -> Iterator[Finished]:
        for place, task in enumerate(tasks):
            experiment = prepare(task.source, [task.algorithm], [task.seed])
            (entry,) = carry_out(experiment, "sim", out, quiet=True).runs
            yield Finished(place, entry, 0.0)

    monkeypatch.setattr(coded_run, "side_by_side", alone)


@pytest.mark.usefixtures("in_this_process")
def test_coded_says_which_accuracy_nothing_reached(tmp_path: Path) -> None:
    source = tmp_path / "peers.yaml"
    source.write_text(PEERS)
    result = call(
        "coded", source, "--fabric", "sim", "--accuracy", 1.0, "--most", 5, "--rate", 0.1,
        "--out", tmp_path, "--quiet",
    )  # fmt: skip
    assert isinstance(result.exception, ExperimentError)
    assert "ssgd-multicast reached no accuracy of 1 within 5 steps" in str(result.exception)


def test_agreement_judges_measurements_again(tmp_path: Path) -> None:
    cells = {Cell("static", workers, 100): {"none": [0.5, 0.6]} for workers in (2, 8)}
    kept = {"steps": 3, "verdicts": {}, "failed": {}, "runs": measure.to_json(cells)}
    (tmp_path / MEASURED).write_text(json.dumps(kept))
    result = call("agreement", "--again", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (1 if found["met"] is False else 0)
    assert {row["workers"] for row in found["rows"]} == {2, 8}
    assert all(row["measured_s"] == pytest.approx(0.55) for row in found["rows"])
    assert all(0.1 < row["simulated_s"] < 2.0 for row in found["rows"])
    assert json.loads((tmp_path / "agreement.json").read_text()) == found
    assert (tmp_path / "agreement.png").stat().st_size > 500


@pytest.mark.parametrize(
    ("arguments", "sentence", "known"),
    [
        (("control", "--waveform", "sawtooth"), "unknown waveform 'sawtooth'", WAVEFORMS),
        (("agreement", "--condition", "storm"), "unknown condition 'storm'", CONDITION_NAMES),
        (("exchange", "--exchange", "pigeon"), "pigeon", EXCHANGES),
        (("link", "--suite", "pigeon"), "no suite 'pigeon'", ("static", "certificate")),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(
    arguments: tuple[str, ...], sentence: str, known: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rootless, "become_able", lambda _: None)
    result = call(*arguments, "--out", tmp_path)
    assert isinstance(result.exception, InputError) and result.exception.exit_code == 2
    said = str(result.exception)
    assert sentence in said and all(name in said for name in known), said
    assert f"--{arguments[1].removeprefix('--')}" in said
    assert not list(tmp_path.glob("measurements/*"))


def test_exchanges_that_take_too_long_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rootless, "become_able", lambda _: None)
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
