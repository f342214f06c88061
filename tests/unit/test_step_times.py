"""What steps are asked to take: drawn, recorded, slowed; the same on every fabric and in every process."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

from testbed.errors import InputError
from testbed.exchange.coded.exchange import work
from testbed.runner.experiment import JobFactory, prepare
from testbed.scenario.load import load
from testbed.scenario.model import LogNormalPace, Pace, RecordedPace, pace_of
from testbed.scenario.recorded_paces import read_step_times
from testbed.training.job import Job
from testbed.training.membership import peers
from testbed.training.pacing import StepTimes, step_times, times_of
from testbed.units import Duration

SCENARIO = """
name: unlike
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 3}}, old: {{role: worker}}}}
links: {{default: {{up: {{rate: 9 Mbit/s, queue: 50 ms}}, down: {{rate: 9 Mbit/s, queue: 50 ms}}}}}}
train: {{model: mlp, {train}}}
dilation: {dilation}
algorithms: [none]
"""
MEDIAN, SIGMA = 0.2, 0.3
DRAWN = LogNormalPace(name="lognormal", median=Duration(MEDIAN), sigma=SIGMA)


def written(folder: Path, train: str, dilation: float = 1) -> Path:
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(train=train, dilation=dilation))
    return path


def jobs(path: Path, seed: int = 1) -> dict[str, Job]:
    """Of all nodes, as they arrive there."""
    experiment = prepare(path)
    made = JobFactory(experiment, experiment.algorithms[0], seed, 1)
    return {
        spec.name: Job.from_json(json.loads(json.dumps(made.of(spec).to_json())))
        for spec in experiment.specs
    }


def times(job: Job) -> StepTimes:
    found = step_times(job)
    assert found is not None
    return found


def of(pace: Pace, seed: int = 1, node: str = "worker-0") -> StepTimes:
    found = times_of(pace, seed, node)
    assert found is not None
    return found


def test_drawn_times_have_the_median_and_the_deviation_that_were_asked_for() -> None:
    logs = [log(of(DRAWN).at(step)) for step in range(1, 20_001)]
    error = SIGMA / len(logs) ** 0.5
    assert fmean(logs) == pytest.approx(log(MEDIAN), abs=4 * error)
    assert stdev(logs) == pytest.approx(SIGMA, rel=0.03)


def test_a_mean_is_the_mean() -> None:
    asked = LogNormalPace(name="lognormal", mean=Duration(MEDIAN), sigma=1.0)
    assert asked.median_s == pytest.approx(MEDIAN * exp(-0.5))
    drawn = [of(asked).at(step) for step in range(1, 50_001)]
    assert fmean(drawn) == pytest.approx(MEDIAN, rel=0.04)


def test_a_draw_depends_on_seed_node_and_step_alone() -> None:
    first = [of(DRAWN).at(step) for step in (1, 2, 3)]
    assert [of(DRAWN).at(step) for step in (3, 2, 1)] == first[::-1]
    assert len({*first, of(DRAWN, seed=2).at(1), of(DRAWN, node="worker-1").at(1)}) == 5


def test_a_constant_stretches_nothing() -> None:
    asked = of(Duration(0.1))
    assert asked.at(5) == asked.usual_s == asked.longest_s == 0.1
    assert asked.factor(5) == 1.0


def test_own_pace_and_factor_go_from_node_to_group_to_all() -> None:
    own: dict[str, Pace] = {"old": Duration(0.3), "worker-1": DRAWN}
    slow = {"worker": 2.0, "worker-2": 4.0}
    general = Duration(0.1)
    assert pace_of("old", "old", general, own, slow) == 0.3
    assert pace_of("worker-0", "worker", general, own, slow) == 0.2
    assert pace_of("worker-2", "worker", general, own, slow) == 0.4
    drawn = pace_of("worker-1", "worker", general, own, slow)
    assert isinstance(drawn, LogNormalPace) and drawn.median_s == pytest.approx(2 * MEDIAN)


def test_a_pace_given_by_its_mean_is_slowed_too(tmp_path: Path) -> None:
    pace = "pace: {name: lognormal, mean: 100 ms, sigma: 0.5}"
    usual = times(jobs(written(tmp_path, pace))["old"])
    slow = times(jobs(written(tmp_path, f"{pace}, slow: {{old: 3}}"))["old"])
    assert [slow.at(step) for step in (1, 2, 3)] == pytest.approx(
        [3 * usual.at(step) for step in (1, 2, 3)]
    )
    assert slow.longest_s == pytest.approx(3 * usual.longest_s)


def test_who_computes_more_than_a_batch_is_waited_for_longer(tmp_path: Path) -> None:
    """With redundancy 3 of a coded exchange a worker is silent for three batches' time."""
    experiment = prepare(written(tmp_path, "batch: 30, pace: 200 ms"), ["none", "cssgd-r3"])
    worker = next(spec for spec in experiment.specs if spec.role == "worker")
    plain, coded = (JobFactory(experiment, row, 1, 1).of(worker) for row in experiment.algorithms)
    share = work(coded.algorithm.exchange_options, 4)
    assert share > 1.2
    assert peers(plain).timeout_s == pytest.approx(plain.peer_timeout_s + 0.2)
    assert peers(coded).timeout_s == pytest.approx(coded.peer_timeout_s + share * 0.2)


def test_nodes_get_their_own_and_wait_for_the_slowest(tmp_path: Path) -> None:
    found = jobs(written(tmp_path, "pace: 100 ms, paces: {old: 300 ms}, slow: {worker-2: 5}", 10))
    assert times(found["worker-0"]).at(1) == pytest.approx(1.0)
    assert times(found["old"]).at(1) == pytest.approx(3.0)
    assert times(found["worker-2"]).at(1) == pytest.approx(5.0)
    for job in found.values():
        assert peers(job).timeout_s == pytest.approx(100.0 + 5.0)


def test_recorded_times_come_round_from_a_place_of_each_nodes_own(tmp_path: Path) -> None:
    recorded = [float(10 + i) for i in range(50)]
    (tmp_path / "gpu.csv").write_text("# of a device\nstep_ms\n" + "\n".join(map(str, recorded)))
    path = written(tmp_path, "pace: {name: file, file: gpu.csv, scale: 2}, slow: {old: 3}", 10)
    found = jobs(path)
    asked = [1e3 * times(found["worker-0"]).at(step) for step in range(1, 101)]
    assert sorted(asked[:50]) == pytest.approx([20 * one for one in recorded])
    assert asked[50:] == asked[:50]
    assert times(found["worker-0"]).at(1) != times(found["worker-1"]).at(1)
    assert times(found["old"]).usual_s == pytest.approx(60 * median(recorded) / 1e3)
    assert found["server"].longest_pace_s == pytest.approx(60 * max(recorded) / 1e3)


def test_each_column_and_each_file_is_a_pace_of_its_own(tmp_path: Path) -> None:
    """The same column goes with several factors; files may have columns of the same name."""
    (tmp_path / "a.csv").write_text("fast_ms,slow_s\n10,1\n")
    (tmp_path / "b.csv").write_text("fast_ms,slow_s\n20,2\n")

    def pace(file: str, column: str, scale: int = 1) -> str:
        return f"{{name: file, file: {file}.csv, column: {column}, scale: {scale}}}"

    own = {
        "worker-0": pace("a", "fast_ms", 3),
        "worker-1": pace("a", "slow_s"),
        "worker-2": pace("b", "fast_ms"),
        "old": pace("b", "slow_s"),
    }
    paces = ", ".join(f"{name}: {one}" for name, one in own.items())
    found = jobs(written(tmp_path, f"pace: {pace('a', 'fast_ms')}, paces: {{{paces}}}"))
    asked = {name: times(found[name]).at(1) for name in own}
    assert asked == pytest.approx({"worker-0": 0.03, "worker-1": 1, "worker-2": 0.02, "old": 2})
    assert found["server"].longest_pace_s == pytest.approx(2)


def test_all_may_begin_with_the_first() -> None:
    pace = RecordedPace(name="file", file="a.csv", begin="first")
    for node in ("a", "b"):
        asked = times_of(pace, 3, node, [0.5, 0.25])
        assert asked is not None and [asked.at(step) for step in (1, 2, 3)] == [0.5, 0.25, 0.5]


@pytest.mark.parametrize(
    ("name", "text", "column", "found"),
    [
        ("a.csv", "step_us,loss\n1500,2\n500,1\n", None, (0.0015, 0.0005)),
        ("a.csv", "a_s,b_ms\n1,2\n", "b_ms", (0.002,)),
        ("a.json", '{"step_s": [1, 0.5], "device": "x"}', None, (1.0, 0.5)),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, column: str | None, found: object) -> None:
    (tmp_path / name).write_text(text)
    assert read_step_times(tmp_path / name, column) == pytest.approx(found)


@pytest.mark.parametrize(
    ("name", "text", "column", "message"),
    [
        ("a.csv", "", None, "which column is meant: it has none"),
        ("a.csv", "a_s,b_ms\n1,2\n", None, "which column is meant: it has 'a_s', 'b_ms'"),
        ("a.csv", "a_s\n1\n", "b_s", "no step times are called 'b_s'"),
        ("a.csv", "a_s\n1\n0\n", None, r"a_s\[1\] is '0'"),
        ("a.csv", "a_s\n", None, "0 step times"),
        ("a.json", "[1, 2]", None, "a list by name is needed"),
        ("a.json", '{"a_s": [true]}', None, r"a_s\[0\] is True"),
        ("a.json", "{", None, "this is not JSON"),
    ],
)
def test_files_that_are_refused(
    tmp_path: Path, name: str, text: str, column: str | None, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_step_times(tmp_path / name, column)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("slow: {worker: 2}", r"train.slow: give the others a time as well"),
        ("pace: 1 s, slow: {worker-9: 2}", "no node or group is called 'worker-9'"),
        ("pace: 1 s, paces: {server: 2 s}", "'server' is no worker"),
        ("pace: 0.2", "train.pace: duration 0.2 has no unit"),
        ("pace: {name: lognorm, median: 1 s, sigma: 1}", "train.pace.name: unknown name 'lognorm'"),
        ("pace: {name: lognormal, sigma: 1}", "train.pace: give `median` or `mean`"),
        ("pace: {name: lognormal, median: 1 s, sigma: 9}", "train.pace.sigma"),
        ("pace: {name: lognormal, media: 1 s, sigma: 1}", "did you mean 'median'"),
        ("pace: 1 s, paces: {old: {name: fil}}", "train.paces.old.name: unknown name 'fil'"),
        ("pace: {name: file, file: none.csv}", "train.pace.file: .*none.csv: cannot be read"),
    ],
)
def test_scenarios_that_are_refused(tmp_path: Path, train: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(written(tmp_path, train))
