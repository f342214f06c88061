"""Did compressing and applying wait for a processor? Their wall time against their CPU time, step by step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from testbed.record.evidence import Records
from testbed.record.finding import Finding
from testbed.record.thresholds import Thresholds

_Took = tuple[float, float]
"""Wall and CPU seconds of a phase."""
_Key = tuple[str, int]


def contended(steps: Records, buckets: Records, limits: Thresholds) -> Finding:
    """The share of phases that waited. ``steps``, of which there are some, and ``buckets``: their records."""
    in_buckets: dict[_Key, list[Any]] = {}
    for one in buckets:
        in_buckets.setdefault((str(one["node"]), int(one["step"])), []).append(one)
    waited, phases = 0, 2 * len(steps)
    for step in steps:
        own = in_buckets.get((str(step.get("node")), int(step["step"])), ())
        length_s = float(step["end_s"]) - float(step["start_s"])
        waited += sum(_waited(took, length_s, limits) for took in _took(step, own))
    return Finding(
        "contended_share",
        f"{waited} of {phases} compress and apply phases ({waited / phases:.1%}) took over "
        f"{limits.contended_ratio:g} times their CPU time and lost more than "
        f"{limits.contended_loss:.0%} of their step by it; at most {limits.contended_share:.1%} may",
        waited / phases, limits.contended_share,
    )  # fmt: skip


def _took(step: Any, buckets: Sequence[Any]) -> Iterator[_Took]:
    """Compressing, then applying.

    In buckets a step's phases are of one of them, and the CPU times of all. So it is their own times that count: of
    compressing, those of buckets that were not packed when the last gradients were there. What was packed before that,
    beside the computation, does not hold up its end.
    """
    if not buckets:
        for phase in ("compress", "apply"):
            yield float(step[f"{phase}_s"]), float(step[f"{phase}_cpu_s"])
        return
    computed_s = max(one["ready_s"] for one in buckets)
    late = [one for one in buckets if one["packed_s"] > computed_s]
    yield sum(b["packed_s"] - b["pack_s"] for b in late), sum(b["compress_cpu_s"] for b in late)
    # those that are applied together have the same times
    applied = {(float(one["applying_s"]), float(one["applied_s"])) for one in buckets}
    yield sum(to_s - from_s for from_s, to_s in applied), float(step["apply_cpu_s"])


def _waited(took: _Took, length_s: float, limits: Thresholds) -> bool:
    """Whether a phase waited for a processor long enough to matter in its step."""
    wall_s, cpu_s = took
    lost = wall_s - cpu_s > limits.contended_loss * length_s
    return lost and wall_s > limits.contended_ratio * cpu_s
