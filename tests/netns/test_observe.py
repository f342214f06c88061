"""``testbed run --observe``: a real Prometheus scrapes a real run; every query of the dashboard gets data from it."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from command_rig import Command, command_line, descendants
from dashboard_queries import SCENARIO, address_of, ask, files_of, forget_answered, queries

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


def process_of(command: Command) -> int:
    (pid,) = [
        pid for pid in descendants(command.process.pid) if "--config.file=" in command_line(pid)
    ]
    return pid


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses and ports on which the sockets of a process listen."""
    own = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
            host, port = fields[1].split(":")
            found.add((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return found


def home_of(pid: int) -> Path:
    found = re.search(r"--config\.file=(\S+?)/prometheus\.yml", command_line(pid))
    assert found is not None
    return Path(found[1])


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
    assert_unprivileged(command)
    pid = process_of(command)
    home = home_of(pid)
    command.accept()
    assert not Path(f"/proc/{pid}").exists() and not home.exists()
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))),
    ):
        pytest.fail("somebody still listens there")


def assert_unprivileged(command: Command) -> None:
    pid = process_of(command)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(observe.USER)}
    assert status["Groups"].strip() == "" and status["NoNewPrivs"] == "1"
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
        assert int(status[kind], 16) == 0, kind
    assert listening(pid) == {("127.0.0.1", observe.PORT)}
    assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    line = command_line(pid)
    for bound in (f"retention.size={observe.STORED_BYTES}", f"retention.time={observe.STORED_S}"):
        assert bound in line


@pytest.mark.usefixtures("state")  # what other tests' runs have left is not its matter
def test_clean_removes_prometheus_after_a_kill(tmp_path: Path, nothing_left: set[str]) -> None:
    command = observed(tmp_path)
    pid = process_of(command)
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
