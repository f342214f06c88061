"""``testbed bench wire``: what it says of sizes, which do not depend on the machine, and its form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from testbed.bench.cli import app
from testbed.bench.compress.payload import CHOSEN, PayloadResult, run
from testbed.compress.indices import IndexCoding
from testbed.compress.payload import payload_bytes
from testbed.errors import InputError

ELEMENTS, DENSITIES = 20_000, (0.01, 0.1)
OURS = {coding.name.lower().replace("_", "-") for coding in IndexCoding}
PLAIN = {"bitmap (numpy)", "elias-fano (numpy)", "int32 (numpy)", "int32 (PyTorch)"}


@pytest.fixture(scope="module")
def found() -> PayloadResult:
    return run(ELEMENTS, DENSITIES, 1, 1, lambda _: None)


def test_every_coding_at_every_density(found: PayloadResult) -> None:
    names = {(one.method, one.density) for one in found.results}
    assert names == {(m, d) for m in {CHOSEN} | OURS | PLAIN for d in DENSITIES}
    assert set(found.references) == {"read_once", "laplace 0.01", "laplace 0.1"}
    assert all(one.encode_s > 0 and one.decode_s > 0 for one in found.results)


def test_sizes_are_those_of_the_payloads(found: PayloadResult) -> None:
    for density in DENSITIES:
        by_method = {one.method: one for one in found.results if one.density == density}
        chosen = by_method[CHOSEN]
        assert chosen.size_bytes == payload_bytes(ELEMENTS, chosen.count)
        assert chosen.size_bytes == min(by_method[name].size_bytes for name in OURS - {"seed"})
        assert by_method["dense"].size_bytes == payload_bytes(ELEMENTS, ELEMENTS)
        assert by_method["int32 (PyTorch)"].size_bytes == 8 * chosen.count
        for name in ("bitmap", "int32", "elias-fano"):  # ours have a header besides
            assert by_method[name].size_bytes == by_method[f"{name} (numpy)"].size_bytes + 32


def test_the_limits_on_sizes(found: PayloadResult) -> None:
    suite = found.suite()
    assert [c.name for c in suite.checks] == ["bits / bound at 0.01", "bits / bound at 0.1"]
    assert all(check.met for check in suite.checks)
    assert suite.absent, "times of short vectors have no limits"
    (time,) = {c.name for c in replace(found, elements=25_000_000).suite().checks} - {
        c.name for c in suite.checks
    }
    assert time == "encode and decode / selection at 0.01"


def test_json() -> None:
    asked = [
        "wire",
        "--elements",
        "5000",
        "--density",
        "0.05",
        "--repeat",
        "1",
        "--json",
        "--quiet",
    ]
    outcome = CliRunner().invoke(app, asked)
    assert outcome.exit_code == 0, outcome.output
    told = json.loads(outcome.stdout)
    assert set(told) == {"elements", "threads", "references", "results"}
    assert (told["elements"], told["threads"]) == (5000, 1)
    assert set(told["results"][0]) == {
        "method", "density", "median_s", "decode_s", "bits_per_element", "bits_bound",
    }  # fmt: skip


@pytest.mark.parametrize("density", [0.0, 1.0, 0.99999])
def test_a_density_that_leaves_nothing_to_index(density: float) -> None:
    with pytest.raises(InputError, match=r"outside \(0, 1\]|is all of them"):
        run(1000, (density,), 1, 1, lambda _: None)
