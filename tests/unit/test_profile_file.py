"""Profiles as files: what is written is read back, what is wrong is named, and what ships is what is estimated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.runner.manifest_writer import estimated_file
from testbed.scenario.model import Train
from testbed.scenario.profile import (
    MAX_BYTES,
    LayerTimes,
    Profile,
    _others,
    file_of,
    find,
    read_profile,
    shipped,
)
from testbed.training.models.base import outline

GIVEN = Profile(
    (LayerTimes("", 0.001, 0.002), LayerTimes("1.a", 1 / 3, 0.0)), "measured", "by hand, ½"
)
WHAT: dict[str, Any] = {
    "device": "a lathe",
    "model": "mlp",
    "task": "digits",
    "width": 0.5,
    "batch": 8,
}


def written(folder: Path, change: Any = None) -> Path:
    """A good file, as ``change`` leaves its data."""
    data = json.loads(file_of(GIVEN, {"": 3, "1.a": 4}, **WHAT).text())
    if change is not None:
        change(data)
    path = folder / "profile.json"
    path.write_text(json.dumps(data))
    return path


def test_it_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    given = file_of(GIVEN, {"": 3, "1.a": 4}, **WHAT)
    (tmp_path / "p.json").write_text(given.text(), encoding="utf-8")
    found = read_profile(tmp_path / "p.json")
    assert found == given
    assert found.profile().layers == (
        LayerTimes("", 0.001, 0.002),
        LayerTimes("1.a", 0.333333, 0.0),
    )
    assert (found.device, found.width, found.layers[1].parameters) == ("a lathe", 0.5, 4)


def test_a_layer_is_a_line() -> None:
    lines = file_of(GIVEN, {}, **WHAT).text().splitlines()
    assert [line for line in lines if '"1.a"' in line] == [
        '    {"name": "1.a", "forward_s": 0.333333, "backward_s": 0.0}'
    ]


def without(key: str) -> Any:
    return lambda data: data.pop(key)


def with_(**changes: Any) -> Any:
    return lambda data: data.update(changes)


def layer(**changes: Any) -> Any:
    return lambda data: data["layers"][1].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("batch"), "batch: Field required"),
        (with_(format="onnx"), "format: Input should be 'narrows-profile'"),
        (with_(version=2), "version: Input should be 1"),
        (with_(colour="red"), "colour: Extra inputs are not permitted"),
        (with_(batch="32"), "batch: Input should be a valid integer"),
        (with_(width=0), "width: Input should be greater than 0"),
        (with_(source="guessed"), "source: Input should be"),
        (with_(layers=[]), r"layers: Tuple should have at least 1 item"),
        (
            layer(forward_s=-1.0),
            r"layers\[1\]\.forward_s: Input should be greater than or equal to 0",
        ),
        (layer(backward_s="1 ms"), r"layers\[1\]\.backward_s: Input should be a valid number"),
        (layer(backward_s=float("nan")), r"layers\[1\]\.backward_s: Input should be"),
        (layer(name=""), "layer '' is there twice"),
        (
            lambda data: [one.update(forward_s=0, backward_s=0) for one in data["layers"]],
            "no layer takes any time",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, change: Any, message: str) -> None:
    path = written(tmp_path, change)
    with pytest.raises(InputError, match=rf"profile\.json: {message}"):
        read_profile(path)


@pytest.mark.parametrize("data", [b"", b"[1", b"\xff\xfe", b'"text"'])
def test_what_is_not_such_json_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(InputError, match=r"p\.json: .*`testbed profile` writes such files"):
        read_profile(tmp_path / "p.json")


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p\.json: cannot be read: No such file"):
        read_profile(tmp_path / "p.json")
    (tmp_path / "p.json").write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="larger than 4 MiB"):
        read_profile(tmp_path / "p.json")


def test_a_name_is_one_that_ships_and_a_path_starts_at_the_scenario(tmp_path: Path) -> None:
    assert find("v100-vgg19", tmp_path) == shipped()["v100-vgg19"]
    assert find("own.json", tmp_path) == tmp_path / "own.json"
    assert find("../own", tmp_path) == tmp_path / "../own"
    with pytest.raises(InputError, match=r"unknown profile 'v100'.*v100-resnet18"):
        find("v100", tmp_path)


def test_these_ship() -> None:
    models = ("resnet18", "resnet34", "resnet50", "vgg19")
    assert list(shipped()) == [f"v100-{model}" for model in models]


@pytest.mark.parametrize("name", list(shipped()))
def test_what_ships_is_what_is_estimated(name: str) -> None:
    found = read_profile(shipped()[name])
    assert (found.source, found.task, found.batch, found.width) == ("estimated", "cifar10", 32, 1.0)
    train = Train(model=found.model, task=found.task, batch=found.batch)
    assert estimated_file(train, "v100") == found


@pytest.mark.parametrize("name", list(shipped()))
def test_what_ships_is_also_of_batch_normalisation(name: str) -> None:
    """Its layers are those of the model with ``-bn``, and `validate` takes it for that."""
    found = read_profile(shipped()[name])
    parameters = outline(f"{found.model}-bn", found.task, 1.0).named_parameters()
    names = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in parameters))
    assert found.profile().of(names).total_s == found.total_s
    assert not list(_others(Train(model=f"{found.model}-bn", task="cifar10"), found))
    assert list(_others(Train(model="mlp", task="cifar10"), found))
