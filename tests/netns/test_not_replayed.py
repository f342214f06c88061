"""A replay fills links with bulk traffic of its own: it reports every direction, says what of a scenario it leaves out,
and needs none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from verdict_rig import accepted_run

from testbed.process import environment

pytestmark = [pytest.mark.root, pytest.mark.timed, pytest.mark.judged]

SCENARIO = """
name: crossed
nodes: {server: {role: server}, worker: {role: worker, count: 1}, noise: {role: host, count: 1}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
events:
  - {kind: pause, nodes: [noise-0], at: 1 s, for: 1 s}
  - {kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}
traffic: [{name: bulk, from: noise-0, to: server, kind: tcp, at: 1 s, for: 1 s}]
congestion: cubic
"""


def test_every_direction_is_reported_and_what_is_left_out(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    """No program can be found, iperf3 among them."""
    (tmp_path / "crossed.yaml").write_text(SCENARIO)
    options = ["--seconds", "3", "--json", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "replay", "crossed.yaml", "--no-figures", *options],
        cwd=tmp_path,
        env=environment(PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "a replay leaves out: traffic, pause" in done.stderr
    report = json.loads(done.stdout)
    (directory,) = tmp_path.glob("runs/*")
    verdict = accepted_run(directory, done.returncode)
    assert verdict == report["verdict"]
    assert report["not_replayed"] == ["traffic", "pause"]
    for name in ("certificate.json", "summary.json"):
        assert json.loads((directory / name).read_text())["not_replayed"] == ["traffic", "pause"]
    links = {(link["link"], link["direction"]): link for link in report["links"]}
    assert set(links) == {
        (node, way) for node in ("server", "worker-0", "noise-0") for way in ("up", "down")
    }
    assert set(report["links"][0]) == {
        "link", "direction", "asked_bits", "delivered_bits", "ratio", "mape_step", "mape_1s",
        "worst_1s", "busy_share", "busy_ratio", "busy_mape_1s", "busy_worst_1s", "busy_mape_step",
        "excess_share", "lateness_ms",
    }  # fmt: skip
    server = links["server", "up"]
    assert server["asked_bits"] == pytest.approx(40e6 + 2 * 20e6, rel=0.05)
    # Without a processor nobody fills a link.
    assert server["delivered_bits"] > (0.8 if verdict == "valid" else 0) * server["asked_bits"]
