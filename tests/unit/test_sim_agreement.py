"""The model against real links: four workers, as they were measured by ``bench agreement`` (tests/golden/agreement)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.bench.agreement import measure
from testbed.bench.agreement.judge import FAR, pairs
from testbed.bench.agreement.matrix import CONDITION_NAMES, Cell
from testbed.session.experiment import prepare
from testbed.session.run import run

MEASURED = Path(__file__).parents[1] / "golden" / "agreement" / "measured.json"


@pytest.mark.parametrize("condition", CONDITION_NAMES)
def test_steps_are_as_long_as_measured(condition: str, tmp_path: Path) -> None:
    cell = Cell(condition, 4, 100)
    told = json.loads(MEASURED.read_text())
    real = {cell: measure.from_json(told["runs"])[cell]}
    (path,) = measure.write(tmp_path, [cell], told["steps"], ["none", "topk-0.01"]).values()
    entries = run(prepare(path), "sim", tmp_path, quiet=True).runs
    lengths = {e["algorithm"]: measure.step_lengths(Path(e["dir"])) for e in entries}
    found = pairs(real, {cell: lengths})
    assert len(found) == 2
    assert {each.algorithm: each.error for each in found} == pytest.approx(
        {"none": 0.0, "topk-0.01": 0.0}, abs=FAR
    )
