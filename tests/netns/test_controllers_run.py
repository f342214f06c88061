"""What controllers are shown on real links: what workers agree upon, and the rates of the links on their way."""

import subprocess
import sys

import pytest
from training_run import STEPS, Trained

pytestmark = [pytest.mark.judged, pytest.mark.root, pytest.mark.timeout(300)]


def test_agreement_and_rates_cross_real_networks(trained: Trained) -> None:
    agreed, oracle = trained.runs["adatopk-agreed"], trained.runs["oracle"]
    steps = {step: [] for step in range(1, STEPS + 1)}
    for record in agreed.records("step"):
        steps[record["step"]].append(record)
    for step, (one, other) in steps.items():  # of both workers
        assert one["density"] == other["density"]
        if step == 1:
            assert one["controller"] is None and other["controller"] is None
            continue
        delays = [record["delay_s"] for record in steps[step - 1]]
        for record in (one, other):
            assert record["controller"]["step"] == step - 1
            assert record["controller"]["delay_s"] == pytest.approx(max(delays))

    seen = [record["controller"] for record in oracle.records("step")]
    told = [
        (each["share_up_bits"], each["share_down_bits"]) for each in seen if each["share_up_bits"]
    ]
    assert told, "the links' rates were never told"
    rates = {round(rate / 1e6) for pair in told for rate in pair}
    assert {20, 10} <= rates, "the server's 40 and 20 Mbit/s, shared by two workers"
    assert all(10e6 - 1 <= rate <= 20e6 + 1 for pair in told for rate in pair)

    for run in (agreed, oracle):
        again = [sys.executable, "-m", "testbed", "replay-controller", run.entry["dir"]]
        replayed = subprocess.run(again, capture_output=True, text=True, check=False)
        assert replayed.returncode == 0 and "0 mismatches" in replayed.stdout, replayed.stdout
