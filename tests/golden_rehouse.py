"""Digests of what runs record and commands print: ``python tests/golden_rehouse.py`` records them anew.

Each named algorithm trains for 12 steps in virtual time; every scenario that ships is validated and planned. Left out are
paths, versions, dates and what a clock of the machine says. What differs is seen by recording both sides with ``--keep DIR``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "rehouse" / "digests.json"
SCENARIO = """
name: golden
nodes: {{{server}worker: {{role: worker, count: 3}}}}
links:
  default: {{up: {{rate: 20 Mbit/s, queue: 50 ms}}, down: {{rate: 20 Mbit/s, queue: 50 ms}}}}
events: [{{kind: step, links: [worker-1], at: 600 ms, rate: 5 Mbit/s}}]
train: {{task: synthetic, model: mlp, width: 0.25, batch: 12, optimizer: {{name: sgd, lr: 0.1, momentum: {momentum}}},
  pace: 100 ms, stop: {{steps: 12}}, evaluate_every: 6}}
algorithms: [{algorithm}]
seeds: [1]
"""
SERVER = "server: {role: server}, "
MACHINE = frozenset({"dir", "versions", "started_at"})
"""Keys of records that do not depend on the scenario alone."""
ROUNDED = frozenset({"loss", "accuracy", "payload_crc", "threshold", "held", "sent", "curves"})
"""Keys of records that differ between processors, in whose vectors sums are rounded otherwise."""
SENSITIVE = frozenset(
    {"accordion", "adalag", "algc", "algc-residuals", "lags", "oracle", "topk-linear"}
)
"""Algorithms whose decisions depend on the last digits of gradients: they differ between
processors, as with ``ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE``."""


def algorithms() -> list[str]:
    """Every named algorithm that makes the same decisions on all processors."""
    from testbed.compatibility import known

    return [algorithm.name for algorithm in known() if algorithm.name not in SENSITIVE]


def scenarios() -> list[Path]:
    """Every scenario that ships."""
    return sorted(
        [*(ROOT / "scenarios").glob("*.yaml"), *(ROOT / "scenarios").glob("papers/*/*.yaml")]
    )


def digests_of_run(algorithm: str, folder: Path) -> dict[str, str]:
    """By file of its run directory; where the algorithm is refused, why."""
    from testbed.errors import InputError, MachineError
    from testbed.runner.experiment import prepare
    from testbed.runner.run import run

    refused = []
    for server in (SERVER, ""):
        for momentum in (0.9, 0):
            path = folder / algorithm / "golden.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SCENARIO.format(server=server, algorithm=algorithm, momentum=momentum))
            try:
                runs = run(prepare(path), "sim", path.parent, quiet=True).runs
            except (InputError, MachineError) as error:
                refused.append(without_paths(str(error), folder))
                continue
            return {
                **dict(_files(Path(runs[0]["dir"]), folder)),
                "nodes": server,
                "momentum": str(momentum),
            }
    return {"refused": " | ".join(refused)}


def _files(directory: Path, folder: Path) -> Iterable[tuple[str, str]]:
    for path in sorted(
        [*(directory / "events").iterdir(), directory / "links.jsonl", directory / "summary.json"]
    ):
        text = path.read_text()
        records = (
            [json.loads(text)]
            if path.suffix == ".json"
            else list(map(json.loads, text.splitlines()))
        )
        lines = [json.dumps(_plain(record)) for record in records]
        if path.parent.name == "events":
            lines.sort()
        yield path.name, digest(without_paths("\n".join(lines), folder))


def _plain(record: Any) -> Any:
    if isinstance(record, list):
        return [_plain(entry) for entry in record]
    if not isinstance(record, dict):
        return record
    return {name: _plain(value) for name, value in record.items() if name not in MACHINE | ROUNDED}


def without_paths(text: str, folder: Path) -> str:
    """Replace what differs between machines and moments."""
    for path, name in ((folder, "FOLDER"), (ROOT, "ROOT")):
        text = text.replace(str(path), name)
    return re.sub(r"\d{8}T\d{6}Z", "DATE", text)


def digest(text: str) -> str:
    """Of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def digests_of_texts(path: Path, folder: Path) -> dict[str, str]:
    """Of what ``validate`` and ``plan`` print of a scenario, by command."""
    from testbed.cli import application

    printed = {}
    for command in (["validate"], ["plan"], ["plan", "--json"]):
        result = CliRunner().invoke(application(), [*command, str(path)], env={"COLUMNS": "120"})
        text = without_paths(f"{result.exit_code}\n{result.output}", folder)
        printed[" ".join(command)] = digest(text)
        (folder / f"{path.stem}-{'-'.join(command)}.txt").write_text(text)
    return printed


def task(kind: str, name: str, folder: str) -> tuple[str, str, dict[str, str]]:
    """One entry."""
    if kind == "runs":
        return kind, name, digests_of_run(name, Path(folder))
    return kind, name, digests_of_texts(ROOT / name, Path(folder))


def as_recorded() -> None:
    """Make bursts of links 0.5 ms long at all rates, as they were when this was recorded, and leave
    out what this machine lacks."""
    from testbed.cli import plan, validate
    from testbed.links.tc import parameters

    parameters._BURST_S = 0.5e-3
    plan.notes = validate.notes = lambda *_, **__: []


def recorded(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Everything, in two processes."""
    tasks = [("texts", str(path.relative_to(ROOT))) for path in scenarios()]
    tasks += [("runs", name) for name in algorithms()]
    out: dict[str, dict[str, dict[str, str]]] = {"runs": {}, "texts": {}}
    context = get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=as_recorded) as pool:
        kinds, names = zip(*tasks, strict=True)
        for kind, name, values in pool.map(task, kinds, names, [str(folder)] * len(tasks)):
            out[kind][name] = values
    return out


def as_text(digests: dict[str, dict[str, dict[str, str]]]) -> str:
    """As they stand in the file, sorted: a new entry changes no other line."""
    return json.dumps(digests, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(prog="golden_rehouse.py")
    parser.add_argument("--keep", type=Path, help="where runs and texts are kept")
    parser.add_argument("--to", type=Path, default=GOLDEN)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = options.keep or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        text = as_text(recorded(where.resolve()))
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(text)
    sys.stdout.write(f"{options.to}\n")


if __name__ == "__main__":
    main()
