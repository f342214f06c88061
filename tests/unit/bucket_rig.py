"""Run directories of steps whose gradients travel in buckets, made by calculation: a worker computes layer by layer, one
processor compresses in the order of buckets, each link carries one frame at a time, the server adds up what is complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synthetic_run import MACHINE

from testbed.fidelity.summary import summarise
from testbed.fidelity.verdict import Verdict
from testbed.records.events import (
    BucketRecord,
    Event,
    PassRecord,
    RoundRecord,
    ServedRecord,
    StepRecord,
)
from testbed.records.manifest import manifest
from testbed.records.run_directory import RunDirectory

LAYERS = [f"layer{number}" for number in range(11)] + ["head"]
HEADER = 48


@dataclass
class Plan:
    """Times in seconds of model time, sizes in elements."""

    algorithm: str = "topk-0.1+layers"
    workers: int = 3
    steps: int = 5
    seed: int = 1
    density: float = 0.1
    forward_s: float = 0.002
    backward_s: float = 0.004
    bytes_per_s: float = 2e6
    compress_s: float = 0.001
    hand_over_s: float = 1e-4
    dilation: float = 1.0
    joined: int = 1
    """Layers in a bucket."""
    verdict: Verdict = field(default_factory=lambda: Verdict("valid"))

    def elements(self, layer: int) -> int:
        return 2000 + 1000 * layer

    def buckets(self) -> list[list[int]]:
        """Layers of each, from the last to the first."""
        numbers = list(reversed(range(len(LAYERS))))
        return [numbers[at : at + self.joined] for at in range(0, len(numbers), self.joined)]


@dataclass
class _Worker:
    name: str
    free_s: float = 0.0
    have_s: dict[int, float] = field(default_factory=dict)
    """By layer, when its parameters are there."""
    passes: PassRecord | None = None
    ways: list[dict[str, Any]] = field(default_factory=list)


def make_bucket_run(out: Path, plan: Plan) -> Path:
    """Write the whole run directory; the same plan gives the same records."""
    directory = RunDirectory.create(
        out, scenario_name="demo", algorithm=plan.algorithm, seed=plan.seed, content_hash="0" * 16
    )
    names = [f"worker-{rank}" for rank in range(plan.workers)]
    nodes: dict[str, dict[str, Any]] = {"server": {"role": "server", "rank": 0, "peer": 0}}
    nodes |= {name: {"role": "worker", "rank": i, "peer": i + 1} for i, name in enumerate(names)}
    directory.write_json(
        "manifest.json",
        manifest(
            scenario_name="demo", content_hash="0" * 16, algorithm={"name": plan.algorithm}, seed=plan.seed,
            dilation=plan.dilation, pace_s=0.1, nodes=nodes, links=[], fabric="sim", machine=MACHINE,
            started_utc="2026-01-01T00:00:00+00:00",
        ),
    )  # fmt: skip
    workers = [_Worker(name) for name in names]
    for step in range(1, plan.steps + 1):
        _step(directory, plan, workers, step)
    directory.write_json("summary.json", summarise(directory.path, plan.verdict))
    directory.close()
    return directory.path


def _step(directory: RunDirectory, plan: Plan, workers: list[_Worker], step: int) -> None:
    for rank, worker in enumerate(workers):
        _compute(plan, worker, step, slower=1 + 0.2 * rank)
        _upload(plan, worker)
    served = _serve(plan, workers, step)
    for rank, worker in enumerate(workers):
        _download(plan, worker, served)
        assert worker.passes is not None
        events: list[Event] = [worker.passes]
        events += [BucketRecord(worker.name, step, **way) for way in worker.ways]
        events.append(_whole(worker, step))
        directory.events("worker", rank, [_dilated(event, plan.dilation) for event in events])
    directory.events(
        "server", 0, [_dilated(event, plan.dilation) for event in [*served, _round(served, step)]]
    )


def _compute(plan: Plan, worker: _Worker, step: int, slower: float) -> None:
    forward, backward = {}, {}
    now = worker.free_s
    for layer, name in enumerate(LAYERS):
        begin = max(now, worker.have_s.get(layer, 0.0))
        now = begin + slower * plan.forward_s
        forward[name] = [begin, now]
    for name in reversed(LAYERS):
        begin, now = now, now + slower * plan.backward_s
        backward[name] = [begin, now]
    worker.free_s, worker.passes = now, PassRecord(worker.name, step, forward, backward)


def _upload(plan: Plan, worker: _Worker) -> None:
    """From gradients to their last byte at the server; compressed and sent one after the other."""
    assert worker.passes is not None
    worker.ways, processor_s, sender_s, link_s = [], 0.0, 0.0, 0.0
    for bucket, layers in enumerate(plan.buckets()):
        ready_s = worker.passes.backward[LAYERS[layers[-1]]][1]
        pack_s = max(ready_s, processor_s)
        processor_s = packed_s = pack_s + plan.compress_s * len(layers)
        start_s = max(packed_s, sender_s)
        sender_s = start_s + plan.hand_over_s
        size = sum(plan.elements(layer) for layer in layers)
        parts = {
            f"{LAYERS[layer]}.weight": [
                float(plan.elements(layer)), plan.density * plan.elements(layer),
                6 * plan.density * plan.elements(layer), plan.density,
            ]
            for layer in reversed(layers)
        }  # fmt: skip
        length = HEADER + int(sum(part[2] for part in parts.values()))
        link_s = max(start_s, link_s) + length / plan.bytes_per_s
        worker.ways.append(
            {
                "bucket": bucket, "ready_s": ready_s, "pack_s": pack_s, "packed_s": packed_s, "start_s": start_s,
                "sent_s": sender_s, "first_s": link_s, "density": plan.density, "size": size,
                "sent_count": int(plan.density * size), "bytes_up": length, "bytes_down": 2 * length,
                "parts": parts,
            }
        )  # fmt: skip


def _serve(plan: Plan, workers: list[_Worker], step: int) -> list[ServedRecord]:
    served, processor_s = [], 0.0
    for bucket in range(len(plan.buckets())):
        ways = [worker.ways[bucket] for worker in workers]
        messages = [
            {
                "sender": float(rank + 1), "bytes": float(way["bytes_up"]), "sent_s": way["start_s"],
                "first_s": way["start_s"] + 5e-4, "arrived_s": way["first_s"], "last_s": way["first_s"],
            }
            for rank, way in enumerate(ways)
        ]  # fmt: skip
        complete_s = max(way["first_s"] for way in ways)
        begin_s = max(complete_s + 5e-4, processor_s)
        processor_s = begin_s + 2e-4
        down = sum(way["bytes_down"] for way in ways)
        served.append(
            ServedRecord("server", step, bucket, messages, complete_s, 5e-4, begin_s, processor_s, down, 100)
        )  # fmt: skip
    return served


def _download(plan: Plan, worker: _Worker, served: list[ServedRecord]) -> None:
    """From the reply to the parameters."""
    link_s = processor_s = 0.0
    for way, layers, reply in zip(worker.ways, plan.buckets(), served, strict=True):
        begin_s = max(reply.send_start_s, link_s)
        link_s = begin_s + way["bytes_down"] / plan.bytes_per_s
        decoded_s = max(link_s, processor_s) + 3e-4
        applying_s = decoded_s + 1e-4
        processor_s = applying_s + 1e-4
        way |= {
            "first_s": begin_s + 1e-4, "arrived_s": link_s, "last_s": link_s,
            "decoded_s": decoded_s, "applying_s": applying_s, "applied_s": processor_s,
        }  # fmt: skip
        worker.have_s |= dict.fromkeys(layers, processor_s)


def _whole(worker: _Worker, step: int) -> StepRecord:
    """The step's phases: what is left of the communication when the computation has ended."""
    assert worker.passes is not None
    start_s = worker.passes.forward[LAYERS[0]][0]
    compute_s, end_s = worker.free_s - start_s, max(way["applied_s"] for way in worker.ways)
    size, count = (sum(way[key] for way in worker.ways) for key in ("size", "sent_count"))
    up, down = (sum(way[key] for way in worker.ways) for key in ("bytes_up", "bytes_down"))
    left_s = end_s - start_s - compute_s
    return StepRecord(
        node=worker.name, step=step, epoch=1, start_s=start_s, compute_s=compute_s, busy_s=compute_s,
        compress_s=0.0, send_s=0.0, wait_s=left_s - 5e-4, receive_s=0.0, decompress_s=3e-4, apply_s=2e-4,
        delay_s=left_s - 5e-4, arrived_s=end_s - 5e-4, end_s=end_s, density=count / size,
        sent_count=count, size=size, bytes_up=up, bytes_down=down, loss=1.0, accuracy=0.5, overran=False,
        compress_cpu_s=0.0, apply_cpu_s=0.0, payload_crc=0, selection=None, controller=None,
    )  # fmt: skip


def _round(served: list[ServedRecord], step: int) -> RoundRecord:
    messages = [
        {
            key: (min if key in ("sender", "sent_s", "first_s") else max)(m[key] for m in same)
            for key in same[0]
        }
        for same in zip(*(one.messages for one in served), strict=True)
    ]
    down = sum(one.bytes_down for one in served)
    return RoundRecord(
        "server", step, messages, sum(one.aggregate_s for one in served),
        served[0].send_start_s, served[-1].send_end_s, down, sum(one.union_count for one in served),
    )  # fmt: skip


def _dilated(event: Event, factor: float) -> dict[str, Any]:
    """In wall time: all that is a time is ``factor`` times as long."""
    found = event.to_json()
    for key, value in found.items():
        if key.endswith("_s") and value is not None:
            found[key] = factor * value
        elif key in ("forward", "backward"):
            found[key] = {
                layer: [factor * time_s for time_s in pair] for layer, pair in value.items()
            }
        elif key == "messages":
            found[key] = [
                {name: factor * x if name.endswith("_s") else x for name, x in message.items()}
                for message in value
            ]
    return found
