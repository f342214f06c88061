"""What commands and nodes import before they do anything: users wait for it, several times a run."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pkgutil import resolve_name

import numpy as np
import pytest
import typer
from typer.main import get_group

from testbed.cli import VERBS, application
from testbed.process import launch_command
from testbed.training.tasks import datasets

COSTLY = {"sklearn", "scipy", "sympy", "torch._dynamo", "torch._inductor", "matplotlib"}
"""Libraries that take a second or more."""


def imported(program: str) -> set[str]:
    """The modules that a fresh Python has after ``program``."""
    tell = "; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program + tell], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_training_on_digits_imports_neither_scikit_learn_nor_a_compiler() -> None:
    modules = imported(
        "from testbed.training.replica import configure_torch as settle; settle('cpu', 1);"
        "from testbed.training.tasks.datasets import Digits; Digits().train_set(); Digits().test_set()"
    )
    assert "torch" in modules and not modules & COSTLY


def test_a_verb_imports_what_it_needs_alone() -> None:
    modules = imported(called("run", "--help"))
    assert "testbed.cli.run" in modules
    assert not modules & {"testbed.bench.cli", "testbed.cli.trace", "torch", *COSTLY}


def test_what_becomes_a_program_of_cross_traffic_starts_at_once() -> None:
    """Nodes wait for their iperf3 servers before they are ready."""
    assert launch_command(["iperf3"])[1:4] == ["-P", "-m", "testbed.process"]
    modules = imported("import testbed.process")
    assert not modules & {"pydantic", "numpy", "ruamel.yaml", "testbed.scenario", *COSTLY}


def test_the_agent_of_links_computes_with_no_arrays() -> None:
    modules = imported("import testbed.links.agent.server")
    assert not modules & {"numpy", "torch", "docker", *COSTLY}


def test_a_report_imports_no_scipy_before_a_figure_needs_it() -> None:
    modules = imported("import analysis.report")
    assert "matplotlib" in modules and not modules & {"scipy", "adjustText", "torch"}


def called(*arguments: str) -> str:
    """A program that calls the command and goes on after it."""
    return (
        "import contextlib; from testbed.cli import main\n"
        f"with contextlib.suppress(SystemExit): main({list(arguments)})\nNone"
    )


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["nonsense", "run"]])
def test_without_a_verb_no_verb_is_imported(arguments: list[str]) -> None:
    modules = imported(called(*arguments))
    assert not modules & {"torch", "matplotlib", "docker", "numpy", "numba", *COSTLY}
    ours = {module for module in modules if module.partition(".")[0] in ("testbed", "analysis")}
    assert ours <= {"testbed", "testbed.bench", "testbed.cli", "testbed.errors", "testbed.process"}


def test_help_has_every_verb_with_the_text_of_its_own_help() -> None:
    for verb in VERBS:
        target = resolve_name(VERBS[verb])
        text = target.info.help if isinstance(target, typer.Typer) else inspect.getdoc(target)
        command = get_group(application()).get_command(None, verb)
        assert text and command.help == text, verb


def test_digits_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = datasets._read()
    assert images.shape == (1797, 8, 8)
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda _: None)
    theirs, named = datasets._read()
    assert np.array_equal(images, theirs) and np.array_equal(labels, named)
    assert (images.dtype, labels.dtype) == (theirs.dtype, named.dtype)


def test_computation_is_deterministic_once_a_device_is_settled() -> None:
    program = (
        "import torch; from testbed.training.replica import configure_torch as settle; before = torch.are_deterministic_algorithms_enabled();"
        "settle('cpu', 1); assert (before, torch.are_deterministic_algorithms_enabled()) == (False, True);"
        "assert torch.get_deterministic_debug_mode() == 2"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
