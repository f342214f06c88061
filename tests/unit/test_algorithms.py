"""The table of algorithms: complete, resolvable, and strict about what is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from testbed.algorithm import Algorithm, Pattern
from testbed.algorithms import PATTERNS, value_coding_names
from testbed.cli.algorithms import algorithms
from testbed.compatibility import check, known, resolve
from testbed.compress.base import codings, memories, selectors
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
    assert not any(pattern.matches(name) for name in names for pattern in PATTERNS)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_pattern_can_be_made(pattern: Pattern) -> None:
    made = resolve(pattern.example)
    assert made.name == pattern.example
    assert pattern.matches(made.name)
    assert made.about.startswith(pattern.about.rstrip("."))
    assert (made.selector, made.values, made.memory) == (
        pattern.row.selector,
        pattern.row.values,
        pattern.row.memory,
    )


def test_every_part_that_ships_is_in_an_algorithm() -> None:
    made = [*known(), *(resolve(pattern.example) for pattern in PATTERNS)]
    assert {row.selector for row in made} == set(selectors)
    assert {row.memory for row in made} == set(memories)
    written = {row.values for row in made} | {row.down for row in made}
    assert written == set(codings)


@pytest.mark.parametrize(
    "name",
    ["none", "topk-0.15", "topk-1e-3", "topk-1", "adatopk-kdmax", "laplace-0.01+int8+layers"],
)
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


@pytest.mark.parametrize(
    "density", ["0", "-0.1", "1.01", "nan", "inf", "", "much", "0.1.2", "1_0e-3", " 0.1", "٠.١"]
)
def test_pattern_with_no_density(density: str) -> None:
    with pytest.raises(
        InputError, match=r"s\.yaml:3: .*is no density.*Write for example 'topk-0\.15'"
    ) as got:
        resolve(f"topk-{density}", where="s.yaml:3")
    assert got.value.exit_code == 2


def test_patterns_with_other_numbers() -> None:
    strom = resolve("strom-0.002")
    assert (strom.selector, strom.values, strom.memory) == ("threshold", "sign", "feedback")
    assert strom.selector_options == {"at": 0.002}
    assert strom.values_options == {"scale": 0.002}
    assert strom.options == {}
    assert resolve("powersgd-r4").values_options == {"rank": 4}
    with pytest.raises(InputError, match=r"'0\.5' is no rank.*Write for example 'powersgd-r2'"):
        resolve("powersgd-r0.5")
    with pytest.raises(InputError, match=r"'0' is no tau: it is a magnitude, above 1e-37"):
        resolve("threshold-0")


def test_parts_are_added_by_name() -> None:
    algorithm = resolve("laplace-0.01+int8+layers")
    assert (algorithm.selector, algorithm.values, algorithm.memory, algorithm.buckets) == (
        "laplace", "int8", "feedback", "layer",
    )  # fmt: skip
    assert algorithm.options == {"density": 0.01}
    assert resolve("topk-0.01+qsgd-4bit").values_options == {"levels": 7}
    assert resolve("topk-0.01+qsgd").values_options == {}
    assert resolve("adatopk+bf16").controller == "adatopk"
    assert resolve("none+layers").buckets == "layer"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("topk-0.1+int9", r"nothing is known of '\+int9' in this place. Did you mean '\+int8'\?"),
        ("topk-0.1+layers+int8", r"nothing is known of '\+int8' in this place. A name is <algorithm>"),
        ("topk-0.1+", r"nothing is known of '\+' in this place"),
        ("topk-0.1+layers+layers", r"nothing is known of '\+layers'"),
        ("qsgd-4bit+int8", r"'qsgd-4bit' has a value coding already, 'qsgd'"),
        ("tpk-0.1+int8", r"unknown algorithm 'tpk-0\.1\+int8'. Did you mean 'topk-0\.1'\?"),
        ("laplce-0.01", r"unknown algorithm 'laplce-0\.01'. Did you mean 'laplace-0\.01'\?"),
        ("laplace", r"unknown algorithm 'laplace'. Did you mean 'laplace-0\.15'\?"),
        ("powersgd", r"unknown algorithm 'powersgd'. Did you mean 'powersgd-r2'\?"),
        ("nothing-like-it", r"unknown algorithm 'nothing-like-it'. Known: none,"),
        ("powersgd-r65", r"'65' is no rank: it is a whole number from 1 to 64"),
        ("threshold-1e-46", r"'1e-46' is no tau"),
        ("topk-2+int8", r"'2' is no density"),
        ("topk-0.1+lowrank", r"value coding 'lowrank' writes whole gradients, and selector 'topk'.*Take selector 'dense', or.* int8"),
    ],
)  # fmt: skip
def test_names_that_mean_nothing(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=f"s.yaml:3: .*{sentence}"):
        resolve(name, where="s.yaml:3")


def test_every_way_to_write_values_can_be_added() -> None:
    assert {*codings} - {"fp32"} <= set(value_coding_names())
    for name in value_coding_names():
        assert resolve(f"none+{name}").values in codings


def test_unknown_name() -> None:
    with pytest.raises(InputError) as got:
        resolve("adatop", where="s.yaml:3")
    sentence = str(got.value)
    assert sentence.startswith(
        "s.yaml:3: unknown algorithm 'adatop'. Did you mean 'adatopk'? Known: none,"
    )
    assert "topk-<density>" in sentence
    assert "+<values>" in sentence


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


def test_derived_parts_and_their_options() -> None:
    algorithm = resolve(
        derive(
            **{"from": "topk-0.1+qsgd-4bit"}, selector="threshold",
            selector_options={"at": 0.5}, density=1.0, buckets="layer", dense_below=100,
            down="int8", down_memory="feedback",
        )
    )  # fmt: skip
    assert (algorithm.selector, algorithm.selector_options) == ("threshold", {"at": 0.5})
    assert (algorithm.values, algorithm.values_options) == ("qsgd", {"levels": 7})
    assert (algorithm.down, algorithm.down_memory) == ("int8", "feedback")
    recipe = algorithm.recipe
    assert (recipe.layers, recipe.dense_below) == (True, 100)


def test_options_stay_with_their_part() -> None:
    more = resolve(derive(**{"from": "qsgd-4bit"}, values_options={"levels": 3}))
    assert more.values_options == {"levels": 3}
    assert resolve(derive(**{"from": "qsgd-4bit"}, values="int8")).values_options == {}
    assert resolve("qsgd-4bit").values_options == {"levels": 7}


def test_another_rule_for_the_same_sparsifier() -> None:
    """Options of the former rule are dropped; those of the same one are kept."""
    other = resolve(derive(**{"from": "topk-0.1"}, rule="dc2-da4", controller={"k_max": 0.5}))
    assert (other.selector, other.controller, other.options) == ("topk", "dc2-da4", {"k_max": 0.5})
    same = resolve(derive(**{"from": "adatopk-kd0.1"}, rule="adatopk", controller={"k_max": 0.5}))
    assert same.options == {"k_dec": 0.1, "k_max": 0.5}
    fixed = resolve(derive(**{"from": "adatopk-kd0.1"}, rule="fixed", density=0.2))
    assert (fixed.controller, fixed.options) == ("fixed", {"density": 0.2})
    script = resolve(derive(**{"from": "topk-0.1"}, rule="script", controller={"densities": [1, 0.1]}))  # fmt: skip
    assert script.options == {"densities": [1, 0.1]}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"from": "topk-0.1", "rule": "dc2"}, "'mine': unknown controller 'dc2'.*Did you mean 'dc2-da"),
        ({"from": "topk-0.1", "rule": "adatopk", "density": 0.1}, "'mine': its controller 'adatopk' chooses.*rule: fixed"),
        ({"from": "adatopk", "rule": "fixed", "controller": {"k_dec": 0.1}}, "'mine': controller 'fixed': unknown option 'k_dec'"),
        ({"from": "none", "rule": "adatopk"}, "'mine': selector 'dense' takes no density"),
        ({"from": "adatopk", "controller": {"kdec": 0.1}}, "'mine': .*unknown option 'kdec'.*k_dec"),
        ({"from": "adatopk", "controller": {"k_dec": "x"}}, "'mine': controller 'adatopk': k_dec"),
        ({"from": "adatopk", "density": 0.1}, "'mine': its controller 'adatopk' chooses the density"),
        ({"from": "topk-0.1", "density": 0.0}, "'mine': .*density: .*greater than 0, got 0.0"),
        ({"from": "topk-0.1", "selector": "tpk"}, "'mine': unknown selector 'tpk'.*Did you mean 'topk'"),
        ({"from": "nothing"}, "unknown algorithm 'nothing'"),
        ({"from": "topk-2"}, "'2' is no density"),
        ({"from": "none", "density": 0.5}, "'mine': selector 'dense' takes no density.*'fixed'.*: .*laplace.*topk"),
        ({"from": "adatopk", "selector": "dense"}, "'mine': selector 'dense' takes no density.*'adatopk'"),
        ({"from": "adatopk", "selector": "threshold", "selector_options": {"at": 1.0}}, "'mine': selector 'threshold' takes no density"),
        ({"from": "topk-0.1", "values": "lowrank"}, "'mine': value coding 'lowrank' writes whole gradients"),
        ({"from": "topk-0.1", "down": "lowrank"}, "'mine': value coding of the way down 'lowrank' writes whole"),
        ({"from": "topk-0.1", "memory": "feedbck"}, "'mine': unknown memory 'feedbck'.*Did you mean 'feedback'"),
        ({"from": "topk-0.1", "down_memory": "x"}, "'mine': unknown memory 'x'"),
        ({"from": "topk-0.1", "values": "int9"}, "'mine': unknown value coding 'int9'.*Did you mean 'int8'"),
        ({"from": "qsgd-4bit", "values_options": {"level": 3}}, "'mine': value coding 'qsgd': .*level"),
        ({"from": "topk-0.1", "selector_options": {"x": 3}}, "'mine': selector 'topk': .*"),
        ({"from": "topk-0.1", "dense_below": 3}, "'mine': dense_below 3 with buckets 'whole'.*layer"),
        ({"from": "oracle", "exchange": "peers"}, "'mine': controller '.*' watches the links to a server, and exchange 'peers'"),
        ({"from": "none", "name": "adatopk"}, "'adatopk' exists already"),
        ({"from": "none", "name": "topk-0.5"}, "'topk-0.5' exists already"),
    ],
)  # fmt: skip
def test_derived_that_cannot_be(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"s.yaml:3: .*{sentence}"):
        resolve(derive(**fields), where="s.yaml:3")


def test_unknown_exchange() -> None:
    with pytest.raises(InputError, match=r"unknown exchange 'carrier-pigeon'.*Known: .*peers, ps"):
        check(Algorithm("x", exchange="carrier-pigeon"))


def test_not_an_algorithm() -> None:
    with pytest.raises(InputError, match="not an algorithm"):
        Algorithm.from_json({"name": "x", "colour": "red"})


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    algorithms(as_json=True)
    listing = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listing["algorithms"]] == [row.name for row in known()]
    assert [one["pattern"] for one in listing["patterns"]] == [str(one) for one in PATTERNS]
    assert listing["patterns"][0]["pattern"] == "topk-<density>"
    assert listing["parts"]["values"] == codings.names()
    algorithms()
    printed = capsys.readouterr().out
    for word in ("adatopk-kd0.1", "laplace-<density>", "qsgd (levels 7)", "+layers", "memories: "):
        assert word in printed


def test_names_are_known_without_torch_and_numba() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numba'] = None; "
        "from testbed.algorithms import PATTERNS; from testbed.compatibility import known, resolve; "
        "[resolve(row.name) for row in known()]; [resolve(one.example) for one in PATTERNS]; "
        "print(resolve('topk-0.1').selector)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "topk\n"), done.stderr
