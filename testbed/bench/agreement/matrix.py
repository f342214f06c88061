"""The scenarios that are run on both: workers × rates × what happens to the links. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

WORKERS = (4, 8, 16)
RATES = (50, 100, 200)
"""Of the server's link, Mbit/s."""
ALGORITHMS = ("none", "topk-0.01", "adatopk")
STEPS = 20
TRACE = "walk-{rate}.csv"
_PACE_MS = 150


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One scenario."""

    condition: str
    workers: int
    rate: int

    @property
    def name(self) -> str:
        """As scenario and file are called."""
        return f"{self.condition}-{self.workers}-{self.rate}"

    @property
    def calibrates(self) -> bool:
        """Whether it is of the half that constants are found on; the other half judges.

        Alternately along every axis, so that both halves have some of everything.
        """
        place = CONDITION_NAMES.index(self.condition) + self.workers.bit_length()
        return (place + RATES.index(self.rate) if self.rate in RATES else place) % 2 == 0

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)


def cells(
    conditions: Sequence[str] = (), workers: Sequence[int] = (), rates: Sequence[int] = ()
) -> Iterator[Cell]:
    """All, or those of the values given."""
    for cell in product(conditions or CONDITION_NAMES, workers or WORKERS, rates or RATES):
        yield Cell(*cell)


def scenario(cell: Cell, steps: int) -> dict[str, Any]:
    """A parameter server and ``cell.workers`` workers on links of ``cell.rate``, and what happens to them."""
    end = _end(cell.rate)
    plain: dict[str, Any] = {
        "name": cell.name,
        "nodes": {
            "server": {"role": "server"},
            "worker": {"role": "worker", "count": cell.workers},
        },
        "links": {"default": {"up": end, "down": end}},
        "train": {
            "task": "digits",
            "model": "cnn",
            "batch": 32,
            "optimizer": {"name": "sgd", "lr": 0.1},
            "pace": f"{_PACE_MS} ms",
            "stop": {"steps": steps},
            "evaluate_every": steps,
        },
        "algorithms": list(ALGORITHMS),
        "seeds": [1],
        "congestion": "cubic",
    }
    return {**plain, **_CONDITIONS[cell.condition](cell)}


def _end(rate: float, queue: str = "50 ms") -> dict[str, str]:
    return {"rate": f"{rate:g} Mbit/s", "queue": queue}


def _static(_: Cell) -> dict[str, Any]:
    return {}


def _trace(cell: Cell) -> dict[str, Any]:
    """The server's link moves between half its rate and all of it, every 500 ms."""
    file = TRACE.format(rate=cell.rate)
    return {"events": [{"kind": "trace", "links": ["server"], "file": file, "at_end": "loop"}]}


def _incast(cell: Cell) -> dict[str, Any]:
    """Workers four times as fast as the server, whose queue is short."""
    fast, short = _end(4 * cell.rate), _end(cell.rate, "20 ms")
    return {
        "links": {"default": {"up": fast, "down": fast}, "server": {"up": short, "down": short}}
    }


def _cross(cell: Cell) -> dict[str, Any]:
    """Another host fills the server's downlink every other second."""
    nodes = scenario(Cell("static", cell.workers, cell.rate), 1)["nodes"]
    flow = {"name": "bulk", "from": "noise", "to": "server", "kind": "tcp"}
    return {
        "nodes": {**nodes, "noise": {"role": "host"}},
        "traffic": [{**flow, "on": "1 s", "off": "1 s"}],
    }


def _outage(_: Cell) -> dict[str, Any]:
    """The server is away for 300 ms every two seconds."""
    flap = {"kind": "flap", "links": ["server"], "at": "1 s", "for": "300 ms"}
    return {"events": [{**flap, "every": "2 s", "times": 100}]}


_CONDITIONS = {
    "static": _static,
    "trace": _trace,
    "incast": _incast,
    "cross": _cross,
    "outage": _outage,
}
CONDITION_NAMES = tuple(_CONDITIONS)
