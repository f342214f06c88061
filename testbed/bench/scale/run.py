"""``testbed bench scale``: every size in a process of its own, whose memory and time are taken."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from testbed.bench.result import Suite
from testbed.bench.scale.growth import Size, scenario
from testbed.record.directory import fresh, read_json, to_json, write_atomically
from testbed.record.machine import machine
from testbed.session.interrupt import interruptible

RESULT = "scale.json"
PARTS = ("compute", "send", "wait", "receive")
"""The phases that take time where nothing is trained."""


def run(
    sizes: Sequence[Size], out: Path, say: Callable[[str], None], *, steps: int, algorithm: str
) -> tuple[Path, Suite]:
    """The directory of the results, and a row for every size."""
    directory = fresh(out / "measurements", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_scale")
    rows = []
    with interruptible():
        for size in sizes:
            path = directory / f"{size.name}.yaml"
            # JSON is YAML too.
            content = json.dumps(scenario(size, steps, algorithm), indent=2)
            write_atomically(path, content + "\n")
            # a fork would start with this process's memory
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                row = pool.submit(_point, path, directory / "virtual").result()
            rows.append({"servers": size.servers, "workers": size.workers, **row})
            say(f"{size.name}: step {row['step_s']:.4g} s, simulated in {row['run_s']:.3g} s")
    about = {"steps": steps, "algorithm": algorithm, "machine": machine()}
    found = Suite("Workers behind oversubscribed racks, in virtual time", rows, [], about)
    write_atomically(directory / RESULT, to_json(found.to_json(), indent=2) + "\n")
    return directory, found


def _point(path: Path, out: Path) -> dict[str, Any]:
    """One size: a step and its parts in s; s and bytes of memory of the whole run, its beginning and records included."""
    import testbed.session.virtual
    import testbed.train.sizes  # noqa: F401
    from testbed.session.experiment import prepare
    from testbed.session.run import run as carry_out

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
