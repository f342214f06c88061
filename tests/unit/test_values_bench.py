"""``testbed bench quantize`` on short vectors: what it says, not how fast it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from testbed.bench.cli import app
from testbed.bench.compress.payload import (
    METHODS,
    PLAIN,
    READ,
    QuantizeResult,
    measure_value_codings,
)
from testbed.compress.base import codings
from testbed.errors import InputError

ELEMENTS = 3_000_000
"""More than one of its matrices."""


@pytest.fixture(scope="module")
def measured() -> tuple[QuantizeResult, list[str]]:
    """What was found, and what was said meanwhile."""
    before = torch.get_num_threads()
    said: list[str] = []
    found = measure_value_codings(ELEMENTS, 1, "laplace", 1, said.append)
    assert torch.get_num_threads() == before
    return found, said


def test_every_coding_is_measured_and_as_short_as_its_formula(
    measured: tuple[QuantizeResult, list[str]],
) -> None:
    found, said = measured
    data = found.to_json()
    assert set(data) == {"elements", "threads", "source", "references", "results"}
    assert (data["elements"], data["threads"], data["source"]) == (ELEMENTS, 1, "laplace")
    assert data["references"][READ] > 0
    names = [result["method"] for result in data["results"]]
    assert {name for name in names if not name.endswith(PLAIN)} == {*METHODS, *codings}
    assert {name.removesuffix(PLAIN) for name in names if name.endswith(PLAIN)} == {*METHODS} - {
        "fp32"
    }
    for result in data["results"]:
        assert set(result) == {"method", "median_s", "decode_s", "bits_per_element", "bits_bound"}
        assert min(result["median_s"], result["decode_s"]) > 0
        if result["bits_bound"] is not None:
            assert 1 <= result["bits_per_element"] / result["bits_bound"] <= 1.01
    sizes = {result["method"]: result["bits_per_element"] for result in data["results"]}
    for name in METHODS.keys() - {"fp32"}:
        assert sizes[name] == sizes[name + PLAIN], "both write the same"
    assert any("qsgd" in line for line in said)


def test_the_table_has_its_checks(measured: tuple[QuantizeResult, list[str]]) -> None:
    found, _ = measured
    suite = found.suite()
    assert len(suite.checks) == len(METHODS)
    assert all(check.met for check in suite.checks)
    assert "25,000,000 elements and one thread" in suite.absent[0]
    judged = replace(found, elements=25_000_000).suite()
    assert len([check for check in judged.checks if "PyTorch" in check.name]) == len(METHODS) - 1
    assert not judged.absent


def test_the_command_prints_json() -> None:
    outcome = CliRunner().invoke(
        app, ["quantize", "--elements", "5000", "--repeat", "1", "--json", "--quiet"]
    )
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["elements"] == 5000


def test_an_unknown_source() -> None:
    with pytest.raises(InputError, match="unknown source"):
        measure_value_codings(1000, 1, "normal", 1, lambda _: None)
