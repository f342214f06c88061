"""Nothing is compiled, or read from the disk, once everything was warmed."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from not_empty import not_empty

from testbed.compress.kernels import compilation

KERNELS = Path(compilation.__file__).parent


@pytest.mark.parametrize(
    "path",
    sorted(path for path in KERNELS.glob("*.py") if "WARM = " in path.read_text()),
    ids=lambda path: path.stem,
)
def test_every_module_of_loops_is_warmed(path: Path) -> None:
    module = import_module(f"testbed.compress.kernels.{path.stem}")
    assert module.WARM and all(callable(call) for call in module.WARM)
    warmed = [
        call
        for name in compilation.MODULES
        for call in import_module(f"testbed.compress.kernels.{name}").WARM
    ]
    assert set(module.WARM) <= set(warmed)


def test_loops_are_compiled_in_one_way() -> None:
    """With numba's own decorators they would be kept somewhere else, or nowhere."""
    for path in not_empty(KERNELS.glob("*.py")):
        if path.stem != "compilation":
            assert "njit" not in path.read_text().replace("@compiled", ""), path


def test_loops_do_without_torch() -> None:
    """An image's are compiled by themselves, before anything else is copied into it."""
    code = "import sys; sys.modules['torch'] = None; from testbed.compress.kernels import compilation as warm; warm.all()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


STEP = """
import sys
from random import Random
import numba, torch
from testbed.compress.kernels import compilation as warm
warm.all()

def compiled():
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("testbed.compress.kernels.")]
    found = {id(f): f for m in modules for f in vars(m).values() if hasattr(f, "overloads")}
    return {f"{f.__module__}.{f.__name__}": [str(s) for s in f.overloads] for f in found.values()}

before = compiled()
assert len(before) > 20, before
from testbed.compress import kernels
from testbed.compress.kernels.base import Workspace
from testbed.compress.aggregate import Aggregate
from testbed.compress.base import codings, memories, selectors
from testbed.compress.compressor import Compressor
from testbed.compress.payload import read_message
from testbed.compress.layout import Layout
from testbed.compress.base import RecipeChoice as Choice, Recipe
import testbed.compress

layout = Layout.of([("a", (40, 50)), ("b", (30,))])
recipes = [Recipe(Choice(s), memory=Choice("feedback")) for s in selectors if s != "threshold"]
recipes += [Recipe(Choice("dense"), Choice(v)) for v in codings]
recipes += [Recipe(Choice("topk"), Choice(v)) for v in codings if v != "lowrank"]  # whole matrices
recipes += [Recipe(Choice("topk"), memory=Choice(m)) for m in memories]
x, rng = torch.randn(layout.size, generator=torch.Generator().manual_seed(1)), Random(1)
for recipe in recipes:
    for density in (0.004, 0.1, 0.5):
        compressor, total = Compressor(recipe, {"x": layout}), Aggregate(layout.size)
        for _ in range(3):
            packed = compressor.compress("x", x, density, rng)
            compressor.decompress("x", packed.payload, torch.empty_like(x))
            total.add(read_message(packed.payload, layout))
            total.mean(2)
host = kernels.of(x)
host.measure(x), host.moments(x), host.digit_counts(x), host.digit_counts(x, 1, 5)
host.count_above(x, 1.0), host.select_above(x, 1.0, Workspace())
later = {name: kinds for name, kinds in compiled().items() if kinds and before.get(name) != kinds}
if later:
    sys.exit(f"not warmed as they are used: { {name: (before.get(name), later[name]) for name in later} }")
"""


def test_a_step_of_any_algorithm_compiles_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEP], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_warming_twice_costs_nothing() -> None:
    compilation.all()
    assert compilation.all.cache_info().currsize == 1
    with compilation.alone():
        pass
