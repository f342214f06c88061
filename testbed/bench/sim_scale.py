"""``testbed bench scale``: workers in racks whose links are oversubscribed, every size in a
process of its own, whose memory and time are taken.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.bench.results import Say, Suite, link, measurement, write_json, write_scenario
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import read_json
from testbed.runner.run import process_pool
from testbed.runner.signals import blocked, interruptible

WORKERS = (4, 16, 64, 256, 1000, 4000, 10_000)
SERVERS = (1, 8)
_RACK = 100
"""Workers behind one link: ten times what it carries."""
_PACE_MS, _QUEUE = 100, "5 ms"


@dataclass(frozen=True, slots=True, order=True)
class ScaleSize:
    """One scenario."""

    servers: int
    workers: int

    @property
    def name(self) -> str:
        """As scenario and file are called."""
        return f"scale-{self.servers}-{self.workers}"


def scenario(size: ScaleSize, steps: int, algorithm: str) -> dict[str, Any]:
    """Payloads only: digits' CNN, hosts of their own that take 20 µs for a message."""
    racks = dict(_racks(size.workers))
    return {
        "name": size.name,
        "nodes": {
            "server": {"role": "server", "count": size.servers},
            **{group: {"role": "worker", "count": count} for group, count in racks.items()},
        },
        "links": {"default": link("1 Gbit/s", _QUEUE), "server": link("25 Gbit/s", _QUEUE)},
        "racks": {
            group.replace("workers", "rack"): {"members": [group], **link("10 Gbit/s", _QUEUE)}
            for group in racks
        },
        "train": {
            "task": "digits",
            "model": "cnn",
            "gradients": "none",
            "pace": f"{_PACE_MS} ms",
            "stop": {"steps": steps},
        },
        "algorithms": [algorithm],
        "seeds": [1],
        "congestion": "cubic",
        "peer_timeout": "600 s",
        "sim": {"send": "20 us", "receive": "20 us"},
    }


def _racks(workers: int) -> Iterator[tuple[str, int]]:
    """Groups by name, each with its number of workers."""
    for number, first in enumerate(range(0, workers, _RACK)):
        yield f"workers-{number}", min(_RACK, workers - first)


RESULT = "scale.json"
PARTS = ("compute", "send", "wait", "receive")
"""The phases that take time where nothing is trained."""


def run(
    sizes: Sequence[ScaleSize], out: Path, say: Say, *, steps: int, algorithm: str
) -> tuple[Path, Suite]:
    """The directory of the results, and a row for every size."""
    directory = measurement(out, "scale")
    rows = []
    with interruptible():
        for size in sizes:
            path = write_scenario(directory, size.name, scenario(size, steps, algorithm))
            with process_pool(1) as pool:
                with blocked():
                    future = pool.submit(_point, path, directory / "virtual")
                row = future.result()
            rows.append({"servers": size.servers, "workers": size.workers, **row})
            say(f"{size.name}: step {row['step_s']:.4g} s, simulated in {row['run_s']:.3g} s")
    about = {"steps": steps, "algorithm": algorithm, "machine": machine_facts()}
    suite = Suite("Workers behind oversubscribed racks, in virtual time", rows, [], about)
    write_json(directory / RESULT, suite.to_json())
    return directory, suite


def _point(path: Path, out: Path) -> dict[str, Any]:
    """One size: a step and its parts in s; s and bytes of memory of the whole run, its beginning
    and records included."""
    import testbed.runner.sim_trial
    import testbed.training.payload_only  # noqa: F401
    from testbed.runner.experiment import prepare
    from testbed.runner.run import run as carry_out

    begun_s = time.perf_counter()
    (entry,) = carry_out(prepare(path), "sim", out, quiet=True).runs
    run_s = time.perf_counter() - begun_s
    summary = read_json(Path(entry["dir"]) / "summary.json")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "step_s": summary["step_s"],
        **{f"{part}_s": summary["phases_s"][part] for part in PARTS},
        "expected_step_s": summary["expected_step_s"],
        "run_s": run_s,
        "run_per_step_s": run_s / summary["steps"],
        # Linux counts in KiB, macOS in bytes
        "memory_bytes": peak if sys.platform == "darwin" else 1024 * peak,
    }
