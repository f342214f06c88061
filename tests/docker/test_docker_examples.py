"""The plain script of examples/ in containers: it learns, and its links carry what its all-reduces send."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples_rig import ROOT, model, size_bytes, train

pytestmark = [
    pytest.mark.docker,
    pytest.mark.nightly,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("image", "nothing_left"),
]
STEPS = 6


def test_ddp_in_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # what is there, containers find under the same path
    command = ("python", "examples/char_ddp.py", "--steps", str(STEPS))
    trained = train(tmp_path, "docker", *command, timeout_s=150.0)
    losses = trained.losses()
    assert losses.keys() == {0, 1} and losses[0] == losses[1] < 4.9
    for rank, models in enumerate((STEPS + 1, STEPS)):  # the first broadcasts the model before
        sent = trained.payload_bytes(f"worker-{rank}") / size_bytes(model())
        assert sent == pytest.approx(models, rel=0.03)
