"""``testbed profile`` with another batch and width: what is measured or estimated is the model that was asked for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import command_here
import pytest

from testbed.errors import InputError

SCENARIO = """
name: wide
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
train:
  {task: digits, model: mlp, width: 2, batch: 16, optimizer: {name: sgd, lr: 0.1}, pace: 50 ms, stop: {steps: 3}}
algorithms: [none]
"""


call = partial(command_here.call, "profile")


def profile(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def parameters(found: dict[str, Any]) -> int:
    return sum(layer["parameters"] or 0 for layer in found["layers"])


def times(found: dict[str, Any]) -> float:
    return sum(layer["forward_s"] + layer["backward_s"] for layer in found["layers"])


def test_an_estimate_grows_with_batch_and_width() -> None:
    small = ("--estimate", "v100", "--model", "resnet18", "--task", "cifar10")
    one, more = profile(*small, "--batch", 32), profile(*small, "--batch", 128)
    assert (one["batch"], more["batch"]) == (32, 128)
    assert parameters(one) == parameters(more)
    assert 1.5 < times(more) / times(one) <= 4.001
    narrow = profile(*small, "--batch", 32, "--width", 0.5)
    assert narrow["width"] == 0.5
    # a convolution's weights are a product of two widths
    assert 0.2 < parameters(narrow) / parameters(one) < 0.35
    assert times(narrow) < times(one)


def test_what_is_measured_has_the_batch_and_width_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text(SCENARIO)
    own = profile(path, "--passes", 1)
    assert (own["batch"], own["width"], own["model"]) == (16, 2, "mlp")
    other = profile(path, "--passes", 1, "--batch", 4, "--width", 1)
    assert (other["batch"], other["width"], other["model"]) == (4, 1, "mlp")
    assert 0.3 < parameters(other) / parameters(own) < 0.6
    assert all(layer["forward_s"] >= 0 and layer["backward_s"] >= 0 for layer in other["layers"])
    assert times(other) > 0


def test_the_file_is_one_that_a_scenario_takes(tmp_path: Path) -> None:
    file = tmp_path / "made" / "profile.json"
    result = call("--model", "mlp", "--batch", 8, "--passes", 1, "--out", file)
    assert result.exit_code == 0 and f"written to {file}" in result.stdout.replace("\n", "")
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("width: 2, batch: 16,", f"batch: 8, profile: {file},"))
    assert command_here.call("validate", path).exit_code == 0


@pytest.mark.parametrize(("option", "wrong"), [("--batch", 0), ("--width", 0), ("--passes", 0)])
def test_what_is_out_of_range_is_refused(option: str, wrong: int) -> None:
    assert call("--model", "mlp", option, wrong).exit_code == 2


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    error = call("--model", "mlp", "--device", "abacus").exception
    assert isinstance(error, InputError) and "cpu, cuda" in str(error)
