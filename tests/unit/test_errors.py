"""Errors are sentences with an exit code."""

from __future__ import annotations

import pytest

from testbed.errors import (
    ExperimentError,
    GradientError,
    InputError,
    LinkError,
    MachineError,
    NarrowsError,
    NodeLost,
    WireError,
)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (NarrowsError("no"), 1, "no"),
        (InputError("no"), 2, "no"),
        (InputError("no", where="a.yaml:3", hint="Write yes"), 2, "a.yaml:3: no. Write yes"),
        (MachineError("no engine", fix="Run `make setup`"), 3, "no engine. Run `make setup`"),
        (ExperimentError("no"), 1, "no"),
        (
            NodeLost("worker-1", None, "killed"),
            1,
            "'worker-1' was lost before its first step: killed",
        ),
        (NodeLost("worker-1", 7, "killed"), 1, "node 'worker-1' was lost at step 7: killed"),
        (
            LinkError("a", "up", requested="1", actual="2"),
            1,
            "link 'a' up: asked for 1, the kernel holds 2",
        ),
        (WireError("no"), 1, "no"),
        (GradientError("NaN in 'w'"), 1, "NaN in 'w'"),
    ],
)
def test_errors_say_what_they_are_for(error: NarrowsError, code: int, sentence: str) -> None:
    assert error.exit_code == code
    assert str(error).endswith(sentence)
