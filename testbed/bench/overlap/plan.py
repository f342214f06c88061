"""What ``testbed bench overlap`` runs: one model, one pace, three bandwidths, four ways to make a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from testbed.bench.overlap.ideal import Variant
from testbed.scenario.shape import wire_bytes
from testbed.train.models import parameter_count

MODEL, TASK, WIDTH = "mlp12", "digits", 2.0
LAYERS = 12
LOADS = (0.3, 1.0, 3.0)
"""All buckets' time on a worker's link one way over the time of the backward pass."""
_BACKWARD = 2 / 3
"""Of a pace, with a constant profile."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)
OVERLAPPED: tuple[Variant, ...] = ("backward", "forward")
_BUCKETS: Mapping[str, Any] = {"from": "none", "bucket_bytes": "1 B"}
ALGORITHMS: Mapping[Variant, Mapping[str, Any]] = {
    "whole": {"name": "whole", "from": "none"},
    "buckets": {"name": "buckets", **_BUCKETS},
    "backward": {"name": "backward", **_BUCKETS, "overlap": True, "order": "backward"},
    "forward": {"name": "forward", **_BUCKETS, "overlap": True, "order": "forward"},
}
"""Without compression, one bucket for each layer where there are buckets."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for. ``skip``: steps at the beginning that are not counted; ``repeat``: runs of each."""

    fabric: str = "netns"
    loads: Sequence[float] = LOADS
    workers: int = 3
    pace_s: float = 0.24
    steps: int = 24
    skip: int = 4
    repeat: int = 5
    host_costs: bool = True
    """On the fabric `sim`: whether hosts take time for messages."""

    @property
    def seeds(self) -> list[int]:
        """One for each repetition."""
        return list(range(1, self.repeat + 1))


def rate_bits(load: float, pace_s: float) -> int:
    """Of a worker's link, so that all of a gradient takes ``load`` times the backward pass one way."""
    elements = parameter_count(MODEL, TASK, WIDTH)
    return round(8 * wire_bytes(4 * elements) / (load * _BACKWARD * pace_s))


def scenario(plan: Plan, load: float) -> dict[str, Any]:
    """Of one bandwidth. The server's link has room for all workers', so that each worker's own is the narrowest."""
    rate = rate_bits(load, plan.pace_s)
    costs = {} if plan.host_costs else {"send": "0 s", "receive": "0 s"}
    return {
        "name": f"overlap-{load:g}".replace(".", "-"),
        "nodes": {
            "server": {"role": "server"},
            "worker": {"role": "worker", "count": plan.workers},
        },
        "links": {"default": _link(rate), "server": _link(plan.workers * rate)},
        "train": {
            "task": TASK,
            "model": MODEL,
            "width": WIDTH,
            "batch": 16,
            "pace": f"{1e6 * plan.pace_s:.0f} us",
            "profile": "constant",
            "stop": {"steps": plan.steps},
            "evaluate_every": plan.steps,
        },
        "algorithms": [dict(ALGORITHMS[variant]) for variant in VARIANTS],
        "seeds": plan.seeds,
        "congestion": "cubic",
        "sim": costs,
    }


def _link(rate: int) -> dict[str, Any]:
    end = {"rate": f"{rate} bit/s", "queue": "50 ms"}
    return {"up": end, "down": end}
