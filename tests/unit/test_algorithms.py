"""The table of algorithms: complete, resolvable, and strict about what is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from testbed.algorithms import PATTERNS, Algorithm, check, known, resolve
from testbed.cli.algorithms import algorithms
from testbed.control.base import controllers
from testbed.errors import InputError
from testbed.scenario.model import Derived


@pytest.mark.parametrize("row", known(), ids=lambda row: row.name)
def test_every_row_can_be_made(row: Algorithm) -> None:
    check(row)
    assert resolve(row.name) == row
    assert row.about
    assert 0 < controllers.get(row.controller)(seed=1, **row.options).density() <= 1


def test_names_are_unique_and_no_pattern_takes_one() -> None:
    names = [row.name for row in known()]
    assert len(set(names)) == len(names)
    assert not any(name.startswith(pattern.prefix) for name in names for pattern in PATTERNS)


@pytest.mark.parametrize("name", ["none", "topk-0.15", "topk-1e-3", "topk-1", "adatopk-kdmax"])
def test_through_json(name: str) -> None:
    algorithm = resolve(name)
    assert Algorithm.from_json(json.loads(json.dumps(algorithm.to_json()))) == algorithm


def test_pattern() -> None:
    algorithm = resolve("topk-0.15")
    assert (algorithm.name, algorithm.selector, algorithm.memory) == (
        "topk-0.15",
        "topk",
        "feedback",
    )
    assert (algorithm.controller, algorithm.options) == ("fixed", {"density": 0.15})


@pytest.mark.parametrize("density", ["0", "-0.1", "1.01", "nan", "inf", "", "much", "0.1.2"])
def test_pattern_with_no_density(density: str) -> None:
    with pytest.raises(
        InputError, match=r"s\.yaml:3: .*is no density.*Write for example 'topk-0\.15'"
    ) as got:
        resolve(f"topk-{density}", where="s.yaml:3")
    assert got.value.exit_code == 2


def test_unknown_name() -> None:
    with pytest.raises(InputError) as got:
        resolve("adatop", where="s.yaml:3")
    sentence = str(got.value)
    assert sentence.startswith(
        "s.yaml:3: unknown algorithm 'adatop'. Did you mean 'adatopk'? Known: none,"
    )
    assert sentence.endswith("topk-<density>")


def derive(**fields: Any) -> Derived:
    return Derived.model_validate({"name": "mine", **fields})


def test_derived_from_a_row() -> None:
    algorithm = resolve(
        derive(**{"from": "adatopk-kd0.1"}, memory="none", controller={"k_max": 0.5})
    )
    assert algorithm.name == "mine"
    assert (algorithm.selector, algorithm.memory, algorithm.controller) == (
        "topk",
        "none",
        "adatopk",
    )
    assert algorithm.options == {"k_dec": 0.1, "k_max": 0.5}
    assert resolve("adatopk-kd0.1").options == {"k_dec": 0.1}


def test_derived_from_a_pattern_and_with_a_density() -> None:
    assert resolve(derive(**{"from": "topk-0.1"}, density=0.2)).options == {"density": 0.2}
    sparse_none = resolve(derive(**{"from": "none"}, selector="topk", density=0.2))
    assert (sparse_none.selector, sparse_none.memory) == ("topk", "none")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"from": "adatopk", "controller": {"kdec": 0.1}}, "'mine': .*unknown option 'kdec'.*k_dec"),
        ({"from": "adatopk", "controller": {"k_dec": "x"}}, "'mine': controller 'adatopk': k_dec"),
        ({"from": "adatopk", "density": 0.1}, "'mine': its controller 'adatopk' chooses the density"),
        ({"from": "topk-0.1", "density": 0.0}, "'mine': .*density: .*greater than 0, got 0.0"),
        ({"from": "topk-0.1", "selector": "tpk"}, "'mine': unknown selector 'tpk'.*Did you mean 'topk'"),
        ({"from": "nothing"}, "unknown algorithm 'nothing'"),
        ({"from": "topk-2"}, "'2' is no density"),
        ({"from": "none", "density": 0.5}, "'mine': selector 'dense' sends every element.*topk"),
        ({"from": "adatopk", "selector": "dense"}, "'mine': selector 'dense' sends every element"),
        ({"from": "none", "name": "adatopk"}, "'adatopk' exists already"),
        ({"from": "none", "name": "topk-0.5"}, "'topk-0.5' exists already"),
    ],
)  # fmt: skip
def test_derived_that_cannot_be(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"s.yaml:3: .*{sentence}"):
        resolve(derive(**fields), where="s.yaml:3")


def test_unknown_exchange() -> None:
    with pytest.raises(InputError, match=r"unknown exchange 'carrier-pigeon'.*Known: ps"):
        check(Algorithm("x", exchange="carrier-pigeon"))


def test_not_an_algorithm() -> None:
    with pytest.raises(InputError, match="not an algorithm"):
        Algorithm.from_json({"name": "x", "colour": "red"})


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    algorithms(as_json=True)
    listing = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listing["algorithms"]] == [row.name for row in known()]
    assert listing["patterns"][0]["pattern"] == "topk-<density>"
    algorithms()
    assert "adatopk-kd0.1" in capsys.readouterr().out


def test_names_are_known_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from testbed.algorithms import resolve; "
        "print(resolve('topk-0.1').selector)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "topk\n"), done.stderr
