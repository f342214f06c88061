"""What a run says of itself while it goes on: in model time, as its records and figures are."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.algorithm import Algorithm
from testbed.errors import Interrupted
from testbed.runner.comparison import interleaved
from testbed.runner.progress import Progress, Remaining, _facts, duration
from testbed.runner.run import _ended


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "density": 0.25, "delay_s": 0.4, **more}


def sample(link: str, direction: str = "down") -> dict[str, Any]:
    return {
        "kind": "sample", "link": link, "direction": direction, "from_s": 2.0, "to_s": 2.5, "asked_bits": 1e6,
    }  # fmt: skip


@pytest.mark.parametrize(("dilation", "delay", "rate"), [(1.0, "400 ms", "2.0"), (10.0, "40 ms", "20.0")])  # fmt: skip
def test_times_and_rates_are_the_models(dilation: float, delay: str, rate: str) -> None:
    """With dilation 10 everything takes ten times as long here, at a tenth of the rates."""
    progress = Progress(quiet=True, dilation=dilation, watched_link="server")
    progress.begin("none s1", 12, 1, 3)
    progress.event(step(4))
    for other in (sample("worker-0"), sample("server", "up"), {"kind": "change", "link": "server"}):
        progress.link(other)
    assert progress._trial is not None and progress._trial.rate_bits is None
    progress.link(sample("server"))
    facts = _facts(progress._trial)
    assert (facts["delay"], facts["link"]) == (delay, f"{rate} Mbit/s")
    assert (facts["run"], facts["step"], facts["k"]) == ("1/3 none s1", "4/12", "0.25")


def test_the_step_is_that_of_the_furthest_worker_and_the_accuracy_the_latest() -> None:
    progress = Progress(quiet=True)
    progress.event(step(1))
    progress.begin("none s1", None, 1, 1)
    for event in (step(3), step(2), {"kind": "evaluation", "accuracy": 0.5}, {"kind": "epoch"}):
        progress.event(event)
    assert progress._trial is not None
    facts = _facts(progress._trial)
    assert (facts["step"], facts["accuracy"]) == ("3", "0.500")
    progress.event({"kind": "evaluation", "accuracy": 0.25})
    assert _facts(progress._trial)["accuracy"] == "0.250"
    progress.begin("none s2", None, 2, 2)
    assert _facts(progress._trial)["step"] == "0", "another run, from its begin"


@pytest.mark.parametrize("in_process", [True, False])
def test_what_the_first_run_loads_is_not_expected_of_others(in_process: bool) -> None:
    """Where nodes are started anew for every run, each of them loads again."""
    progress, loading_s = Progress(quiet=True), 1000.0
    whole = progress.whole = Remaining(["a", "b", "c"], in_process=in_process)
    for number in (1, 2):
        whole.begun(time.monotonic() - loading_s)
        progress.begin("a s1", None, number, 3)
        for count in (1, 2):
            progress.event(step(count))
        whole.over(number - 1, whole.elapsed_s(time.monotonic()))
        left_s = whole.left_s(time.monotonic())
        expected_s = {1: 0.0, 2: loading_s / 2}[number] if in_process else (3 - number) * loading_s
        assert left_s == pytest.approx(expected_s, rel=0.1, abs=1.0)


def test_durations_as_people_say_them() -> None:
    times_s = (45.4, 99.0, 100.0, 5999.0, 6000.0, 12_600.0)
    assert [duration(time_s) for time_s in times_s] == [
        "45 s", "99 s", "2 min", "100 min", "1.7 h", "3.5 h",
    ]  # fmt: skip


def test_every_seed_begins_one_algorithm_later() -> None:
    """So that none of them always runs first, or after the same one."""
    rows = [Algorithm(name) for name in "abc"]
    order = interleaved(rows, [7, 8, 9, 10])
    assert "".join(row.name for row, _ in order) == "abcbcacababc"
    assert [seed for _, seed in order] == [7] * 3 + [8] * 3 + [9] * 3 + [10] * 3


@pytest.mark.parametrize(
    ("steps", "said"),
    [([], ""), ([None], ""), ([0, None], ""), ([3], "1 run was begun"), ([3, 0, 1], "3 runs were")],
)
def test_a_report_is_offered_where_there_is_a_step_to_draw(
    steps: list[int | None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison: Any = SimpleNamespace(runs=[{"steps": each} for each in steps], directory="d")
    with pytest.raises(Interrupted), _ended(Progress(quiet=False), comparison, None):
        raise Interrupted("enough")
    told = capsys.readouterr().err
    assert told.startswith(said) if said else not told
