"""What controllers are shown on real links: what workers agree upon, and the rates of the links on their way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import Command, Write

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
STEPS = 30


def test_agreement_and_rates_cross_real_networks(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = scenario(steps=STEPS, algorithms="adatopk-agreed, oracle")
    command = Command(tmp_path / "out", "run", path, "--json")
    _, out, err = command.finish(170.0)
    agreed, oracle = json.loads(out)["runs"]
    assert agreed["steps"] == oracle["steps"] == STEPS, err

    steps = {step: [] for step in range(1, STEPS + 1)}
    for record in _steps(agreed):
        steps[record["step"]].append(record)
    for step, (one, other) in steps.items():
        assert one["density"] == other["density"]
        if step == 1:
            assert one["controller"] is None and other["controller"] is None
            continue
        delays = [record["delay_s"] for record in steps[step - 1]]
        for record in (one, other):
            assert record["controller"]["step"] == step - 1
            assert record["controller"]["delay_s"] == pytest.approx(max(delays))

    seen = [record["controller"] for record in _steps(oracle)]
    told = [
        (each["share_up_bits"], each["share_down_bits"]) for each in seen if each["share_up_bits"]
    ]
    assert told, "the links' rates were never told"
    rates = {round(rate / 1e6) for pair in told for rate in pair}
    assert {20, 10} <= rates, "the server's 40 and 20 Mbit/s, shared by two workers"
    assert all(10e6 - 1 <= rate <= 20e6 + 1 for pair in told for rate in pair)

    for run in (agreed, oracle):
        again = [sys.executable, "-m", "testbed", "replay-controller", run["dir"]]
        replayed = subprocess.run(again, capture_output=True, text=True, check=False)
        assert replayed.returncode == 0 and "0 mismatches" in replayed.stdout, replayed.stdout


def _steps(run: dict[str, str]) -> list[dict[str, object]]:
    paths = sorted(Path(run["dir"]).glob("events/worker-*"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]
