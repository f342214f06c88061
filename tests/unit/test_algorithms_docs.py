"""The worked examples of docs/adding-an-algorithm.md, executed; the tables of the other pages, checked."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from testbed.algorithms import known, resolve
from testbed.compress.base import selectors
from testbed.compress.indices import IndexCoding, index_bytes
from testbed.compress.wire import decode
from testbed.control.adatopk_options import AdaTopKOptions
from testbed.control.base import Observation, controllers
from testbed.scenario.model import Derived

torch.set_num_threads(1)
DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Names that are there after the page's code has run; its registrations end with the test."""
    monkeypatch.setattr(selectors, "_own", dict(selectors._own))
    monkeypatch.setattr(controllers, "_own", dict(controllers._own))
    names: dict[str, Any] = {"__name__": "example"}
    code = "\n".join(blocks("adding-an-algorithm.md", "python"))
    exec(compile(code, "adding-an-algorithm.md", "exec", dont_inherit=True), names)
    names["printed"] = capsys.readouterr().out
    return names


def test_the_selector(example: dict[str, Any]) -> None:
    assert example["printed"].startswith("100 elements in ")
    received = decode(example["payload"])
    assert received.indices is not None
    assert torch.equal(received.indices, example["sent"].indices)
    entry = Derived.model_validate({"name": "b", "from": "topk-0.1", "selector": "random-block"})
    assert resolve(entry).selector == "random-block"
    wrapped = selectors.get("random-block")().select(torch.arange(4.0), 0.75, Random(0))
    assert wrapped.indices is not None
    assert wrapped.indices.tolist() == sorted(set(wrapped.indices.tolist()))


def test_the_controller(example: dict[str, Any]) -> None:
    controller = controllers.get("warmup")(seed=0, density=0.01, steps=2)
    densities = []
    for step in range(4):
        densities.append(controller.density())
        controller.observe(Observation(step, 0, 0.1, 0.5, 100, densities[-1]))
    assert densities == pytest.approx([1.0, 0.1, 0.01, 0.01])


def test_the_scenario() -> None:
    listed = YAML(typ="safe").load(blocks("adding-an-algorithm.md", "yaml")[0])["algorithms"]
    entries = [item if isinstance(item, str) else Derived.model_validate(item) for item in listed]
    assert [resolve(entry).name for entry in entries] == [
        "none", "topk-0.15", "ada-k05", "topk-forgets",
    ]  # fmt: skip


def test_every_option_of_adatopk_is_described() -> None:
    page = (DOCS / "adatopk.md").read_text()
    table = page[page.index("## Options") : page.index("## What the paper")]
    assert set(re.findall(r"`(\w+)`", table)) >= set(AdaTopKOptions.model_fields)
    for row in known():
        assert row.controller != "adatopk" or f"`{row.name}`" in page


def test_table_of_index_sizes() -> None:
    size = 10_000_000
    rows = re.findall(
        r"^\| (0\.\d+) \| [\d.]+ \| ([\d.]+) \|", (DOCS / "wire.md").read_text(), re.M
    )
    assert len(rows) == 6
    for density, bits in rows:
        count = round(float(density) * size)
        assert 8 * index_bytes(IndexCoding.RICE, size, count) / count == pytest.approx(
            float(bits), abs=0.006
        )
