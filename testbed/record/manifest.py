"""The manifest: under what conditions a run's records were made. A run without one is not plotted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from testbed.record.events import SCHEMA
from testbed.record.machine import machine as this_machine
from testbed.record.thresholds import THRESHOLDS, Thresholds


def manifest(
    *,
    scenario_name: str,
    content_hash: str,
    algorithm: Mapping[str, Any],
    seed: int,
    dilation: float,
    pace_s: float | None,
    nodes: Mapping[str, Mapping[str, Any]],
    links: Iterable[Mapping[str, Any]],
    fabric: str,
    congestion: str | None = None,
    model: Mapping[str, Any] | None = None,
    pacing: Mapping[str, Any] | None = None,
    thresholds: Thresholds = THRESHOLDS,
    machine: Mapping[str, Any] | None = None,
    started_utc: str | None = None,
) -> dict[str, Any]:
    """The object that becomes ``manifest.json``.

    ``algorithm``: its whole row, ``name`` among it. ``pace_s``: wall seconds that a step's computation
    is held to; ``pacing``: how they are shared among layers. ``nodes``: by name, each at least ``{"role", "rank", "peer"}``. ``links``: every link
    direction as asked and as read back from the kernel. ``model``: of modelled links, how. ``machine``: as ``machine()`` returns it.
    """
    for name, node in nodes.items():
        if missing := {"role", "rank", "peer"} - set(node):
            raise ValueError(f"node {name!r} in the manifest lacks {', '.join(sorted(missing))}")
    if "name" not in algorithm:
        raise ValueError("the algorithm in the manifest has no name")
    return {
        "schema": SCHEMA,
        "started_utc": started_utc or datetime.now(UTC).isoformat(timespec="seconds"),
        "scenario": scenario_name,
        "scenario_hash": content_hash,
        "algorithm": dict(algorithm),
        "seed": seed,
        "fabric": fabric,
        "dilation": dilation,
        "tcp_timers": tcp_timers(dilation),
        "congestion": congestion,
        "model": None if model is None else dict(model),
        "pace_s": pace_s,
        "pacing": None if pacing is None else dict(pacing),
        "nodes": {name: dict(node) for name, node in nodes.items()},
        "links": [dict(link) for link in links],
        "thresholds": asdict(thresholds),
        "machine": dict(this_machine() if machine is None else machine),
    }


def tcp_timers(dilation: float) -> str:
    """What TCP's own timers are in model time: they run on the wall clock whatever the dilation."""
    if dilation == 1:
        return (
            "Not dilated: model time is wall time, and TCP's timers are what they are on any host."
        )
    return (
        f"TCP's own timers (retransmission time-out, delayed acknowledgement) run on the wall clock: in "
        f"model time they are 1/{dilation:g} as long, a time-out of 200 ms is {200 / dilation:.3g} ms."
    )


def peer_names(manifest: Mapping[str, Any]) -> dict[int, str]:
    """Each node's name by its number in frames."""
    return {int(node["peer"]): name for name, node in manifest["nodes"].items()}


def recorded_every(manifest: Mapping[str, Any]) -> int:
    """The steps of every so-many-th worker are recorded: 1, all of them, but in simulations of very many."""
    return int((manifest.get("model") or {}).get("recorded_every", 1))
