"""``testbed bench overlap``: one model, one pace, three bandwidths, four ways to make a step, each
against the least time that computation and links allow.

One bucket per layer; every worker is like every other, and its own link is the narrowest on the
way. What is neither computation nor a bucket's bits on that link takes no time. All times in
seconds, sequences in the order of the layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, get_args

from testbed.algorithm import Algorithm
from testbed.bench.results import (
    ATTEMPTS,
    ResultCheck,
    Row,
    Say,
    Suite,
    at_least,
    at_most,
    interleaved,
    link,
    measurement,
    star,
    times,
    write_json,
    write_scenario,
)
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import read_events
from testbed.records.stored import Events
from testbed.runner.experiment import Experiment, prepare
from testbed.runner.run import run as carry_out
from testbed.runner.signals import interruptible
from testbed.scenario.link_state import wire_bytes
from testbed.scenario.profile import Profile
from testbed.training.models.base import parameter_count

Variant = Literal["whole", "buckets", "backward", "forward"]
"""One message when all is computed; all buckets then; overlapped, buckets in the order of the
backward pass; overlapped, of those that wait what the next forward pass needs first."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A step's parts by layer: computation, and its bucket's bits over the rate of the worker's
    link each way."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    up_s: Sequence[float]
    down_s: Sequence[float]

    @property
    def compute_s(self) -> float:
        """Forward and backward pass."""
        return sum(self.forward_s) + sum(self.backward_s)

    @property
    def ready_s(self) -> list[float]:
        """When each layer's gradients are there, after a step that has all parameters at 0."""
        ready, now_s = [0.0] * len(self.forward_s), sum(self.forward_s)
        for layer in reversed(range(len(ready))):
            now_s += self.backward_s[layer]
            ready[layer] = now_s
        return ready


def bound_s(chain: Chain) -> float:
    """The longer of two chains, if the forward pass waits for all parameters: computation, then the
    last bucket's way up and down; or the first bucket's gradients, then all buckets one way, then
    the last one down.

    The first bucket is that of the last layer, the last one that of the first.
    """
    computing = chain.compute_s + chain.up_s[0] + chain.down_s[0]
    longer = max(sum(chain.up_s), sum(chain.down_s))
    return max(computing, chain.ready_s[-1] + longer + chain.down_s[0])


def step_s(chain: Chain, variant: Variant) -> float:
    """A step of the schedule itself, from when the first layer may compute until it may again;
    every step is like it.

    Buckets pass a link one after the other, none is parted, and none leaves the server before all
    of it has come.
    """
    if variant == "whole":
        return chain.compute_s + sum(chain.up_s) + sum(chain.down_s)
    if variant == "buckets":
        ready = [chain.compute_s] * len(chain.up_s)
        return max(_returned(chain, ready, variant))
    return _overlapped(chain, variant)


def _overlapped(chain: Chain, variant: Variant) -> float:
    """Whatever the forward pass waits between layers, all gradients are later by that, and all that
    comes back."""
    returned = _returned(chain, chain.ready_s, variant)
    now_s, waited_s = returned[0], 0.0
    for layer in range(1, len(returned)):
        now_s += chain.forward_s[layer - 1]
        waited_s += max(0.0, returned[layer] - now_s)
        now_s = max(now_s, returned[layer])
    return returned[0] + waited_s


def _returned(chain: Chain, ready_s: Sequence[float], variant: Variant) -> list[float]:
    """When each layer's parameters are there, with gradients that are there at ``ready_s``."""
    layers = range(len(ready_s))
    urgency = list(layers) if variant == "forward" else [-layer for layer in layers]
    return _passed(_passed(ready_s, chain.up_s, urgency), chain.down_s, urgency)


def _passed(
    come_s: Sequence[float], busy_s: Sequence[float], urgency: Sequence[int]
) -> list[float]:
    """When a link has sent each of what came at ``come_s`` and takes ``busy_s``: the least
    ``urgency`` that waits goes first."""
    passed, left, now_s = [0.0] * len(come_s), set(range(len(come_s))), 0.0
    while left:
        now_s = max(now_s, min(come_s[bucket] for bucket in left))
        chosen = min(
            (bucket for bucket in left if come_s[bucket] <= now_s), key=urgency.__getitem__
        )
        now_s += busy_s[chosen]
        passed[chosen] = now_s
        left.remove(chosen)
    return passed


MODEL, TASK, WIDTH = "mlp12", "digits", 2.0
LAYERS = 12
LOADS = (0.3, 1.0, 3.0)
"""All buckets' time on a worker's link one way over the time of the backward pass."""
_BACKWARD = 2 / 3
"""Share of the backward pass in a pace, with a constant profile."""

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
class OverlapPlan:
    """Request for a measurement. ``skip``: steps at the beginning that are not counted; ``repeat``:
    runs of each."""

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
    """Return the rate of a worker's link at which a gradient takes ``load`` times the backward pass
    one way."""
    elements = parameter_count(MODEL, TASK, WIDTH)
    return round(8 * wire_bytes(4 * elements) / (load * _BACKWARD * pace_s))


def scenario(plan: OverlapPlan, load: float) -> dict[str, Any]:
    """Return the scenario of one bandwidth. Each worker's link is the narrowest: the server's has
    room for all."""
    rate = rate_bits(load, plan.pace_s)
    costs = {} if plan.host_costs else {"send": "0 s", "receive": "0 s"}
    train = {
        "task": TASK,
        "model": MODEL,
        "width": WIDTH,
        "batch": 16,
        "pace": f"{1e6 * plan.pace_s:.0f} us",
        "profile": "constant",
        "stop": {"steps": plan.steps},
        "evaluate_every": plan.steps,
    }
    return star(
        f"overlap-{load:g}".replace(".", "-"),
        plan.workers,
        train,
        links={"default": link(f"{rate} bit/s"), "server": link(f"{plan.workers * rate} bit/s")},
        algorithms=[dict(ALGORITHMS[variant]) for variant in VARIANTS],
        seeds=plan.seeds,
        sim=costs,
    )


OVER_BOUND, NEVER_FASTER = 1.10, 0.98


def median_step_s(events: Events, skip: int) -> float:
    """Over the steps of all workers but their first ``skip`` and the last, which ends when all of
    it has come back."""
    last = max(int(step["step"]) for step in events["step"])
    return median(
        float(step["end_s"]) - float(step["start_s"])
        for step in events["step"]
        if skip < int(step["step"]) < last
    )


def chain_of(events: Events, rate_bits: float, pace_s: float) -> Chain:
    """Make a chain from a run in buckets: its frames' bytes with the packets' headers, over a
    worker's rate."""
    profile = Profile.constant([str(layer) for layer in range(LAYERS)], pace_s)
    return Chain(
        [layer.forward_s for layer in profile.layers],
        [layer.backward_s for layer in profile.layers],
        *(_bucket_s(events, column, rate_bits) for column in ("bytes_up", "bytes_down")),
    )


def rows(
    load: float, rate_bits: float, chain: Chain, steps_s: Mapping[Variant, Sequence[float]]
) -> list[Row]:
    """One for each variant of a bandwidth. ``steps_s``: ``median_step_s`` of its runs, of which
    there may be none."""
    bound, table = bound_s(chain), list[Row]()
    for variant, each_s in steps_s.items():
        took, ideal = median(each_s) if each_s else None, step_s(chain, variant)
        table.append(
            {
                "load": load,
                "rate_mbit": rate_bits / 1e6,
                "variant": variant,
                "step_s": took,
                "bound_s": bound,
                "step/bound": times(took, bound),
                "ideal_s": ideal,
                "step/ideal": times(took, ideal),
                "runs": len(each_s),
            }
        )
    return table


def checks(table: Sequence[Row], loads: Iterable[float]) -> list[ResultCheck]:
    """Both orders against the bound; what does not overlap against what does, at each of ``loads``.

    Of a load without rows nothing is known, and no check of it is met.
    """
    results: list[ResultCheck] = []
    for load in dict.fromkeys(loads):
        step = {row["variant"]: row for row in table if row["load"] == load}
        overlapped = _known(row for name, row in step.items() if name in OVERLAPPED)
        others = _known(row for name, row in step.items() if name not in OVERLAPPED)
        results += [
            at_most(
                f"load {load:g}, {name}: step over bound",
                step[name]["step/bound"] if name in step else None,
                OVER_BOUND,
            )
            for name in OVERLAPPED
        ]
        ratio = times(min(others, default=None), max(overlapped, default=None))
        results.append(
            at_least(f"load {load:g}: without overlap over with it", ratio, NEVER_FASTER)
        )
    return results


def _known(rows: Iterable[Row]) -> list[float]:
    return [row["step_s"] for row in rows if row["step_s"] is not None]


def _bucket_s(events: Events, column: str, rate_bits: float) -> list[float]:
    """Return the time of each layer's bucket on the link, by layer, in s. Bucket 0 is the last
    layer's."""
    sizes: dict[int, list[int]] = {}
    for bucket in events["bucket"]:
        sizes.setdefault(int(bucket["bucket"]), []).append(int(bucket[column]))
    return [
        8 * fmean(map(wire_bytes, sizes[number])) / rate_bits
        for number in sorted(sizes, reverse=True)
    ]


RESULT = "overlap.json"
_Trial = tuple[Algorithm, int]


class OverlapBench:
    """One call. ``known``: what was found so far, which is what ``overlap.json`` holds."""

    def __init__(self, plan: OverlapPlan, out: Path, say: Say) -> None:
        self._plan, self._say = plan, say
        self.directory = measurement(out, "overlap")
        self.known: dict[str, Any] = {
            "plan": asdict(plan),
            "machine": machine_facts(),
            "rows": [],
            "discarded": [],
            "runs": [],
        }

    def run(self) -> Suite:
        """All of it. Raises NarrowsError for a run that failed."""
        with interruptible():
            for load in self._plan.loads:
                self.known["rows"] += self._measured(load)
                self._save()
        suite = Suite(
            "Steps with and without overlap, against the bound of computation and links",
            self.known["rows"],
            checks(self.known["rows"], self._plan.loads),
            {"discarded": self.known["discarded"]},
        )
        self.known["checks"] = [asdict(check) for check in suite.checks]
        self._save()
        return suite

    def _measured(self, load: float) -> list[Row]:
        """The rows of one bandwidth. Runs that are invalid are made again."""
        plan, content = self._plan, scenario(self._plan, load)
        path = write_scenario(self.directory / "scenarios", content["name"], content)
        experiment = prepare(path)
        rate, steps = rate_bits(load, plan.pace_s), {v: list[float]() for v in VARIANTS}
        chains: list[Chain] = []
        left = self._order(experiment)
        for _ in range(ATTEMPTS):
            again: list[_Trial] = []
            for trial, entry in zip(left, self._carried_out(experiment, left), strict=True):
                if entry["verdict"] == "invalid":
                    again.append(trial)
                    continue
                events = read_events(Path(entry["dir"]))
                variant: Variant = entry["algorithm"]
                steps[variant].append(median_step_s(events, plan.skip))
                if "bucket" in events and not chains:
                    chains.append(chain_of(events, rate, plan.pace_s))
            if not (left := again):
                break
        return rows(load, rate, chains[0], steps) if chains else []

    def _order(self, experiment: Experiment) -> list[_Trial]:
        plan = self._plan
        turns = interleaved(experiment.algorithms, plan.repeat)
        return [(algorithm, plan.seeds[repetition]) for repetition, algorithm in turns]

    def _carried_out(self, experiment: Experiment, order: list[_Trial]) -> list[dict[str, Any]]:
        done = carry_out(experiment, self._plan.fabric, self.directory, quiet=True, order=order)
        name = experiment.loaded.scenario.name
        for entry in done.runs:
            about = f"{name} {entry['algorithm']} s{entry['seed']}"
            self._say(f"{about}: {entry['time_s']:.1f} s, {entry['verdict']}")
            self.known["runs"].append({"name": about, **entry})
            if entry["verdict"] == "invalid":
                self.known["discarded"].append(about)
        return done.runs

    def _save(self) -> None:
        write_json(self.directory / RESULT, self.known)
