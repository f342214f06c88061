"""Scenarios and events in a word, for tests of the timeline."""

from __future__ import annotations

from typing import Any

from testbed.scenario.link_state import LinkDirection
from testbed.scenario.model import Scenario
from testbed.scenario.timeline import Timeline, build
from testbed.traces.rate_trace import RateTrace

UP, DOWN = LinkDirection("server", "up"), LinkDirection("server", "down")
SAW = RateTrace((0.0, 1.0, 2.0), (30, 60, 90), 4.0)
DEAD = RateTrace((0.0, 1.0), (50, 0), 3.0)
TRACES = {"saw": SAW, "dead": DEAD}
BASE = 100_000


def scenario(*events: dict[str, Any], **more: Any) -> Scenario:
    end = {"rate": f"{BASE} bit/s", "queue": "8 kB"}
    return Scenario.model_validate(
        {
            "name": "t",
            "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 2}},
            "links": {"default": {"up": end, "down": end}},
            "events": [_whole(event) for event in events],
            **more,
        }
    )


def _whole(event: dict[str, Any]) -> dict[str, Any]:
    whole = {"links": ["server"], "direction": "up", **event}
    return {key: value for key, value in whole.items() if value is not None}


def timeline(*events: dict[str, Any]) -> Timeline:
    return build(scenario(*events), TRACES)


def rates(*events: dict[str, Any], stop: float = 20) -> list[tuple[float, int]]:
    """Time and rate of every change of the server's uplink, t0 first."""
    built = timeline(*events)
    changes = [(c.time_s, c.shape.rate_bits) for c in built.changes(0, stop) if c.end == UP]
    return [(0, built.initial[UP].rate_bits), *changes]


def step(at: float, rate: int) -> dict[str, Any]:
    return {"kind": "step", "at": f"{at} s", "rate": f"{rate} bit/s"}


def trace(at: float, at_end: str, **more: Any) -> dict[str, Any]:
    return {"kind": "trace", "at": f"{at} s", "file": "saw", "at_end": at_end, **more}


def outage(at: float, length: float, packets: str = "wait") -> dict[str, Any]:
    return {"kind": "outage", "at": f"{at} s", "for": f"{length} s", "packets": packets}


def flap(at: float, length: float, every: float, times: int) -> dict[str, Any]:
    return {**outage(at, length), "kind": "flap", "every": f"{every} s", "times": times}


def partition(at: float, length: float) -> dict[str, Any]:
    return {"kind": "partition", "at": f"{at} s", "for": f"{length} s", "direction": None}


def ramp(at: float, rate: int, over: float, every: float) -> dict[str, Any]:
    moves = {"rate": f"{rate} bit/s", "over": f"{over} s", "every": f"{every} s"}
    return {"kind": "ramp", "at": f"{at} s", **moves}
