"""A job on its way to a node, and what a node refuses to begin."""

from __future__ import annotations

import json

import pytest
import torch
from virtual_setup import Stage, job

from testbed.algorithm import Algorithm
from testbed.errors import GradientError, InputError, MachineError
from testbed.scenario.model import Stop
from testbed.training.job import Job
from testbed.training.replica import DeviceStaging, configure_torch
from testbed.training.worker import Stopping

torch.set_num_threads(1)


def test_a_job_survives_its_journey() -> None:
    given = job(2, 4, "topk", optimizer={"lr": 0.3, "schedule": {"name": "cosine"}})
    assert Job.from_json(json.loads(json.dumps(given.to_json()))) == given


def test_a_job_without_pace_too() -> None:
    given = job(0, 1, "none", pace=None, stop=Stop(accuracy=0.9))
    assert Job.from_json(json.loads(json.dumps(given.to_json()))) == given


@pytest.mark.parametrize(
    "change", [{"train": {"tasks": 1}}, {"algorithm": {}}, {"train": None}, {"colour": "red"}]
)
def test_something_else_is_not_a_job(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="this is not a job"):
        Job.from_json({**job(1, 1, "none").to_json(), **change})


def test_peers_have_names() -> None:
    assert [job(1, 2, "none").peer_name(peer) for peer in (0, 1, 2)] == [
        "server", "worker-0", "worker-1",
    ]  # fmt: skip
    assert job(1, 2, "none").worker_peers() == range(1, 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Algorithm("a", selector="topp"), "unknown selector 'topp'"),
        (Algorithm("a", memory="lots"), "unknown memory 'lots'"),
        (Algorithm("a", controller="adatop"), "algorithm 'a': unknown controller 'adatop'"),
        (Algorithm("a", exchange="pigeon"), "algorithm 'a': unknown exchange 'pigeon'"),
        (Algorithm("a", buckets="layers"), "asks for buckets 'layers'"),
        (Algorithm("a", overlap=True), "overlap True"),
    ],
)
def test_an_algorithm_that_is_not_there_is_refused(row: Algorithm, message: str) -> None:
    stage = Stage(1, "none")
    object.__setattr__(stage.roles["worker-0"]._job, "algorithm", row)
    with pytest.raises(InputError, match=message):
        stage.play()


def test_a_run_that_never_ends_is_refused() -> None:
    with pytest.raises(InputError, match="would never end"):
        Stage(1, "none", stop=Stop()).play()


def test_the_nearest_limit_counts() -> None:
    assert Stopping(Stop(steps=30, epochs=2), steps_per_epoch=11).limit == 22
    assert Stopping(Stop(steps=20, epochs=2), steps_per_epoch=11).limit == 20
    assert Stopping(Stop(accuracy=0.5), steps_per_epoch=11).limit is None


def test_a_diverged_run_names_the_parameter() -> None:
    with pytest.raises(GradientError, match=r"gradient of '.*(weight|bias)' holds"):
        Stage(1, "none", optimizer={"lr": 1e30}).play()


@pytest.mark.optional
def test_a_missing_gpu_is_the_machines_fault() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(MachineError, match="no CUDA device"):
        configure_torch("cuda", threads=1)


def test_on_the_cpu_a_vector_lands_where_it_is_used() -> None:
    landing = DeviceStaging(5, torch.device("cpu"))
    landing.room().fill_(3.0)
    assert landing.deliver().data_ptr() == landing.room().data_ptr()
