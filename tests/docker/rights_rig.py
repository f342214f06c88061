"""Rights of the processes of a run in containers, read from ``/proc``, and what ``docs/privileges.md`` says they are.

The engine is asked for the process ids of containers, and for nothing else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_rig import command_line, descendants
from processes_rig import (
    mountinfo,
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
MOUNTS = "mounts that can be written to"
_LISTS = ("capabilities", "namespaces of its own", MOUNTS, "sockets")
_CAPABILITIES = {12: "NET_ADMIN", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 23: "SYS_NICE"}
_FILTER = ["2"]
"""The mode of seccomp in which a filter decides."""
_SHAPER, _AGENT = "narrows.shaper", "testbed.links.agent.server"


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
    of_the_test: frozenset[str] = frozenset()
    """Namespaces that the test has made for the command."""

    def rows(self) -> list[tuple[str, Row]]:
        """Each process's name in the documentation, and its rights."""
        rows = [
            (self._name_on_host(pid), self._on_host(pid))
            for pid in [self.pid, *descendants(self.pid)]
        ]
        for container, first in _containers(self.run):
            for pid in _sharing_mounts(first):
                rows.append((self._name_inside(container, pid, first), self._inside(pid)))
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
            "namespaces of its own": own_namespaces(pid) - self.of_the_test,
            "root": "the host's" if Path(f"/proc/{pid}/root").samefile("/") else "another",
            MOUNTS: set(),
            "sockets": set(sockets_of(pid)),
        }

    def _inside(self, pid: int) -> Row:
        status = status_of(pid)
        names = {str(self.folder): "its folder", str(self.folder / "runs"): "runs/ in it"}
        root = [line.split()[5] for line in mountinfo(pid) if line.split()[4] == "/"][-1]
        return {
            "user": user_of(status, self.users),
            "capabilities": _capabilities(status),
            "no new privileges": "yes" if status["NoNewPrivs"] == ["1"] else "no",
            "seccomp": "the engine's" if status["Seccomp"] == _FILTER else "none",
            "namespaces of its own": own_namespaces(pid, self.pid),
            "root": "read-only" if "ro" in root.split(",") else "writable",
            MOUNTS: writable_mounts(pid, names),
            "sockets": set(sockets_of(pid)),
        }

    def _name_on_host(self, pid: int) -> str:
        line = command_line(pid)
        if line.startswith("docker\0exec\0"):
            return "docker exec of the agent" if _AGENT in line else f"{self.verb}: docker exec"
        return _AGENT if _AGENT in line else f"{self.verb}: testbed"

    def _name_inside(self, container: str, pid: int, first: int) -> str:
        line = command_line(pid)
        if container.endswith(_SHAPER):
            return f"the shaper's {_AGENT if _AGENT in line else 'own processes'}"
        if pid == first:
            return f"{self.verb}: a container's first process"
        module = next((word for word in line.split("\0") if word.startswith("testbed.")), "")
        return f"{self.verb}: {module or 'a process of the job'}"


def _capabilities(status: Mapping[str, list[str]]) -> set[str]:
    """Names of the capabilities in any set, the bounding set among them: those that it has, or could get."""
    sets = [int(status[f"Cap{kind}"][0], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    numbers = {number for bits in sets for number in range(bits.bit_length()) if bits >> number & 1}
    return {_CAPABILITIES.get(number, f"capability {number}") for number in numbers}


def _containers(run: str) -> Iterator[tuple[str, int]]:
    """Names of a run's containers, and the process id of the first process of each."""
    ask = ["docker", "ps", "--quiet", "--filter", f"label=narrows.run={run}"]
    ids = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    ask = ["docker", "inspect", "--format", "{{.Name}} {{.State.Pid}}", *ids]
    answer = subprocess.run(ask, check=True, capture_output=True, text=True).stdout
    for name, pid in map(str.split, answer.splitlines()):
        yield name, int(pid)


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
    processes = {process for process, _ in rows}
    assert processes == expected.keys(), processes ^ expected.keys()
    differences = [
        (process, column, f"{row[column]} instead of {documented}")
        for process, row in rows
        for column, documented in expected[process].items()
        if row[column] != documented
    ]
    assert not differences, "\n".join(map(" | ".join, differences))
