"""``testbed run`` and ``replay`` as a user runs them: real processes in namespaces."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import (
    Command,
    Write,
    families_total,
    scrape,
)

from testbed.record.names import LINK_RATE

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


def test_a_run_prints_its_json_and_leaves_its_records(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    code, out, err = Command(
        tmp_path, "run", scenario(algorithms="none, adatopk"), "--json"
    ).finish()
    runs = json.loads(out)["runs"]
    assert [run["algorithm"] for run in runs] == ["none", "adatopk"], err
    assert set(runs[0]) == {
        "dir", "algorithm", "seed", "verdict", "time_s", "steps", "accuracy", "bytes_up",
        "bytes_down", "mean_k",
    }  # fmt: skip
    assert code == (1 if "invalid" in {run["verdict"] for run in runs} else 0)
    for run in runs:
        directory = Path(run["dir"])
        summary = json.loads((directory / "summary.json").read_text())
        assert run["steps"] == 25 and run["accuracy"] > 0.3
        assert summary["measures"]["byte_identity"]["state"] == "valid", summary["reasons"]
        assert summary["measures"]["frame_identity"]["state"] == "valid", summary["reasons"]
        manifest = json.loads((directory / "manifest.json").read_text())
        assert manifest["congestion"] == "cubic" and manifest["fabric"] == "netns"
        assert {(link["link"], link["direction"]) for link in manifest["links"]} == {
            (node, way) for node in ("server", "worker-0", "worker-1") for way in ("up", "down")
        }
    figures = {path.suffix for path in tmp_path.glob("comparisons/*/figures/*")}
    assert figures == {".png", ".pdf", ".csv"}
    replayed = subprocess.run(
        [sys.executable, "-m", "testbed", "replay-controller", runs[1]["dir"]], check=False
    )
    assert replayed.returncode == 0


def test_the_same_seed_sends_the_same_payloads(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    payloads = []
    for name in ("first", "second"):
        command = Command(tmp_path / name, "run", scenario(steps=12), "--quiet")
        command.finish()
        payloads.append({(s["node"], s["step"]): s["payload_crc"] for s in command.steps()})
    assert len(payloads[0]) == 24
    assert payloads[0] == payloads[1]


def test_every_node_answers_a_scrape_and_the_incast_queue_is_seen(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=60, algorithms="none"))
    command.until(lambda: len(command.steps()) > 70)
    scraped = {name: scrape(command.node(name)) for name in ("server", "worker-0", "worker-1")}
    command.finish()
    for name, families in scraped.items():
        labels = families["testbed_steps"].samples[0].labels
        assert (labels["node"], labels["algorithm"]) == (name, "none")
    worker = families_total(scraped["worker-0"], "testbed_frame_bytes", direction="up")
    assert worker > 0
    assert families_total(scraped["worker-0"], "testbed_phase_seconds", phase="wait") > 0
    asked = families_total(scraped["server"], LINK_RATE, source="asked", direction="down")
    assert asked == pytest.approx(20e6 / 8, rel=0.01)
    samples = [
        json.loads(line)
        for line in next(tmp_path.glob("runs/*/links.jsonl")).read_text().splitlines()
    ]
    backlog = {
        (s["link"], s["direction"]): s["backlog_bytes"] for s in samples if s["kind"] == "sample"
    }
    worst = max(
        s["backlog_bytes"]
        for s in samples
        if s["kind"] == "sample" and (s["link"], s["direction"]) == ("server", "down")
    )
    assert backlog and worst > 10_000


def test_two_runs_at_once_do_not_disturb_each_other(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = scenario(steps=12)
    both = [Command(tmp_path / name, "run", path, "--json") for name in ("one", "two")]
    for command in both:
        _, out, err = command.finish(170.0)
        (run,) = json.loads(out)["runs"]
        assert run["steps"] == 12, err
        assert len(command.steps()) == 24


def test_replay_reports_every_direction(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    code, out, err = Command(tmp_path, "replay", scenario(), "--seconds", "4", "--json").finish()
    report = json.loads(out)
    assert code == (1 if report["verdict"] == "invalid" else 0), err
    assert len(report["links"]) == 6
    assert set(report["links"][0]) == {
        "link", "direction", "asked_bits", "delivered_bits", "ratio", "mape_step", "mape_1s",
        "worst_1s", "busy_share", "busy_ratio", "busy_mape_1s", "busy_worst_1s", "busy_mape_step",
        "lateness_ms",
    }  # fmt: skip
    server = next(x for x in report["links"] if (x["link"], x["direction"]) == ("server", "up"))
    assert server["asked_bits"] == pytest.approx(40e6 + 3 * 20e6, rel=0.05)
    assert server["delivered_bits"] > 0.8 * server["asked_bits"]
