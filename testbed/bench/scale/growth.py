"""The scenarios that grow: workers in racks whose links are oversubscribed, one server or several. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WORKERS = (4, 16, 64, 256, 1000, 4000, 10_000)
SERVERS = (1, 8)
STEPS = 5
ALGORITHM = "none"
_RACK = 100
"""Workers behind one link: ten times what it carries."""
_PACE_MS = 100


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """One scenario."""

    servers: int
    workers: int

    @property
    def name(self) -> str:
        """As scenario and file are called."""
        return f"scale-{self.servers}-{self.workers}"


def scenario(size: Size, steps: int, algorithm: str) -> dict[str, Any]:
    """Payloads only: digits' CNN, hosts of their own that take 20 µs for a message."""
    racks = dict(_racks(size.workers))
    return {
        "name": size.name,
        "nodes": {
            "server": {"role": "server", "count": size.servers},
            **{group: {"role": "worker", "count": count} for group, count in racks.items()},
        },
        "links": {"default": _link("1 Gbit/s"), "server": _link("25 Gbit/s")},
        "racks": {
            group.replace("workers", "rack"): {"members": [group], **_link("10 Gbit/s")}
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


def _link(rate: str) -> dict[str, Any]:
    end = {"rate": rate, "queue": "5 ms"}
    return {"up": end, "down": end}
