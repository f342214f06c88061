"""One run of many algorithms on real links, for the tests that look at different parts of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from command_rig import SCENARIO, Command, ours, scrape, settle
from prometheus_client.metrics_core import Metric

from testbed.records.run_directory import read_json, read_jsonl

NODES = ("server", "worker-0", "worker-1")
ROWS = ("laplace-0.05+int8", "qsgd-4bit", "onebit-double", "topk-0.05+layers")
ALGORITHMS = ("none", "adatopk", *ROWS, "adatopk-agreed", "oracle")
STEPS = 12


@dataclass(frozen=True)
class Run:
    """What is printed of one run, and its records."""

    entry: dict[str, Any]

    @property
    def directory(self) -> Path:
        return Path(self.entry["dir"])

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.directory / "summary.json")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.directory / "manifest.json")

    @cached_property
    def done(self) -> dict[str, Any]:
        """The nodes' last messages."""
        found: dict[str, Any] = read_json(self.directory / "evidence.json")["nodes"]
        return found

    def records(self, kind: str, pattern: str = "worker-*") -> list[dict[str, Any]]:
        paths = sorted(self.directory.glob(f"events/{pattern}.jsonl"))
        return [line for path in paths for line in read_jsonl(path) if line["kind"] == kind]

    def samples(self) -> list[dict[str, Any]]:
        """Of its links."""
        return [s for s in read_jsonl(self.directory / "links.jsonl") if s["kind"] == "sample"]

    def payloads(self) -> dict[tuple[str, int], int]:
        """CRC of every payload, by worker and step."""
        return {(s["node"], s["step"]): s["payload_crc"] for s in self.records("step")}


@dataclass(frozen=True)
class Trained:
    """A command that has ended; ``runs`` by algorithm, in their order. ``scraped``: its nodes' exporters."""

    folder: Path
    scenario: str
    runs: dict[str, Run]
    scraped: dict[str, dict[str, Metric]]
    left: set[str]
    """What it left on this machine."""


def write(folder: Path, steps: int, algorithms: Sequence[str]) -> str:
    """The scenario's file."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ", ".join(f"'{name}'" for name in algorithms)
    path = folder / "small.yaml"
    # sooner than elsewhere: on a busy machine all is told late, and runs are short
    text = SCENARIO.replace("at: 1 s", "at: 500 ms").replace("pace: 200 ms", "pace: 250 ms")
    path.write_text(text.format(steps=steps, algorithms=names))
    return str(path)


def printed(out: str) -> dict[str, Run]:
    """By algorithm."""
    return {entry["algorithm"]: Run(entry) for entry in json.loads(out)["runs"]}


def train(folder: Path) -> Trained:
    """Run all algorithms; their verdicts are accepted. Exporters are asked in the first one, in its last half."""
    before = ours()
    scenario = write(folder, STEPS, ALGORITHMS)
    command = Command(folder, "run", scenario, "--json", figures=True)
    command.until(command.steps, 240.0)  # kernels may have to be compiled
    nodes = [command.node(name) for name in NODES]
    command.until(lambda: len(command.steps()) > STEPS + 2)
    with ThreadPoolExecutor(len(nodes)) as threads:
        scraped = dict(zip(NODES, threads.map(scrape, nodes), strict=True))
    out, _ = command.accept(240.0)
    return Trained(folder, scenario, printed(out), scraped, settle(before))
