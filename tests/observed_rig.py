"""Prometheus and the forwarder of an observed run: their rights, read from ``/proc``, and what ``docs/privileges.md`` says they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from command_rig import command_line, descendants
from processes_rig import (
    listening,
    own_mounts,
    own_namespaces,
    parts,
    power_of,
    sockets_of,
    status_of,
    table,
    user_of,
    written_by,
)

from testbed.links.network.namespaces import inside
from testbed.runner import observe
from testbed.topology import CONTROL_PORT, METRICS_PORT

Row = dict[str, Any]
"""By the columns of the table: text, or a set where a cell is a list."""
HEADING = "### Prometheus and its forwarder"
MOUNTS = "mounts of its own that can be written to"
_LISTS = ("namespaces of its own", MOUNTS, "sockets")
_ANSWER_S = 20.0


def promised(fabric: str) -> dict[str, Row]:
    """Rows of the documentation by process. ``fabric``: with who starts the run, as the page has it."""
    return {
        row["process"]: {
            column: parts(cell) if column in _LISTS else cell
            for column, cell in row.items()
            if column not in {"fabric", "process"}
        }
        for row in table(HEADING)
        if row["fabric"] == fabric
    }


def rights_of(
    process: int, user: int = -1, host: Sequence[str] = (), other: int | str = "self"
) -> Row:
    """A process's row, read off itself. ``user``: whose id the page calls the user's. ``host``: see ``own_mounts``."""
    status = status_of(process)
    return {
        "user": user_of(status, {"0": "root", str(user): "the user"}),
        "capabilities": power_of(process),
        "namespaces of its own": own_namespaces(process, other),
        MOUNTS: own_mounts(process, {}, host, other),
        "sockets": set(sockets_of(process)),
    }


def prometheus_of(testbed: int) -> int:
    """Process id of the Prometheus that a command has started; 0 until the programs on the way have become it."""
    begin = "/proc/self/fd/"
    return next((pid for pid in descendants(testbed) if command_line(pid).startswith(begin)), 0)


def is_up(testbed: int) -> bool:
    """Return whether the Prometheus that a command has started listens."""
    prometheus = prometheus_of(testbed)
    return prometheus != 0 and listening(prometheus) != set()


def home_of(prometheus: int) -> Path:
    """The folder that Prometheus has for itself."""
    (home,) = re.findall(r"--config\.file=(\S+?)/prometheus\.yml", command_line(prometheus))
    return Path(home)


def port_of(prometheus: int) -> int:
    """The port that Prometheus was told to listen at."""
    (port,) = re.findall(r"--web\.listen-address=127\.0\.0\.1:(\d+)", command_line(prometheus))
    return int(port)


@contextmanager
def connected(process: int, port: int) -> Iterator[None]:
    """A connection to a port of the loopback of a process's network, over which Prometheus has answered."""
    client = HTTPConnection(observe.LOOPBACK, port, timeout=_ANSWER_S)
    with closing(client):
        with inside(f"/proc/{process}/ns/net"):
            client.connect()
        client.request("GET", "/-/ready")
        client.getresponse().read()
        yield


def assert_gains_nothing(prometheus: int) -> None:
    """Assert that it has no capability, can get none, is in no other group, and writes to its own folder and log alone."""
    status = status_of(prometheus)
    assert status["NoNewPrivs"] == ["1"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind][0], 16) == 0, kind
    assert (set(status["Gid"]), status["Groups"]) == (set(status["Uid"]), [])
    files, home = written_by(prometheus), home_of(prometheus)
    beside = {path for path in files if not path.is_relative_to(home)}
    assert files > beside and {path.name for path in beside} == {observe.LOG}, files


def assert_observed_as_documented(
    testbed: int, fabric: str, address: str, user: int = -1, host: Sequence[str] = ()
) -> None:
    """Assert that Prometheus and the command that has started it have what the page says, while somebody is connected.

    ``fabric``, ``user`` and ``host`` as above. ``address``: of the forwarder, as the command says it.
    """
    prometheus, port = prometheus_of(testbed), int(address.rpartition(":")[2])
    forwarder = (observe.LOOPBACK, port)
    with connected(testbed, port):
        rows = {
            "Prometheus": rights_of(prometheus, user, host),
            "testbed": rights_of(testbed, user, host),
        }
    assert rows == promised(fabric)
    assert_gains_nothing(prometheus)
    assert listening(prometheus) == {(observe.LOOPBACK, port_of(prometheus))}
    assert forwarder in listening(testbed)
    other = (listening(testbed) | listening(testbed, prometheus)) - {forwarder}
    (control,) = {own for own, port in other if port == CONTROL_PORT}
    metrics = control
    if "net" in own_namespaces(prometheus, testbed):
        assert listening(testbed) == {forwarder}
        assert port_of(prometheus) == observe.PORT
        metrics = observe.LOOPBACK
    assert control != observe.LOOPBACK
    assert other == {(control, CONTROL_PORT), (metrics, METRICS_PORT)}
