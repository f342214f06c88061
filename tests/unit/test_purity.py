"""Roles, controllers and compressors touch the world only through a ``Node``: read from their syntax."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "testbed"
PURE = sorted(
    {
        *(ROOT / "training").rglob("*.py"),
        *(ROOT / "control").rglob("*.py"),
        *(ROOT / "compress").rglob("*.py"),
        *(ROOT / "scenario").rglob("*.py"),
        *(ROOT / "traces").rglob("*.py"),
        *(ROOT / "comm_trace").rglob("*.py"),
        *(ROOT / "exchange" / "coded").rglob("*.py"),
        ROOT / "exchange" / "collect.py",
        ROOT / "exchange" / "parameter_server.py",
        ROOT / "exchange" / "all_gather.py",
        ROOT / "exchange" / "collect.py",
        ROOT / "exchange" / "parameter_server_async.py",
        ROOT / "exchange" / "parameter_server_backup.py",
        ROOT / "exchange" / "base.py",
        ROOT / "exchange" / "ring_all_reduce.py",
        ROOT / "exchange" / "gloo.py",
    }
)
FORBIDDEN = {
    "socket", "threading", "time", "asyncio", "multiprocessing", "concurrent", "selectors", "_thread",
}  # fmt: skip
ALLOWED = {
    # one pass over a big vector, shared out: its result does not depend on the number of threads
    "compress/kernels/cpu.py": {"concurrent"},
    # the package that makes MNIST-1D draws from the global generators, whose states are restored
    "training/tasks/datasets.py": {
        "getstate",
        "setstate",
        "np.random.get_state",
        "np.random.set_state",
    },
}
PRIVATE_GENERATORS = {"Random", "Generator", "default_rng", "SeedSequence", "PCG64", "Philox"}
TORCH_DRAWS = {
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial",
    "manual_seed", "seed", "set_rng_state", "dropout",
}  # fmt: skip
IN_PLACE_DRAWS = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_"}


def violations(source: str, allowed: Collection[str] = ()) -> list[str]:
    """What ``source`` does that a pure module must not, each with its line."""
    found = []
    forbidden = FORBIDDEN.difference(allowed)
    tree = ast.parse(source)
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    for node in ast.walk(tree):
        problem = None
        if isinstance(node, ast.Import):
            problem = next((a.name for a in node.names if a.name.split(".")[0] in forbidden), None)
        elif isinstance(node, ast.ImportFrom):
            problem = _import_problem(node, forbidden, allowed)
        elif isinstance(node, ast.Call):
            problem = _call_problem(node, imported)
        if problem and problem not in allowed:
            found.append(f"line {node.lineno}: {problem}")
    return found


def _import_problem(
    node: ast.ImportFrom, forbidden: Collection[str], allowed: Collection[str]
) -> str | None:
    module = (node.module or "").split(".")[0]
    if module in forbidden and not node.level:
        return module
    if node.module in ("random", "numpy.random"):
        names = (a.name for a in node.names if a.name not in PRIVATE_GENERATORS | set(allowed))
        return next(names, None)
    return None


def _call_problem(node: ast.Call, imported: set[str]) -> str | None:
    name = ast.unparse(node.func)
    owner, _, function = name.rpartition(".")
    seeded = any(keyword.arg == "generator" for keyword in node.keywords)
    # a generator of one's own may well be called `random`
    shared = {"random"} & imported or owner != "random"
    if owner in ("random", "np.random", "numpy.random") and shared:
        return None if function in PRIVATE_GENERATORS else name
    if owner in ("torch", "torch.random", "torch.cuda") and function in TORCH_DRAWS and not seeded:
        return name
    if function in IN_PLACE_DRAWS and not seeded:
        return name
    return None


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_modules_are_pure(path: Path) -> None:
    allowed = ALLOWED.get(str(path.relative_to(ROOT)), ())
    assert violations(path.read_text(), allowed) == []


def test_the_roles_are_among_them() -> None:
    names = {str(path.relative_to(ROOT)) for path in PURE}
    assert {
        "training/worker.py",
        "training/server.py",
        "control/base.py",
        "compress/base.py",
    } <= names


@pytest.mark.parametrize(
    "source",
    [
        "import socket",
        "import os, threading",
        "from time import monotonic",
        "import concurrent.futures",
        "from concurrent.futures import ThreadPoolExecutor",
        "def f():\n    import time",
        "from random import shuffle",
        "import random\nrandom.random()",
        "import random\nrandom.seed(1)",
        "import numpy as np\nnp.random.rand(3)",
        "import torch\ntorch.randn(3)",
        "import torch\ntorch.manual_seed(1)",
        "x.normal_(0, 1)",
    ],
)
def test_the_check_finds(source: str) -> None:
    assert violations(source)


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random\nRandom(3).shuffle(x)",
        "import numpy as np\nnp.random.default_rng(3).normal()",
        "import torch\ntorch.randn(3, generator=g)",
        "import torch\ng = torch.Generator().manual_seed(1)",
        "from testbed.traces.time import x",
        "from .time import x",
        "from random import Random\nrandom = Random(3)\nrandom.gauss(0, 1)",
    ],
)
def test_the_check_lets_pass(source: str) -> None:
    assert violations(source) == []
