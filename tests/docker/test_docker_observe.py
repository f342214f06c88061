"""``testbed run --observe`` with containers: a real Prometheus scrapes all of them, and the session."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import pytest
from command_rig import Command
from dashboard_queries import SCENARIO, address_of, ask, files_of, forget_answered, queries
from observed_rig import assert_observed_as_documented

from testbed.host import prometheus
from testbed.runner import dashboard

pytestmark = [
    pytest.mark.docker,
    pytest.mark.optional,
    pytest.mark.skipif(
        prometheus.program() is None, reason="needs Prometheus, which `make observe` fetches"
    ),
]


def test_every_query_of_the_dashboard_gets_data_from_containers(
    tmp_path: Path, nothing_left: None
) -> None:
    """Prometheus has the rights that are documented; of others' processes root alone may read them."""
    path = tmp_path / "watched.yaml"
    path.write_text(SCENARIO)
    command = Command(tmp_path, "run", str(path), "--observe", "--fabric", "docker")
    command.until(lambda: len(command.steps()) > 2)
    files = files_of(tmp_path)
    address = address_of(files)
    missing = set(queries(json.loads((files / dashboard.DASHBOARD).read_text())))
    assert len(missing) >= 18

    command.until(lambda: forget_answered(missing, address))
    targets = ask(address, "targets", state="active")["activeTargets"]
    assert [target["health"] for target in targets] == ["up"] * 4
    if os.getuid() == 0:
        assert_observed_as_documented(command.process.pid, "docker, root", address)
    command.accept()
    with suppress(URLError):
        ask(address, "targets")
        pytest.fail("somebody still listens there")
