"""``testbed`` as a process of its own, and what it may not leave behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import urlopen

from long_files import limit_s
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from verdict_rig import accepted_runs

from testbed.links.network import namespaces
from testbed.topology import METRICS_PORT

SCENARIO = """
name: small
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 2}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events: [{{kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}}]
train:
  task: digits
  model: mlp
  optimizer: {{name: sgd, lr: 0.1}}
  pace: 200 ms
  stop: {{steps: {steps}}}
  evaluate_every: 10
algorithms: [{algorithms}]
congestion: cubic
"""

NAME_CHARACTERS = 15
"""Of a process's name the kernel keeps so many."""
_PROGRAMS = r"testbed\.(runner\.(node_process|bulk_flow)|fabric\.fork_server|links\.agent\.server)"


DRAWING = frozenset({"run", "compare", "replay", "messages"})
"""Verbs whose commands draw figures, unless they are told not to."""


class Command:
    """A running ``testbed`` command in a directory of its own; ``python`` in it is the one that runs the tests.

    ``program``: Python that stands for ``-m testbed``. ``figures``: those that the command draws at its end.
    ``variables``: of its environment, beside this process's.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: str | None = None,
        figures: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        end = arguments.index("--") if "--" in arguments else len(arguments)
        options, command = arguments[:end], arguments[end:]
        start = ["-m", "testbed"] if program is None else ["-c", program]
        if not figures and options[0] in DRAWING:
            options = (*options, "--no-figures")
        self.process = subprocess.Popen(
            [sys.executable, *start, *options, "--out", str(folder), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **variables,
            },
        )

    def finish(self, timeout_s: float = 90.0) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, err = self.process.communicate(timeout=limit_s(timeout_s))
        return self.process.returncode, out, err

    def accept(self, timeout_s: float = 90.0, lost: Collection[str] = ()) -> tuple[str, str]:
        """Standard output and standard error of a command whose runs all end as they may (``verdict_rig``)."""
        code, out, err = self.finish(timeout_s)
        assert self.runs(), err
        accepted_runs(self.runs(), code, lost)
        return out, err

    def runs(self) -> list[Path]:
        """Directories of the runs made so far, in the order of their names."""
        return sorted(self.folder.glob("runs/*"))

    def steps(self) -> list[dict[str, Any]]:
        """Step records on disk now; a last line may be only half there."""
        return [
            event
            for path in self.folder.glob("runs/*/events/worker-*.jsonl")
            for event in map(json.loads, path.read_text().split("\n")[:-1])
            if event["kind"] == "step"
        ]

    def until(self, condition: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Wait for a state; a command that does not reach it is ended."""
        give_up = time.monotonic() + limit_s(timeout_s)
        while not condition():
            if self.process.poll() is not None or time.monotonic() > give_up:
                status = self.process.poll()
                self.process.terminate()
                raise AssertionError((status, *self.process.communicate(timeout=60)))
            time.sleep(0.05)

    def node(self, name: str) -> int:
        """Process id of a node of this run: forks of one process bear its command line, and the node's name."""
        children = descendants(self.process.pid)
        return next(pid for pid in children if process_name(pid) == name[:NAME_CHARACTERS])

    def agent(self) -> int:
        """Process id of this run's links agent."""
        children = descendants(self.process.pid)
        return next(pid for pid in children if "testbed.links.agent.server" in command_line(pid))


def trained(folder: Path, scenario: str, fabric: str, timeout_s: float) -> list[dict[str, Any]]:
    """Entries of the runs that ``testbed run`` made on ``fabric``."""
    folder.mkdir()
    path = folder / "scenario.yaml"
    path.write_text(scenario)
    command = Command(folder, "run", str(path), "--fabric", fabric, "--json")
    if fabric == "sim":
        code, out, err = command.finish(timeout_s)
        assert code == 0, err
    else:
        out, _ = command.accept(timeout_s)
    runs: list[dict[str, Any]] = json.loads(out)["runs"]
    return runs


def summaries(folder: Path) -> list[dict[str, Any]]:
    """Of the runs in ``folder``, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/summary.json"))]


def measured(bench: str, *arguments: str, out: Path) -> tuple[dict[str, Any], Path]:
    """The result of a quick ``testbed bench``, which is also what it has written, and the folder of that."""
    command = [sys.executable, "-m", "testbed", "bench", bench, "--quick", "--json", "--quiet"]
    done = subprocess.run(
        [*command, *arguments, "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    result: dict[str, Any] = json.loads(done.stdout)
    (written,) = out.glob(f"measurements/*/{'bench' if bench == 'link' else bench}.json")
    assert json.loads(written.read_text()) == result
    return result, written.parent


def scrape(pid: int) -> dict[str, Metric]:
    """What a node's exporter says, asked as Prometheus asks: over the control network."""
    address = re.search(r"([\d.]+)/\d+ .*control", addresses(pid))
    assert address is not None
    network = next(filter(lambda path: has(path, pid), namespaces.NAMED.glob("nw-*-control")), None)
    with (
        namespaces.inside(None if network is None else str(network)),
        urlopen(f"http://{address[1]}:{METRICS_PORT}/metrics", timeout=60) as answer,
    ):
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def has(network: Path, pid: int) -> bool:
    """Whether a control network's namespace is of the same run as a process's."""
    tag = network.name.removesuffix("control")
    own = Path(f"/proc/{pid}/ns/net")
    return any(path.samefile(own) for path in network.parent.glob(f"{tag}*"))


def addresses(pid: int) -> str:
    """IPv4 addresses in a process's namespace."""
    command = ["nsenter", "-t", str(pid), "-n", "ip", "-4", "-o", "addr", "show"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def families_total(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Sum of a metric's samples with these labels."""
    return sum(
        sample.value
        for sample in families[name].samples
        if labels.items() <= sample.labels.items() and not sample.name.endswith("_created")
    )


def descendants(pid: int) -> list[int]:
    """The kernel lists children by the thread that started them."""
    children: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            children += task.read_text().split()
    return [grand for child in map(int, children) for grand in [child, *descendants(child)]]


def process_name(pid: int) -> str:
    """At most 15 characters."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def ours() -> set[str]:
    """Namespaces, host links, containers and networks of ours, and processes of nodes and agents.

    Of this host as this process sees it: processes of other process namespaces are other tests'.
    """
    namespaces = {path.name for path in Path("/run/netns").glob("nw-*")}
    links = {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith("nw")}
    processes = {
        path.name
        for path in Path("/proc").iterdir()
        if path.name.isdigit()
        and re.search(_PROGRAMS, command_line(int(path.name)))
        and _namespace(path.name) == _namespace("self")
    }
    return namespaces | links | processes | _of_the_engine("ps", "-a") | _of_the_engine("network")


def _namespace(pid: str) -> str:
    """Of process ids, and which one."""
    with suppress(OSError):  # it has ended meanwhile
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""


def _of_the_engine(kind: str, *options: str) -> set[str]:
    """Containers or networks with our label; none without an engine."""
    command = ["docker", kind, *options] if kind == "ps" else ["docker", kind, "ls"]
    try:
        listed = subprocess.run(
            [*command, "-q", "--filter", "label=narrows.run"], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return set()
    return set(listed.stdout.split())


def settle(before: set[str], timeout_s: float = 60.0) -> set[str]:
    """What there is more than before; processes that are ending get some time for it."""
    give_up = time.monotonic() + timeout_s
    while (left := ours() - before) and time.monotonic() < give_up:
        time.sleep(0.1)
    return left


Write = Callable[..., str]
