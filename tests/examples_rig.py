"""A script of examples/ through ``testbed exec`` in a folder of its own, and what its links carried."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_rig import Command
from torch import nn
from verdict_rig import accepted_run

from testbed.records.run_directory import read_events, read_jsonl

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
HEADERS_BYTES = 66
"""Of a packet: Ethernet, IPv4, TCP with timestamps."""
LOSS = re.compile(r"rank (\d): loss ([\d.]+) on unseen text")
PLAIN = """
name: small-examples
nodes: {worker: {role: worker, count: 2}}
links:
  default: {up: {rate: 200 Mbit/s, queue: 50 ms}, down: {rate: 200 Mbit/s, queue: 50 ms}}
congestion: cubic
"""


@dataclass(frozen=True)
class Trained:
    """A run that has ended. ``output``: of all nodes."""

    directory: Path
    output: str

    def losses(self) -> dict[int, float]:
        """At the end, by rank."""
        return {int(rank): float(loss) for rank, loss in LOSS.findall(self.output)}

    def payload_bytes(self, link: str, direction: str = "up") -> float:
        """What the link delivered, without headers."""
        samples = (s for s in read_jsonl(self.directory / "links.jsonl") if s["kind"] == "sample")
        return sum(
            s["delivered_bits"] / 8 - HEADERS_BYTES * s["packets"]
            for s in samples
            if (s["link"], s["direction"]) == (link, direction)
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Records of one kind, of all processes."""
        return read_events(self.directory).get(kind, [])

    def steps(self) -> list[tuple[int, int]]:
        """Rank and number of every step marked, sorted."""
        marks = (mark for mark in self.events("mark") if mark["what"] == "step")
        return sorted((mark["rank"], mark["number"]) for mark in marks)


def train(
    folder: Path, fabric: str, *command: str, scenario: str = PLAIN, timeout_s: float = 120.0
) -> Trained:
    """To its end, which is accepted as ``verdict_rig`` says; processes that fail, fail here."""
    (folder / "scenario.yaml").write_text(scenario)
    path = str(folder / "scenario.yaml")
    started = Command(folder, "exec", path, "--fabric", fabric, "--", *command)
    code, output, errors = started.finish(timeout_s)
    (directory,) = started.runs()
    trained = Trained(directory, output)
    assert {record["status"] for record in trained.events("process")} == {0}, errors + output
    accepted_run(directory, code)
    return trained


def model() -> nn.Module:
    """The small transformer of the examples."""
    spec = importlib.util.spec_from_file_location("char_ddp", EXAMPLES / "char_ddp.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    transformer: nn.Module = script.CharTransformer()
    return transformer


def size_bytes(module: nn.Module) -> int:
    """D, in float32."""
    return sum(4 * parameter.numel() for parameter in module.parameters())
