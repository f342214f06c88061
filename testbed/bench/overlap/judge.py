"""From the records of runs to rows and checks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from testbed.bench.figures import times
from testbed.bench.overlap.ideal import Chain, Variant, bound_s, step_s
from testbed.bench.overlap.plan import LAYERS, OVERLAPPED
from testbed.bench.result import Check, at_least, at_most
from testbed.scenario.shape import wire_bytes
from testbed.train.profile import Profile

Events = Mapping[str, Sequence[Mapping[str, Any]]]
"""Of a run, by kind."""
Row = dict[str, Any]
OVER_BOUND, NEVER_FASTER = 1.10, 0.98


def median_step_s(events: Events, skip: int) -> float:
    """Over the steps of all workers but their first ``skip`` and the last, which ends when all of it has come back."""
    last = max(int(one["step"]) for one in events["step"])
    return median(
        float(one["end_s"]) - float(one["start_s"])
        for one in events["step"]
        if skip < int(one["step"]) < last
    )


def chain_of(events: Events, rate_bits: float, pace_s: float) -> Chain:
    """By the frames of a run in buckets: their bytes with the packets' headers, over the rate of a worker's link."""
    profile = Profile.constant([str(layer) for layer in range(LAYERS)], pace_s)
    return Chain(
        [layer.forward_s for layer in profile.layers],
        [layer.backward_s for layer in profile.layers],
        *(_bucket_s(events, way, rate_bits) for way in ("bytes_up", "bytes_down")),
    )


def rows(
    load: float, rate_bits: float, chain: Chain, found: Mapping[Variant, Sequence[float]]
) -> list[Row]:
    """One for each variant of a bandwidth. ``found``: ``median_step_s`` of its runs, of which there may be none."""
    bound, made = bound_s(chain), list[Row]()
    for variant, each_s in found.items():
        took, ideal = median(each_s) if each_s else None, step_s(chain, variant)
        made.append(
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
    return made


def checks(found: Sequence[Row], loads: Iterable[float]) -> list[Check]:
    """Both orders against the bound; what does not overlap against what does, at each of ``loads``.

    Of a load without rows nothing is known, and no check of it is met.
    """
    made: list[Check] = []
    for load in dict.fromkeys(loads):
        step = {row["variant"]: row for row in found if row["load"] == load}
        overlapped = _known(row for name, row in step.items() if name in OVERLAPPED)
        others = _known(row for name, row in step.items() if name not in OVERLAPPED)
        made += [
            at_most(f"load {load:g}, {name}: step over bound", _over_bound(step, name), OVER_BOUND)
            for name in OVERLAPPED
        ]
        ratio = times(min(others, default=None), max(overlapped, default=None))
        made.append(at_least(f"load {load:g}: without overlap over with it", ratio, NEVER_FASTER))
    return made


def _over_bound(step: Mapping[str, Row], name: Variant) -> float | None:
    return step[name]["step/bound"] if name in step else None


def _known(found: Iterable[Row]) -> list[float]:
    return [row["step_s"] for row in found if row["step_s"] is not None]


def _bucket_s(events: Events, way: str, rate_bits: float) -> list[float]:
    """By layer. Bucket 0 is the last layer's."""
    sizes: dict[int, list[int]] = {}
    for one in events["bucket"]:
        sizes.setdefault(int(one["bucket"]), []).append(int(one[way]))
    return [8 * _mean_wire(sizes[number]) / rate_bits for number in sorted(sizes, reverse=True)]


def _mean_wire(frame_bytes: Iterable[int]) -> float:
    return fmean(wire_bytes(one) for one in frame_bytes)
