"""A run of a day takes no more memory than one of an hour, while it lasts and when it is judged.

Records are made 100 ms apart for four workers by the classes that make them in a run (``tests/soak_rig.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soak_rig

MB = 1_000_000
KINDS = pytest.mark.parametrize("kind", ["exec", "run"])
SHORT_HOURS, SHORT_BYTES = 0.06, 1 * MB
"""Where nothing is folded, it is 4 MB."""
DAY_HOURS, DAY_BYTES, JUDGED_BYTES, JUDGED_S = 24.0, 10 * MB, 600 * MB, 2400.0


def carry_out(part: str, kind: str, hours: float, folder: Path) -> list[dict[str, Any]]:
    """The lines that a part of the rig says."""
    command = [sys.executable, soak_rig.__file__, part, kind, str(hours), str(folder)]
    here = Path(__file__).parent
    path = ":".join(map(str, (here.parents[1], here.parent, here)))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("runs/*/summary.json")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def growth(said: list[dict[str, Any]], begin_hours: float) -> int:
    """Bytes that a process took at most until its end, beyond what it had taken after so many hours."""
    begin = next(line for line in said if line.get("hours", 0.0) >= begin_hours - 1e-9)
    return int(said[-1]["peak_bytes"]) - int(begin["peak_bytes"])


@KINDS
def test_a_run_that_lasts_keeps_nothing(kind: str, tmp_path: Path) -> None:
    said = carry_out("watch", kind, SHORT_HOURS, tmp_path)
    assert growth(said, SHORT_HOURS / 3) < SHORT_BYTES, said
    carry_out("conclude", kind, SHORT_HOURS, tmp_path)
    _check(kind, SHORT_HOURS, summary(tmp_path))


@KINDS
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_day(kind: str, tmp_path: Path) -> None:
    said = carry_out("watch", kind, DAY_HOURS, tmp_path)
    assert growth(said, 1.0) < DAY_BYTES, said
    judged = carry_out("conclude", kind, DAY_HOURS, tmp_path)
    assert judged[-1]["peak_bytes"] < JUDGED_BYTES, judged
    assert judged[-1]["wall_s"] < JUDGED_S, judged
    _check(kind, DAY_HOURS, summary(tmp_path))
    if kind == "exec":
        (inferred,) = carry_out("infer", kind, DAY_HOURS, tmp_path)
        assert inferred["peak_bytes"] < JUDGED_BYTES, inferred
        assert inferred["steps"] == pytest.approx(DAY_HOURS * 3600 / soak_rig.STEP_S, rel=0.01)


def _check(kind: str, hours: float, found: dict[str, Any]) -> None:
    """Everything was there to be judged."""
    steps = round(hours * soak_rig.HOUR_S / soak_rig.STEP_S)
    assert found["steps"] == steps
    measures = found["measures"]
    assert measures["changes"]["state"] == "valid", found["reasons"]
    assert measures["lateness_p99_ms"]["deviation"] == pytest.approx(0.109, abs=0.002)
    if kind == "run":
        assert measures["frame_identity"]["state"] == "valid"
        assert measures["completion"]["groups"] == 2 * steps
        assert found["step_s"] == pytest.approx(soak_rig.STEP_S)
    else:
        assert found["steps_by"] == "marks"
        assert found["step_median_s"] == pytest.approx(soak_rig.STEP_S)
