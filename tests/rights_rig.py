"""Rights of the processes of a run in containers, read from ``/proc``, and what ``docs/privileges.md`` says they are.

Engines are asked for the process ids of containers, and for nothing else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_rig import command_line, descendants
from processes_rig import (
    mountinfo,
    own_mounts,
    own_namespaces,
    parts,
    sockets_of,
    status_of,
    table,
    user_of,
    writable_mounts,
)

Row = dict[str, Any]
"""By the columns of both tables: text, or a set where a cell is a list."""
RIGHTS, REACH = "### Processes in containers", "### Mounts and sockets in containers"
MOUNTS = "mounts of its own that can be written to"
_LISTS = ("capabilities", "namespaces of its own", MOUNTS, "sockets")
_CAPABILITIES = {12: "NET_ADMIN", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 23: "SYS_NICE"}
_FILTER = ["2"]
"""The mode of seccomp in which a filter decides."""
_SHAPER, _AGENT = "narrows.shaper", "testbed.links.agent.server"
_CONTROLLER, _HOST_AGENT = "_narrows_controller.", "_narrows_agent."
"""In the names of a swarm's containers that are none of its nodes'."""
_WAITING = ("docker-init", "sleep", "tail")
"""Programs of containers that only keep namespaces."""


def promised(by: str, verb: str) -> dict[str, Row]:
    """Rows of the documentation by process. ``verb``: of the command; other commands' containers are left out."""
    rows: dict[str, Row] = {}
    for row in (*table(RIGHTS), *table(REACH)):
        who, process = row.pop("by"), row.pop("process")
        if who == by and process.partition(": ")[0] not in {"run", "exec"} - {verb}:
            rows.setdefault(process, {}).update(row)
    return {
        process: {key: parts(cell) if key in _LISTS else cell for key, cell in row.items()}
        for process, row in rows.items()
    }


@dataclass(frozen=True)
class Container:
    """A container of a run. ``first``: process id of its first process, as this machine's ``/proc`` has it."""

    name: str
    first: int
    host: int | str = "self"
    """A process with the namespaces of the host that it is on."""


def run_in(folder: Path, document: str = "compose.yaml") -> str:
    """The id of the run or comparison whose directories are in ``folder``, as its containers bear it.

    ``document``: the file in each directory that has it as a label.
    """
    (run,) = {
        run
        for path in folder.glob(f"runs/*/{document}")
        for run in re.findall(r"narrows\.run: \W?(\w+)", path.read_text())
    }
    return str(run)


def containers_of(run: str) -> Iterator[Container]:
    """A run's containers in this machine's engine."""
    ask = ["docker", "ps", "--quiet", "--filter", f"label=narrows.run={run}"]
    ids = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    ask = ["docker", "inspect", "--format", "{{.Name}} {{.State.Pid}}", *ids]
    answer = subprocess.run(ask, check=True, capture_output=True, text=True).stdout
    for name, pid in map(str.split, answer.splitlines()):
        yield Container(name, int(pid))


@dataclass
class RunningCommand:
    """A command whose nodes are containers. ``pid``: of its first process; ``run``: as the engine's labels have it."""

    pid: int
    run: str
    verb: str
    folder: Path
    """The one that it was started in."""
    users: Mapping[str, str]
    """Names of user ids in the documentation."""
    caller: Mapping[str, list[str]] = field(default_factory=lambda: status_of("self"))
    """``/proc/PID/status`` of whoever started it."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Namespaces that the test has made for the command, by kind."""
    containers: Callable[[str], Iterator[Container]] = containers_of
    """Returns the containers of a run, by its id."""

    def rows(self) -> list[tuple[str, Row]]:
        """Each process's name in the documentation, and its rights."""
        rows = [
            (self._name_on_host(pid), self._on_host(pid))
            for pid in [self.pid, *descendants(self.pid)]
        ]
        for container in self.containers(self.run):
            for pid in _sharing_mounts(container.first):
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                    row = self._inside(pid, container.host)
                    rows.append((self._name_inside(container, pid), row))
        return rows

    def _on_host(self, pid: int) -> Row:
        status = status_of(pid)

        def compared(*names: str) -> str:
            same = all(status[name] == self.caller[name] for name in names)
            return "the caller's" if same else " ".join(str(status[name]) for name in names)

        capabilities = "all" if status["CapEff"] == self.caller["CapEff"] else status["CapEff"][0]
        return {
            "user": user_of(status, self.users),
            "capabilities": {"none" if int(status["CapEff"][0], 16) == 0 else capabilities}
            - {"none"},
            "no new privileges": compared("NoNewPrivs"),
            "seccomp": compared("Seccomp", "Seccomp_filters"),
            "namespaces of its own": own_namespaces(pid, given=self.given),
            "root": "the host's" if Path(f"/proc/{pid}/root").samefile("/") else "another",
            MOUNTS: own_mounts(pid, {}, given=self.given),
            "sockets": set(sockets_of(pid)),
        }

    def _inside(self, pid: int, host: int | str) -> Row:
        status = status_of(pid)
        names = {str(self.folder): "its folder", str(self.folder / "runs"): "runs/ in it"}
        root = [line.split()[5] for line in mountinfo(pid) if line.split()[4] == "/"][-1]
        return {
            "user": user_of(status, self.users),
            "capabilities": _capabilities(status),
            "no new privileges": "yes" if status["NoNewPrivs"] == ["1"] else "no",
            "seccomp": "the engine's" if status["Seccomp"] == _FILTER else "none",
            "namespaces of its own": own_namespaces(pid, host),
            "root": "read-only" if "ro" in root.split(",") else "writable",
            MOUNTS: writable_mounts(pid, names),
            "sockets": set(sockets_of(pid)),
        }

    def _name_on_host(self, pid: int) -> str:
        line = command_line(pid)
        if line.startswith("docker\0exec\0"):
            return "docker exec of the agent" if _AGENT in line else f"{self.verb}: docker exec"
        return _AGENT if _AGENT in line else f"{self.verb}: testbed"

    def _name_inside(self, container: Container, pid: int) -> str:
        line = command_line(pid)
        waits = Path(line.partition("\0")[0]).name in _WAITING
        if container.name.endswith(_SHAPER):
            known = "own processes" if waits else f"process {line!r}"
            return f"the shaper's {_AGENT if _AGENT in line else known}"
        if _CONTROLLER in container.name:
            return "the controller's task" if waits else f"the controller's process {line!r}"
        module = next((word for word in line.split("\0") if word.startswith("testbed.")), "")
        if _HOST_AGENT in container.name:
            return "an agent's first process" if pid == container.first else module
        if pid == container.first:
            return f"{self.verb}: a container's first process"
        program = module or iperf3_end(line) or "a process of the job"
        return f"{self.verb}: {program}"


def iperf3_end(line: str) -> str:
    """Return which end of a flow of cross traffic a command line is, as the tables name it, or nothing."""
    words = line.split("\0")
    return f"iperf3 {words[1]}" if words[0] == "iperf3" else ""


def _capabilities(status: Mapping[str, list[str]]) -> set[str]:
    """Names of the capabilities in any set, the bounding set among them: those that it has, or could get."""
    sets = [int(status[f"Cap{kind}"][0], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    numbers = {number for bits in sets for number in range(bits.bit_length()) if bits >> number & 1}
    return {_CAPABILITIES.get(number, f"capability {number}") for number in numbers}


def _sharing_mounts(first: int) -> Iterator[int]:
    """All processes in the mount namespace of a container's first process."""
    mounts = Path(f"/proc/{first}/ns/mnt").readlink()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if (path / "ns/mnt").readlink() == mounts:
                yield int(path.name)


def assert_documented(rows: list[tuple[str, Row]], by: str, verb: str) -> None:
    """Every process has what the documentation says, and every row of it is some process's."""
    expected = promised(by, verb)
    columns = {frozenset(row) for row in expected.values()}
    assert len(columns) == 1, "a process is in one of the two tables alone"
    processes = {process for process, _ in rows}
    assert processes == expected.keys(), processes ^ expected.keys()
    differences = [
        (process, column, f"{row[column]} instead of {documented}")
        for process, row in rows
        for column, documented in expected[process].items()
        if row[column] != documented
    ]
    assert not differences, "\n".join(map(" | ".join, differences))
