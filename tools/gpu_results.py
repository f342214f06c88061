"""Run what has figures on a GPU, and write them to one file: the tests, ``bench gpu``, the
demonstration, a scenario of each paper, and Table 1 of AdaTopK.

``make gpu``; what it needs: docs/how-to/gpu.md. The file is written anew after each part.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.bench.results import RESULT
from testbed.host.paths import ROOT
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import MANIFEST, SUMMARY, read_json

PAPERS = ROOT / "scenarios" / "papers"
ABOUT_RUN = (
    *("verdict", "reasons", "steps", "time_s", "step_s", "communication_share", "phases_s"),
    *("bytes_up", "bytes_down", "mean_k", "accuracy"),
)
"""What is kept of a run's summary.json."""


def commands(own: argparse.Namespace) -> dict[str, list[str]]:
    """Arguments of ``python -m`` for each part, those that take longest last."""
    out, run = str(own.out), ["testbed", "run", "--quiet", "--fabric", own.fabric, "--out"]
    bench = ["testbed", "bench", "gpu", "--quiet"]
    table = ["testbed", "bench", "replicate", "--quiet", "--fabric", own.fabric, "--size", "gpu"]
    return {
        "tests": ["pytest", "tests/gpu", "-q", "-rs"],
        "bench": [*bench, "--repeat", str(own.repeat), "--out", out],
        "demo": [*run, out, str(ROOT / "scenarios" / "gpu-demo.yaml")],
        **{
            paper: [*run, out, str(PAPERS / paper / "gpu.yaml")]
            for paper in ("laplacian-threshold", "adatopk", "algc")
        },
        "table-1": [*table, "--out", str(own.out / "table-1"), str(PAPERS / "adatopk")],
        "cssgd": [*run, out, str(PAPERS / "cssgd" / "gpu.yaml")],
    }


def carry_out(part: str, command: list[str], own: argparse.Namespace) -> dict[str, Any]:
    """Run a part, its output into ``<part>.log``. Returns its exit code (None: it took longer than
    ``--seconds``), its time, and what it printed at last."""
    log, began = own.out / f"{part}.log", time.monotonic()
    words = [sys.executable, "-m", *command]
    with log.open("w") as printed:
        process = subprocess.Popen(words, cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT)
        try:
            code: int | None = process.wait(own.seconds)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGINT)  # a run takes its nodes down
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    lines = log.read_text().splitlines()
    about = {"exit_code": code, "seconds": round(time.monotonic() - began, 1)}
    return about | {"last_line": lines[-1].strip() if lines else ""}


def runs(out: Path) -> Iterator[dict[str, Any]]:
    """A summary of each run directory below ``out``, in the order of their names."""
    for path in sorted(out.rglob(f"runs/*/{SUMMARY}"), key=lambda path: path.parent.name):
        manifest, summary = read_json(path.parent / MANIFEST), read_json(path)
        about = {"run": path.parent.name, "commit": manifest["machine"]["commit"]}
        yield about | {key: summary[key] for key in ABOUT_RUN}


def suites(out: Path) -> dict[str, Any]:
    """What the newest ``bench gpu`` below ``out`` has measured."""
    results = sorted(out.glob(f"measurements/*_gpu/{RESULT}"))
    return dict(read_json(results[-1])["suites"]) if results else {}


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--fabric", default="netns", help="of runs: netns, docker or sim")
    parser.add_argument("--repeat", type=int, default=3, help="of bench gpu")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="the longest that a part takes"
    )
    parser.add_argument("--part", action="append", help="this part only; may be repeated")
    own = parser.parse_args(given)
    own.out = own.out.resolve()
    return own


def main(given: list[str]) -> int:
    own = arguments(given)
    parts = commands(own)
    if unknown := {*(own.part or [])} - {*parts}:
        print(f"gpu: unknown part {min(unknown)!r}; known: {', '.join(parts)}", file=sys.stderr)
        return 2
    own.out.mkdir(parents=True, exist_ok=True)
    path = own.out / "results.json"
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "machine": machine_facts()}
    results["parts"] = {}
    for part in own.part or parts:
        print(f"{part} …", flush=True)
        results["parts"][part] = about = carry_out(part, parts[part], own)
        results |= {"suites": suites(own.out), "runs": [*runs(own.out)]}
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        code = "stopped" if about["exit_code"] is None else f"exit code {about['exit_code']}"
        print(f"{part}: {code}, {about['seconds']} s. {about['last_line']}", flush=True)
    print(path)
    return int(any(about["exit_code"] != 0 for about in results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
