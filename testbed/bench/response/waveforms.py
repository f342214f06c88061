"""The scenarios of ``testbed bench control``: what happens to the server's link. Pure.

All begin to move at 6 s: the longest warm-up of a controller (20 steps at k_max) ends before, and the fastest run
of 240 steps lasts 13 s, so that half of its steps follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from testbed.traces.generate import ramp, sawtooth, token_bucket
from testbed.traces.trace import RateTrace

CHANGE_S = 6.0
FAST, SLOW = 100, 20
"""Rates of the server's link, Mbit/s."""
STEPS = 240
EVALUATE_EVERY = 5
_RAMP_S, _TOOTH_S, _OUTAGE_S = 3.0, 4.0, 1.0

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Waveform:
    """What the server's link does in both directions."""

    name: str
    before: int = FAST
    """Rate until ``CHANGE_S``, Mbit/s."""
    events: Sequence[Event] = ()
    trace: RateTrace | None = None
    """Written beside the scenario, as ``<name>.csv``."""
    settles: bool = True
    """Whether the link comes to rest after ``CHANGE_S``, so that there is a level to settle at."""

    @property
    def reference(self) -> str:
        """The waveform that does the same until ``CHANGE_S``, and nothing then."""
        return f"constant-{self.before}"


def _event(kind: str, **more: Any) -> Event:
    return {"kind": kind, "links": ["server"], "at": f"{CHANGE_S:g} s", **more}


def _step(rate: int) -> Event:
    return _event("step", rate=f"{rate} Mbit/s")


def _traced(name: str, trace: RateTrace) -> Waveform:
    event = _event("trace", file=f"{name}.csv", at_end="loop")
    return Waveform(name, events=[event], trace=trace, settles=False)


_teeth = partial(sawtooth, low=SLOW, high=FAST, every_s=0.1)
_cloud = partial(token_bucket, peak=100, base=55, budget_s=6, busy=0.75, noise=0.08, every_s=1)
_ramp = partial(ramp, start=FAST, end=SLOW, every_s=0.1)


def _waveforms() -> Iterable[Waveform]:
    held = _event("trace", file="ramp.csv", at_end="hold")
    yield Waveform("step-down", FAST, [_step(SLOW)])
    yield Waveform("step-up", SLOW, [_step(FAST)])
    yield Waveform("ramp", FAST, [held], _ramp(seconds=_RAMP_S))
    yield _traced("sawtooth", _teeth(seconds=_TOOTH_S))
    yield Waveform("outage", FAST, [_event("outage", **{"for": f"{_OUTAGE_S:g} s"})])
    # as scenarios/traces/cloud.csv is made
    yield _traced("trace", _cloud(seconds=60, seed=7))


WAVEFORMS: dict[str, Waveform] = {each.name: each for each in _waveforms()}
"""Those that can be asked for."""
REFERENCES: dict[str, Waveform] = {
    each.name: each for each in (Waveform(f"constant-{rate}", rate) for rate in (FAST, SLOW))
}
"""Links that stay as they are."""


def scenario(waveform: Waveform, steps: int, algorithms: Sequence[Any]) -> dict[str, Any]:
    """Four workers and a server whose link moves; training is real."""
    return {
        "name": f"control-{waveform.name}",
        "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 4}},
        "links": {"default": _link(100), "server": _link(waveform.before)},
        "events": list(waveform.events),
        "train": {
            "task": "synthetic",
            "model": "mlp",
            "batch": 32,
            "optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9},
            "pace": "50 ms",
            "stop": {"steps": steps},
            "evaluate_every": EVALUATE_EVERY,
        },
        "algorithms": list(algorithms),
        "seeds": [1],
        "congestion": "cubic",
        "peer_timeout": "10 s",
    }


def _link(rate: int) -> dict[str, Any]:
    end = {"rate": f"{rate} Mbit/s", "queue": "50 ms"}
    return {"up": end, "down": end}
