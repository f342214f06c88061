"""The model against real links, as they were measured by ``bench agreement`` (tests/golden/agreement)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from testbed.bench import sim_agreement
from testbed.bench.sim_agreement import (  # fmt: skip
    ALGORITHMS,
    CONDITION_NAMES,
    FAR,
    NEAR,
    RATES,
    SHARE,
    WORKERS,
    AgreementCell,
    Lengths,
    Pair,
    cells,
    pairs,
)
from testbed.runner.experiment import prepare
from testbed.runner.run import run

MEASURED = Path(__file__).parents[1] / "golden" / "agreement" / "measured.json"
SIZES = [(workers, rate) for workers in WORKERS for rate in RATES]


@cache
def measured() -> tuple[int, Lengths]:
    """Steps of a run, and the lengths of steps."""
    told = json.loads(MEASURED.read_text())
    return told["steps"], sim_agreement.from_json(told["runs"])


def compared(
    folder: Path, chosen: Iterable[AgreementCell], algorithms: Iterable[str]
) -> list[Pair]:
    steps, real = measured()
    simulated = {}
    for cell, path in sim_agreement.write(folder, chosen, steps, list(algorithms)).items():
        entries = run(prepare(path), "sim", folder, quiet=True).runs
        simulated[cell] = {
            e["algorithm"]: sim_agreement.step_lengths(Path(e["dir"])) for e in entries
        }
    return pairs(real, simulated)


def assert_near(found: list[Pair]) -> None:
    errors = {(pair.cell.name, pair.algorithm): pair.error for pair in found}
    assert errors == pytest.approx(dict.fromkeys(errors, 0.0), abs=FAR)


@pytest.mark.parametrize("condition", CONDITION_NAMES)
def test_steps_are_as_long_as_measured(condition: str, tmp_path: Path) -> None:
    """Where fewest nodes wait for processors: what was measured is the network alone."""
    found = compared(tmp_path, [AgreementCell(condition, 4, 100)], ["none", "topk-0.01"])
    assert len(found) == 2
    assert_near(found)


def test_another_size_each_day(tmp_path: Path) -> None:
    """All 45 scenarios in 45 days; a failure names its own."""
    day = datetime.now(UTC).date().toordinal()
    condition = CONDITION_NAMES[day % len(CONDITION_NAMES)]
    cell = AgreementCell(condition, *SIZES[day // len(CONDITION_NAMES) % len(SIZES)])
    found = compared(tmp_path, [cell], ALGORITHMS)
    assert len(found) == len(ALGORITHMS)
    assert_near(found)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_all_sizes(tmp_path: Path) -> None:
    found = compared(tmp_path, cells(), ALGORITHMS)
    assert len(found) == sum(map(len, measured()[1].values())) == 135
    assert sum(abs(pair.error) <= NEAR for pair in found) >= SHARE * len(found)
    assert_near(found)
