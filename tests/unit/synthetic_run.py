"""Run directories made by calculation: workers and a server whose messages follow the rates exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from testbed.fidelity.service_curve import OfferedLoad, downloads_done, uploads_done
from testbed.fidelity.summary import summarise
from testbed.fidelity.verdict import Verdict
from testbed.records.events import (
    EvaluationRecord,
    LinkChanged,
    LinkSample,
    RoundRecord,
    StepRecord,
)
from testbed.records.link_log import LinkLog
from testbed.records.manifest import manifest
from testbed.records.run_directory import RunDirectory
from testbed.scenario.link_state import wire_bytes

ELEMENTS = 150_000
PACE_S = 0.2
SAMPLE_S = 0.1
WORKERS = [f"worker-{rank}" for rank in range(4)]
MACHINE = {
    "versions": {"narrows": "0.1.0", "python": "3.11.0", "torch": "2.0.0"},
    "kernel": "Linux 6.0", "architecture": "x86_64",
    "cpu": {"model": "A processor", "count": 2, "usable": 2},
    "memory_bytes": 4 << 30, "clock_source": "tsc", "kernel_hz": 250, "congestion_default": "cubic",
    "commit": None,
}  # fmt: skip


@dataclass
class Recipe:
    """What a synthetic run is made of."""

    algorithm: str = "none"
    density: float | None = 1.0
    """None: adapts to the rate."""
    seed: int = 1
    steps: int = 100
    dilation: float = 1.0
    verdict: Verdict | None = None
    scenario: str = "demo"
    hash: str = "0123456789abcdef"


def rate_bits(time_s: float) -> float:
    """The server's link: 20 to 100 Mbit/s, changing every second."""
    return 1e6 * (60 + 40 * math.sin(1.7 * math.floor(time_s) / math.pi))


def samples(until_s: float) -> list[dict[str, Any]]:
    """The asked rates of all links, nothing delivered yet."""
    rows = []
    for index in range(int(until_s / SAMPLE_S) + 1):
        from_s = index * SAMPLE_S
        for link in ["server", *WORKERS]:
            for direction in ("up", "down"):
                rate = rate_bits(from_s) if link == "server" else 100e6
                rows.append(
                    LinkSample(
                        link,
                        direction,
                        from_s,
                        from_s + SAMPLE_S,
                        rate * SAMPLE_S,
                        0,
                        0,
                        0,
                        False,
                        0,
                    ).to_json()
                )
    return rows


def make_run(out: Path, recipe: Recipe) -> Path:
    """Write a whole run directory as the session would; the same recipe gives the same records."""
    rng = Random(f"{recipe.algorithm} {recipe.seed}")
    directory = RunDirectory.create(
        out, scenario_name=recipe.scenario, algorithm=recipe.algorithm, seed=recipe.seed,
        content_hash=recipe.hash,
    )  # fmt: skip
    nodes = {"server": {"role": "server", "rank": 0, "peer": 0}}
    nodes |= {name: {"role": "worker", "rank": i, "peer": i + 1} for i, name in enumerate(WORKERS)}
    directory.write_json(
        "manifest.json",
        manifest(
            scenario_name=recipe.scenario, content_hash=recipe.hash,
            algorithm={"name": recipe.algorithm}, seed=recipe.seed, dilation=recipe.dilation,
            pace_s=PACE_S, nodes=nodes, links=[], fabric="sim", machine=MACHINE,
            started_utc="2026-01-01T00:00:00+00:00",
        ),
    )  # fmt: skip
    carried: dict[int, float] = {}
    asked = samples(recipe.steps * 1.2 + 2)
    history, now = LinkLog(asked), 0.0
    for step in range(recipe.steps):
        now = _step(directory, recipe, history, rng, step, now, carried)
    _links(directory, [s for s in asked if s["from_s"] <= now], carried)
    state = recipe.verdict or Verdict("valid")
    directory.write_json("summary.json", summarise(directory.path, state))
    directory.close()
    return directory.path


def accuracy_after(step: int, density: float, rng: Random) -> float:
    """A learning curve: fast, then slow; sparser is a little slower."""
    pace = 14 * (1 + 0.4 * max(0.0, -math.log10(density)))
    return min(0.99, 0.1 + 0.87 * (1 - math.exp(-step / pace)) + rng.gauss(0, 0.006))


def _step(
    directory: RunDirectory, recipe: Recipe, history: LinkLog, rng: Random, step: int,
    start_s: float, carried: dict[int, float],
) -> float:  # fmt: skip
    """One synchronous step; returns when it ended."""
    density = recipe.density or max(0.01, min(1.0, (rate_bits(start_s) / 100e6) ** 2 * 0.4))
    dense = density == 1
    size = 48 + (ELEMENTS * 4 if dense else int(ELEMENTS * density) * 4 + ELEMENTS // 8)
    reply = size if dense else min(48 + ELEMENTS * 4, int(size * 2.1))
    compress_s = 0.0002 if dense else 0.004 + 0.001 * rng.random()
    sent_s = [start_s + PACE_S + compress_s + 0.0005 * rng.random() for _ in WORKERS]
    up = [
        OfferedLoad(name, 8.0 * wire_bytes(size), at)
        for name, at in zip(WORKERS, sent_s, strict=True)
    ]
    arrived_s = uploads_done(history.bits, up, "server")
    back_s = arrived_s + 0.003
    down = [OfferedLoad(name, 8.0 * wire_bytes(reply), back_s) for name in WORKERS]
    held_s = downloads_done(history.bits, down, "server")
    for load_s, until_s, bits in [(min(sent_s), arrived_s, sum(x.bits for x in up))]:
        for index in range(int(load_s / SAMPLE_S), int(until_s / SAMPLE_S) + 1):
            low, high = max(load_s, index * SAMPLE_S), min(until_s, (index + 1) * SAMPLE_S)
            share = (high - low) / (until_s - load_s)
            carried[index] = carried.get(index, 0.0) + bits * max(0.0, share)
    end_s = held_s + 0.003
    for rank, name in enumerate(WORKERS):
        send_s, wait_s = (arrived_s - sent_s[rank]) * 0.9, 0.0
        wait_s = back_s + 0.001 - sent_s[rank] - send_s
        receive_s = held_s - back_s - 0.001
        record = StepRecord(
            node=name, step=step, epoch=step // 25, start_s=start_s,
            compute_s=sent_s[rank] - compress_s - start_s, busy_s=0.05, compress_s=compress_s,
            send_s=send_s, wait_s=wait_s, receive_s=receive_s, decompress_s=0.001, apply_s=0.002,
            delay_s=send_s + wait_s + receive_s, arrived_s=held_s, end_s=end_s, density=density,
            sent_count=int(ELEMENTS * density), size=ELEMENTS, bytes_up=size, bytes_down=reply,
            loss=2.3 * math.exp(-step / 30), accuracy=accuracy_after(step, density, rng),
            overran=False, compress_cpu_s=compress_s, apply_cpu_s=0.002, payload_crc=rng.getrandbits(32),
            selection=None, controller=None,
        )  # fmt: skip
        directory.event("worker", rank, record.to_json())
    messages = [
        {
            "sender": float(rank + 1),
            "bytes": float(size),
            "sent_s": at,
            "first_s": at,
            "arrived_s": arrived_s,
            "last_s": arrived_s,
        }
        for rank, at in enumerate(sent_s)
    ]
    round_ = RoundRecord("server", step, messages, 0.003, back_s, held_s, 4 * reply, 1000)
    directory.event("server", 0, round_.to_json())
    if step % 10 == 9:
        seen = EvaluationRecord(
            "server",
            step,
            end_s,
            accuracy_after(step, density, rng),
            0.3,
            360,
            step == recipe.steps - 1,
        )
        directory.event("server", 0, seen.to_json())
    return end_s


def _links(directory: RunDirectory, asked: list[dict[str, Any]], carried: dict[int, float]) -> None:
    for sample in asked:
        delivered = 0
        if (sample["link"], sample["direction"]) == ("server", "down"):
            delivered = int(carried.get(round(sample["from_s"] / SAMPLE_S), 0.0))
        directory.link({**sample, "delivered_bits": delivered})
    until_s = max(sample["to_s"] for sample in asked)
    directory.link(
        [
            LinkChanged("server", direction, at, at + 0.001, int(rate_bits(at)), 64_000).to_json()
            for at in map(float, range(math.ceil(until_s)))
            for direction in ("up", "down")
        ]
    )
