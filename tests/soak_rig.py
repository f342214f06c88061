"""A day of model time in minutes: synthetic looks, steps and marks through the classes that a real run gives them to.

    python tests/soak_rig.py watch exec|run HOURS FOLDER      # the records of a run, as they come
    python tests/soak_rig.py conclude exec|run HOURS FOLDER   # its verdict and summary
    python tests/soak_rig.py infer exec HOURS FOLDER          # its steps, as if it had marked none

Each is a process of its own, which prints its memory: a JSON line for every part of ``PARTS``, and one at the end.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from synthetic_run import MACHINE

from testbed.compatibility import resolve
from testbed.links.agent.client import LinkReport
from testbed.links.replay.delivery_report import EndReport, measures
from testbed.links.replay.sampler import LinkSampler
from testbed.links.shaper import ShapedQueue
from testbed.links.tc.htb import ClassCounters
from testbed.links.tc.parameters import pace
from testbed.records.events import HostSample, LinkChanged, RoundRecord, StepRecord
from testbed.records.exporter import Exporter
from testbed.records.inferred_steps import infer
from testbed.records.job_steps import MarkRecord, ProcessRecord
from testbed.records.link_log import LinkTraffic
from testbed.records.manifest import manifest
from testbed.records.run_directory import RunDirectory, read_jsonl
from testbed.runner.exec.judge import conclude as conclude_job
from testbed.runner.experiment import Experiment, from_loaded
from testbed.runner.judge import write_verdict
from testbed.runner.progress import Progress
from testbed.runner.trial import TrialOutcome, TrialPlan
from testbed.scenario.expand import expand
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.scenario.load import Loaded, load
from testbed.topology import NodeSpec

LOOKS, SAMPLE_S, STEP_S = 5, 0.1, 0.5
HOUR_S = 3600.0
PARTS = 24
HIGH, LOW = 100_000_000, 50_000_000
MESSAGE_BYTES = 500_000
NODES = {
    "exec": "{worker: {role: worker, count: 4}}",
    "run": "{server: {role: server}, worker: {role: worker, count: 4}}",
}
SCENARIO = """
name: soak
nodes: {nodes}
links:
  default: {{up: {{rate: 100 Mbit/s, queue: 50 ms}}, down: {{rate: 100 Mbit/s, queue: 50 ms}}}}
events: [{{kind: trace, links: [worker-0], direction: both, file: swing.csv, at_end: loop}}]
"""
TRAIN = """
train: {task: digits, model: mlp, gradients: none, pace: 200 ms, stop: {steps: 1000000}}
algorithms: [topk-0.15]
"""


def scenario(folder: Path, kind: str) -> Loaded:
    """Four workers, of which one has another rate every second."""
    rates = "".join(f"{at},{(HIGH, LOW)[at % 2]}\n" for at in range(60))
    (folder / "swing.csv").write_text("time_s,rate_bps\n" + rates)
    train = TRAIN if kind == "run" else ""
    (folder / "scenario.yaml").write_text(SCENARIO.format(nodes=NODES[kind]) + train)
    return read(folder, kind)


def read(folder: Path, kind: str) -> Loaded:
    return load(folder / "scenario.yaml", trains=kind == "run")


class Kernel:
    """What the kernel would count on a link direction that is full for 40 ms in every half second."""

    def __init__(self, end: LinkDirection, shape: LinkState) -> None:
        self.end, self.shape = end, shape
        self.zero = self.now = ClassCounters(0, 0, 0, 0, 0, 0)

    def read(self) -> ClassCounters:
        return self.now

    def held_limit(self) -> int:
        return self.shape.queue_bytes

    def drops(self, counters: ClassCounters) -> int:
        return counters.drops

    def carry(self, seconds: float, *, busy: bool) -> None:
        size = round(LOW / 8 * seconds) if busy else 0
        self.now = ClassCounters(
            self.now.bytes + size, self.now.packets + size // 1514, 9000 if busy else 0, 0, 0, 0,
            pace(self.shape.rate_bits).rate_bytes,
        )  # fmt: skip


class Watched:
    """The agent's part: a sampler for every link direction, fed with the scenario's own changes."""

    def __init__(self, loaded: Loaded) -> None:
        timeline = loaded.timeline()
        self._changes = timeline.changes(0.0, float("inf"))
        self._next: LinkChange | None = next(self._changes, None)
        self.kernels = {end: Kernel(end, shape) for end, shape in timeline.initial.items()}
        self.samplers = {
            end: LinkSampler(cast(ShapedQueue, kernel), kernel.shape, number)
            for number, (end, kernel) in enumerate(self.kernels.items())
        }
        for kernel, sampler in zip(self.kernels.values(), self.samplers.values(), strict=True):
            kernel.carry(0.0, busy=False)
            sampler.begin(0.0)

    def sample(self, number: int) -> Iterator[dict[str, Any]]:
        """The records of the ``number``-th tenth of a second."""
        for look in range(1, LOOKS + 1):
            at = round(number * SAMPLE_S + look * SAMPLE_S / LOOKS, 6)
            for end, kernel in self.kernels.items():
                kernel.carry(SAMPLE_S / LOOKS, busy=number % 5 == 3 and look <= 2)
                self.samplers[end].look(at, kernel.shape)
            while self._next is not None and self._next.time_s < at:
                yield self._change(self._next, at)
                self._next = next(self._changes, None)
        for sampler in self.samplers.values():
            yield from (event.to_json() for event in sampler.close())

    def _change(self, change: LinkChange, now_s: float) -> dict[str, Any]:
        end, shape = change.end, change.shape
        self.kernels[end].shape = shape
        self.kernels[end].carry(0.0, busy=False)
        self.samplers[end].look(now_s, shape)
        self.samplers[end].ask(change.time_s, shape)
        self.samplers[end].record.lateness_s.append(1e-4 + 1e-7 * (change.time_s % 97))
        asked = shape.rate_bits, shape.queue_bytes
        return LinkChanged(
            end.link, end.direction, change.time_s, change.time_s + 1e-4, *asked
        ).to_json()

    def report(self) -> list[dict[str, Any]]:
        """What the agent says at the end, without what only a kernel knows."""
        counted = {"drops": 0, "direct_packets": 0, "gso_max_segs": 1, "realtime": True}
        return [
            {
                "link": end.link, "direction": end.direction, **counted,
                "class_bytes": self.kernels[end].now.bytes,
                "class_packets": self.kernels[end].now.packets,
                **measures(sampler.record),
            }
            for end, sampler in self.samplers.items()
        ]  # fmt: skip


def watch(kind: str, hours: float, folder: Path) -> None:
    """Write the records of a run of so many hours."""
    loaded = scenario(folder, kind)
    directory = RunDirectory.create(
        folder, scenario_name="soak", algorithm="soak", seed=0, content_hash="0123456789ab"
    )
    specs = expand(loaded.wall())
    describe(directory, loaded, specs, kind)
    watched, progress = Watched(loaded), Progress(quiet=True)
    exporters = {spec.name: Exporter({"node": spec.name}) for spec in specs}
    for exporter in exporters.values():
        exporter.begin({"run": "soak"})
    progress.begin("soak", None, 1, 1)
    samples, steps = round(hours * HOUR_S / SAMPLE_S), round(STEP_S / SAMPLE_S)
    part, begun = samples // PARTS, time.monotonic()
    for number in range(samples):
        # as between agent and session
        records = json.loads(json.dumps(list(watched.sample(number))))
        directory.link(records)
        for record in records:
            progress.link(record)
            if record["kind"] == "sample":
                exporters[record["link"]].link(record)
        directory.link(HostSample(number / 10, (number + 1) / 10, 0.0, 0.5, 0.01).to_json())
        if (number + 1) % steps == 0:
            step(directory, specs, exporters, progress, (number + 1) // steps, kind)
        if (number + 1) % part == 0:
            say(hours=(number + 1) * SAMPLE_S / HOUR_S, wall_s=time.monotonic() - begun)
    if kind == "exec":
        for spec in specs:
            record = ProcessRecord(spec.name, spec.rank, 0, 0.0, hours * HOUR_S, 0, False)
            directory.event(spec.role, spec.rank, record.to_json())
    directory.close()
    (folder / "report.json").write_text(json.dumps(watched.report()))
    say(ended=True, wall_s=time.monotonic() - begun, **sizes(directory.path))


def describe(directory: RunDirectory, loaded: Loaded, specs: list[NodeSpec], kind: str) -> None:
    row: dict[str, Any] = {"name": "soak"}
    if kind == "exec":
        row |= {"command": ["python", "train.py"], "nproc": 1}
    nodes = {s.name: {"role": s.role, "rank": s.rank, "peer": s.peer} for s in specs}
    held = [
        {"link": end.link, "direction": end.direction, "at": "nic", "device": "eth0",
         "rate_bits": shape.rate_bits, "limit_bytes": shape.queue_bytes, "line": None}
        for end, shape in loaded.timeline().initial.items()
    ]  # fmt: skip
    made = manifest(
        scenario_name="soak", content_hash=loaded.hash, algorithm=row, seed=0, dilation=1.0,
        pace_s=None if kind == "exec" else 0.2, nodes=nodes, links=held, fabric="netns",
        machine=MACHINE, started_utc="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    directory.write_json("manifest.json", made)


def step(
    directory: RunDirectory, specs: list[NodeSpec], exporters: dict[str, Exporter],
    progress: Progress, number: int, kind: str,
) -> None:  # fmt: skip
    """What is recorded of a step that ends half a second after the one before."""
    start_s = (number - 1) * STEP_S
    workers = [spec for spec in specs if spec.role == "worker"]
    for spec in workers:
        if kind == "exec":
            about = spec.name, spec.rank, 0
            marks = [
                MarkRecord(*about, "phase", "compute", None, start_s, {}),
                MarkRecord(*about, "phase", "exchange", None, start_s + 0.2, {}),
                MarkRecord(*about, "step", None, number, start_s + STEP_S, {"loss": 1 / number}),
            ]
            directory.events(spec.role, spec.rank, [mark.to_json() for mark in marks])
            continue
        event = StepRecord(
            node=spec.name, step=number, epoch=number // 25, start_s=start_s, compute_s=0.2,
            busy_s=0.05, compress_s=0.004, send_s=0.09, wait_s=0.02, receive_s=0.08,
            decompress_s=0.001, apply_s=0.002, delay_s=0.19, arrived_s=start_s + 0.44,
            end_s=start_s + STEP_S, density=0.15, sent_count=150, size=1000,
            bytes_up=MESSAGE_BYTES, bytes_down=MESSAGE_BYTES, loss=1 / number, accuracy=0.5,
            overran=False, compress_cpu_s=0.004, apply_cpu_s=0.002, payload_crc=number,
            selection=None, controller=None,
        ).to_json()  # fmt: skip
        directory.event(spec.role, spec.rank, event)
        exporters[spec.name].observe(event)
        progress.event(event)
    if kind == "exec":
        return
    messages = [
        {"sender": float(spec.peer), "bytes": float(MESSAGE_BYTES), "sent_s": start_s + 0.2,
         "first_s": start_s + 0.21, "arrived_s": start_s + 0.3, "last_s": start_s + 0.3}
        for spec in workers
    ]  # fmt: skip
    round_ = RoundRecord(
        "server", number, messages, 0.003, start_s + 0.31, start_s + 0.44, 4 * MESSAGE_BYTES, 1000
    ).to_json()
    directory.event("server", 0, round_)
    exporters["server"].observe(round_)
    progress.event(round_)


def conclude(kind: str, hours: float, folder: Path) -> None:
    """Verdict, certificate and summary of the run that is in ``folder``."""
    begun = time.monotonic()
    loaded = read(folder, kind)
    (path,) = (folder / "runs").iterdir()
    directory = RunDirectory(path)
    links = LinkReport(tuple(EndReport(**end) for end in json.loads((folder / "report.json").read_text())))  # fmt: skip
    say(begun=True)
    shaped = json.loads((path / "manifest.json").read_text())["links"]
    outcome = TrialOutcome(links=links, shaped=shaped)
    if kind == "exec":
        experiment = Experiment.untrained(loaded, loaded.wall())
        plan = TrialPlan(experiment, resolve("none"), 0, {}, directory, Progress(quiet=True))
        conclude_job(plan, outcome, seconds=hours * HOUR_S, processes=1, missed=[])
    else:
        experiment = from_loaded(loaded)
        row = experiment.algorithms[0]
        plan = TrialPlan(experiment, row, 0, row.to_json(), directory, Progress(quiet=True))
        outcome.done = done(experiment.specs, hours)
        write_verdict(plan, outcome)
    say(ended=True, wall_s=time.monotonic() - begun, **sizes(path))


def inferred(kind: str, hours: float, folder: Path) -> None:
    """The steps that its links' traffic shows, as if there were no marks."""
    (path,) = (folder / "runs").iterdir()
    begun = time.monotonic()
    found = infer(LinkTraffic(read_jsonl(path / "links.jsonl")))
    say(ended=True, wall_s=time.monotonic() - begun, steps=len(found.ends_s), why=found.reason)


def done(specs: list[NodeSpec], hours: float) -> dict[str, dict[str, Any]]:
    """The nodes' last messages."""
    steps = round(hours * HOUR_S / STEP_S)
    return {
        spec.name: {
            "summary": {
                "role": spec.role, "steps": steps, "parameters": "same", "made": steps,
                "bytes_sent": 0, "bytes_received": 0,
            },
            "counters": {},
        }
        for spec in specs
    }  # fmt: skip


def sizes(directory: Path) -> dict[str, int]:
    """Bytes of the records."""
    events = sum(path.stat().st_size for path in (directory / "events").iterdir())
    return {"links_bytes": (directory / "links.jsonl").stat().st_size, "events_bytes": events}


def say(**more: Any) -> None:
    gc.collect()
    # not rusage: what the parent had before it became this program counts there, too
    lines = Path("/proc/self/status").read_text().splitlines()
    held = {name: text.split() for name, _, text in (line.partition(":") for line in lines)}
    memory = {
        key: int(held[name][0]) * 1024
        for key, name in (("rss_bytes", "VmRSS"), ("peak_bytes", "VmHWM"))
    }
    sys.stdout.write(json.dumps({**more, **memory}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    part = {"watch": watch, "conclude": conclude, "infer": inferred}[sys.argv[1]]
    part(sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
