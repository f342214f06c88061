"""The worked examples of docs/how-to/adding-an-algorithm.md, executed; the tables of the other pages, checked."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from testbed.algorithms import PATTERNS
from testbed.compatibility import known, resolve
from testbed.compress.base import AccumulatedGradient, RecipeChoice, codings, selectors
from testbed.compress.compressor import Compressor
from testbed.compress.indices import IndexCoding, index_bytes
from testbed.compress.layout import Layout
from testbed.compress.payload import HEADER_BYTES, decode, payload_bytes
from testbed.control.adatopk import AdaTopKOptions
from testbed.control.base import Observation, controllers
from testbed.scenario.model import Derived

torch.set_num_threads(1)
DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / "how-to" / page).read_text(), re.DOTALL)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Names that are there after the page's code has run; its registrations end with the test."""
    for registry in (selectors, codings, controllers):
        monkeypatch.setattr(registry, "_own", dict(registry._own))
    names: dict[str, Any] = {"__name__": "example"}
    code = "\n".join(blocks("adding-an-algorithm.md", "python"))
    exec(compile(code, "adding-an-algorithm.md", "exec", dont_inherit=True), names)
    names["printed"] = capsys.readouterr().out
    return names


def test_the_selector(example: dict[str, Any]) -> None:
    assert example["printed"].startswith("100 elements in ")
    received = decode(example["packed"].payload, 1000)
    assert received.indices is not None
    assert received.indices.numel() == example["packed"].count == 100
    entry = Derived.model_validate({"name": "b", "from": "topk-0.1", "selector": "random-block"})
    assert resolve(entry).selector == "random-block"
    given = AccumulatedGradient(torch.arange(4.0), 6.0, 3.0)
    wrapped = selectors.get("random-block")().select(given, 0.75, Random(0))
    assert wrapped.indices is not None
    assert wrapped.indices.tolist() == sorted(set(wrapped.indices.tolist()))


def test_the_value_coding(example: dict[str, Any]) -> None:
    algorithm = resolve("none+half-powers")
    gradient = torch.tensor([0.0, 1.0, -3.0, 1e-30, 2**-48, -(2.0**15)])
    compressor = Compressor(algorithm.recipe)
    packed = compressor.compress("all", gradient, 1.0, Random(0))
    out = torch.empty(6)
    compressor.decompress("all", packed.payload, out)
    assert out.tolist() == pytest.approx([0.0, 1.0, -(2.0**1.5), 0.0, 2**-48, -(2.0**15)])


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
        "none", "topk-0.15", "laplace-0.01+int8", "ada-k05", "topk-forgets", "qsgd-15", "laplace-large",
        "laplace-da4",
    ]  # fmt: skip


def test_what_only_a_contribution_needs_comes_after_what_is_needed_to_use_one() -> None:
    page = (DOCS / "how-to" / "adding-an-algorithm.md").read_text()
    section = page[page.index("## A selector") : page.index("## A value coding")]
    using, _, contributing = section.partition("### Contributing a selector")
    for words in ("digests.json", "changelog", "lines of tables", "test_select_random_block"):
        assert words not in using and words in contributing
    assert "a file and two lines" in using


def test_every_option_of_adatopk_is_described() -> None:
    page = (DOCS / "reference" / "adatopk.md").read_text()
    table = page[page.index("## Options") : page.index("## What the paper")]
    assert set(re.findall(r"`(\w+)`", table)) >= set(AdaTopKOptions.model_fields)
    for row in known():
        assert row.controller != "adatopk" or f"`{row.name}`" in page


def test_every_controller_is_described() -> None:
    """Its name, that of every algorithm that has it, and each of its options, somewhere."""
    page = "".join(one.read_text() for one in sorted(DOCS.rglob("*.md")))
    told = set(re.findall(r"`([\w.-]+)`", page))
    for row in known():
        assert row.controller == "fixed" or row.name in told, row.name
    for name in set(controllers):
        options = controllers.get(name)(seed=0).options  # type: ignore[attr-defined]
        fields = {field.alias or key for key, field in type(options).model_fields.items()}
        assert {name, *fields} <= told, name


def entropy(share: float) -> float:
    """H(k): bits for each element of a vector that tell which are sent."""
    return -sum(part * log2(part) for part in (share, 1 - share) if part)


def test_table_of_index_sizes() -> None:
    size = 10_000_000
    numbers = r"\| ([\d.]+) " * 7
    rows = re.findall(rf"^{numbers}\|$", (DOCS / "reference" / "wire.md").read_text(), re.M)
    assert len(rows) == 6
    for density, *told in [map(float, row) for row in rows]:
        count = round(density * size)
        bits = [
            8 * index_bytes(coding, size, count) / count
            for coding in (IndexCoding.ELIAS_FANO, IndexCoding.BITMAP, IndexCoding.INT32)
        ]
        bound = entropy(density) / density
        payloads = [
            8
            * (payload_bytes(size, count, section, keeps_zero=width > 1) - HEADER_BYTES)
            / (count * (bound + width))
            for section, width in ((None, 32), (lambda m: -(-m // 8), 1))
        ]
        assert told == pytest.approx([bound, *bits, *payloads], abs=0.006, rel=0.001)


LAYOUT = Layout.of([("weight", (512, 512))])
SIZE = LAYOUT.size


def sample() -> torch.Tensor:
    """The vector that bits are measured with."""
    drawn = np.random.default_rng(1).laplace(size=SIZE)
    return torch.from_numpy(drawn.astype(np.float32))


def measured(name: str) -> tuple[float, float]:
    """Bits for each element, and the share of elements sent, of the sixth message of a worker without memory.

    (Some selectors adapt after five.)
    """
    algorithm = resolve(name)
    density = controllers.get(algorithm.controller)(seed=0, **algorithm.options).density()
    compressor = Compressor(replace(algorithm.recipe, memory=RecipeChoice("none")), {"all": LAYOUT})
    gradient, rng = sample(), Random(1)
    for _ in range(6):
        packed = compressor.compress("all", gradient, density, rng)
    return 8 * len(packed.payload) / packed.size, packed.count / packed.size


def bits_asked(formula: str, share: float) -> float:
    """What a formula of the page says for a density, its digits and signs taken as Python's."""
    python = formula.replace("·", "*").replace("²", "**2").replace("₂", "2")
    python = re.sub(r"⌈(.*?)⌉", r"ceil(\1)", python)
    python = re.sub(r"log2 (\d+)", r"log2(\1)", python)
    python = re.sub(r"(?<=\d)k", "*k", python).replace("H(k)", "H")
    names = {"log2": log2, "ceil": ceil, "n": SIZE, "k": share, "H": entropy(share)}
    value: float = eval(python, {"__builtins__": {}}, names)
    return value


def methods() -> dict[str, list[str]]:
    """The cells of every row of both tables of bits, by name."""
    page = (DOCS / "reference" / "algorithms.md").read_text()
    page = page[page.index("## The methods") : page.index("## Memories")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in re.findall(r"^\| `.*$", page, re.M)]
    cells = [[cell.strip() for cell in row] for row in rows]
    return {name.strip("`"): rest for name, *rest in cells}


def test_every_row_and_pattern_is_in_the_table() -> None:
    told = set(methods())
    for row in known():
        elsewhere = row.controller != "fixed" or row.exchange != "ps"
        assert row.name in told or elsewhere, row.name
    for pattern in PATTERNS:
        elsewhere = pattern.row.exchange != "ps"
        assert elsewhere or any(pattern.matches(name) for name in told), str(pattern)


@pytest.mark.parametrize("name", methods())
def test_bits_of_a_method(name: str) -> None:
    formula, told_asked, told_bits, told_rest, memory = methods()[name]
    algorithm = resolve(name)
    bits, share = measured(name)
    if algorithm.selector == "dense":
        asked, count_is_given = bits_asked(formula, 1.0), True
        assert told_rest == algorithm.down
    else:
        asked, count_is_given = bits_asked(formula, 0.01), share == round(0.01 * SIZE) / SIZE
        assert float(told_rest) == pytest.approx(share, rel=0.05, abs=0.00006)
        assert bits <= 1.10 * bits_asked(formula, share) + 8 * HEADER_BYTES / SIZE
    assert float(told_asked) == pytest.approx(asked, abs=0.0006)
    # estimated thresholds come near to a count; how near may change
    assert float(told_bits) == pytest.approx(bits, abs=0.0006, rel=0 if count_is_given else 0.05)
    assert memory.split(",")[0] == algorithm.memory
