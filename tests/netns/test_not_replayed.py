"""A replay fills links with bulk traffic of its own: it says what of a scenario it leaves out, and needs none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.links.process import environment

pytestmark = pytest.mark.root

SCENARIO = """
name: crossed
nodes: {server: {role: server}, worker: {role: worker, count: 1}, noise: {role: host, count: 1}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
events: [{kind: pause, nodes: [noise-0], at: 1 s, for: 1 s}]
traffic: [{name: bulk, from: noise-0, to: server, kind: tcp, at: 1 s, for: 1 s}]
congestion: cubic
"""


def test_what_is_left_out_is_said_and_recorded(tmp_path: Path) -> None:
    """No program can be found, iperf3 among them."""
    (tmp_path / "crossed.yaml").write_text(SCENARIO)
    options = ["--seconds", "2", "--json", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "replay", "crossed.yaml", *options],
        cwd=tmp_path,
        env=environment(PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "a replay leaves out: traffic, pause" in done.stderr
    report = json.loads(done.stdout)
    assert report["not_replayed"] == ["traffic", "pause"]
    for name in ("certificate.json", "summary.json"):
        (found,) = tmp_path.glob(f"runs/*/{name}")
        assert json.loads(found.read_text())["not_replayed"] == ["traffic", "pause"]
