"""``testbed run --observe``: a real Prometheus scrapes a real run; every query of the dashboard gets data from it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from command_rig import Command, command_line
from dashboard_queries import SCENARIO, address_of, ask, files_of, forget_answered, queries
from observed_rig import assert_observed_as_documented, home_of, prometheus_of

from testbed.host import prometheus
from testbed.records import exporter as metrics
from testbed.runner import dashboard, observe

pytestmark = [
    pytest.mark.optional,
    pytest.mark.skipif(
        prometheus.program() is None, reason="needs Prometheus, which `make observe` fetches"
    ),
]


def observed(folder: Path) -> Command:
    """A run that has begun to make steps, with its Prometheus."""
    path = folder / "watched.yaml"
    path.write_text(SCENARIO)
    command = Command(folder, "run", str(path), "--observe")
    command.until(lambda: len(command.steps()) > 2)
    return command


def test_every_query_of_the_dashboard_gets_data_from_a_run(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    command = observed(tmp_path)
    files = files_of(tmp_path)
    address = address_of(files)
    document = json.loads((files / dashboard.DASHBOARD).read_text())
    (run,) = command.runs()
    values = {entry["name"]: entry["current"]["value"] for entry in document["templating"]["list"]}
    assert values == {"run": run.name, "link": "server"}

    missing = set(queries(document))
    assert len(missing) >= 18

    command.until(lambda: forget_answered(missing, address))
    for entry in document["templating"]["list"]:
        name, query = entry["name"], entry["query"]["query"].replace("$run", run.name)
        label = query.rpartition(",")[2].strip(" )")
        matching = query.removeprefix("label_values(").rpartition(",")[0]
        offered = ask(address, f"label/{label}/values", **{"match[]": matching})
        assert values[name] in offered, (name, offered)

    events = ask(address, "query", query=metrics.EVENT)["result"]
    kinds = {(event["metric"]["event"], event["metric"]["on"]) for event in events}
    assert {("rate", "server up"), ("outage", "worker-0 up"), ("service", "worker-0 down")} <= kinds
    targets = ask(address, "targets", state="active")["activeTargets"]
    assert {target["health"] for target in targets} == {"up"} and len(targets) == 4
    health = {
        rule["health"] for group in ask(address, "rules")["groups"] for rule in group["rules"]
    }
    assert health == {"ok"}
    assert_observed_as_documented(command.process.pid, "netns, root", address)
    pid = prometheus_of(command.process.pid)
    home, line = home_of(pid), command_line(pid)
    for bound in (f"retention.size={observe.STORED_BYTES}", f"retention.time={observe.STORED_S}"):
        assert bound in line
    command.accept()
    assert not Path(f"/proc/{pid}").exists() and not home.exists()
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))),
    ):
        pytest.fail("somebody still listens there")


@pytest.mark.usefixtures("state")  # what other tests' runs have left is not its matter
def test_clean_removes_prometheus_after_a_kill(tmp_path: Path, nothing_left: set[str]) -> None:
    command = observed(tmp_path)
    pid = prometheus_of(command.process.pid)
    home = home_of(pid)
    assert home.parent == Path(tempfile.gettempdir()) and (home / "data").is_dir()
    command.process.send_signal(signal.SIGKILL)
    command.process.communicate(timeout=30)
    cleaned = subprocess.run(
        [sys.executable, "-m", "testbed", "clean"], capture_output=True, text=True, check=True
    )
    assert f"folder {home}" in cleaned.stdout
    assert not home.exists()
    assert "--config.file=" not in command_line(pid)
    again = subprocess.run(
        [sys.executable, "-m", "testbed", "clean"], capture_output=True, text=True, check=True
    )
    assert "nothing to clean" in again.stdout
