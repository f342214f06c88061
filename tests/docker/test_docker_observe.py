"""``testbed run --observe`` with containers: a real Prometheus scrapes all of them, and the session."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from command_rig import Command

from testbed.host import prometheus
from testbed.runner import dashboard, observe

pytestmark = [
    pytest.mark.docker,
    pytest.mark.optional,
    pytest.mark.skipif(
        prometheus.program() is None, reason="needs Prometheus, which `make observe` fetches"
    ),
]
SCENARIO = """
name: watched
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
events:
  - {kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}
train:
  task: digits
  model: mlp
  optimizer: {name: sgd, lr: 0.1}
  pace: 250 ms
  stop: {steps: 60}
  evaluate_every: 5
algorithms: [topk-0.15]
"""


def ask(address: str, path: str, **parameters: str) -> Any:
    with urlopen(f"{address}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


def test_every_query_of_the_dashboard_gets_data_from_containers(
    tmp_path: Path, nothing_left: None
) -> None:
    path = tmp_path / "watched.yaml"
    path.write_text(SCENARIO)
    command = Command(tmp_path, "run", str(path), "--observe", "--fabric", "docker")
    command.until(lambda: len(command.steps()) > 2)
    (files,) = tmp_path.glob(f"comparisons/*/{observe.FOLDER}")
    source = (files / "grafana/provisioning/datasources/narrows.yaml").read_text()
    found = re.search(r"url: (http://127\.0\.0\.1:\d+)$", source, re.MULTILINE)
    assert found is not None
    missing = set(dashboard.queries(json.loads((files / dashboard.DASHBOARD).read_text())))
    assert len(missing) >= 18

    def all_answered() -> bool:
        missing.difference_update(
            query for query in sorted(missing) if ask(found[1], "query", query=query)["result"]
        )
        return not missing

    command.until(all_answered)
    targets = ask(found[1], "targets", state="active")["activeTargets"]
    assert [target["health"] for target in targets] == ["up"] * 4
    command.accept()
    with suppress(URLError):
        ask(found[1], "targets")
        pytest.fail("somebody still listens there")
