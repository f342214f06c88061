"""How long a step takes if only its computation's pace and its bits on the wire take time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from testbed.record.fluid import bottleneck_s
from testbed.record.groups import Group, Records, groups
from testbed.record.history import LinkHistory
from testbed.record.manifest import peer_names, recorded_every
from testbed.scenario.shape import End

Paces = Mapping[int, Mapping[str, float]]
"""By step and worker: wall seconds that the computation was to take."""
_LOOKS = 32


def expected_step_s(manifest: Mapping[str, Any], steps: Records, rounds: Records,
                    history: LinkHistory) -> float | None:  # fmt: skip
    """Wall seconds that a step takes if only its pace and its bits on the wire take time.

    Pace + Σ over phases (up, down) of max over links of wire bits ÷ mean asked rate in that phase, as a
    mean over steps (of those of which not all workers are recorded, over every so-many-th). Without a pace the
    mean time of the computation stands for it. In buckets, what goes up and what comes down share their time: the
    longer of both counts; with overlap, the longest of these and the pace. Where paces differ, the slowest worker's
    counts, and what others have sent before it has computed does not. ``steps``: also those in which workers rested.
    None: unknown.
    """
    row = manifest["algorithm"]
    every = recorded_every(manifest)
    rounds = [round_ for round_ in rounds if (int(round_["step"]) - 1) % every == 0]
    phases: dict[int, dict[str, list[Group]]] = {}
    for group in groups(rounds, steps, peer_names(manifest), every):
        if any(end not in history for end in group.ends):
            return None
        phases.setdefault(group.step, {}).setdefault(group.direction, []).append(group)
    pairs = {step: pair for step, pair in phases.items() if len(pair) == 2}
    if not pairs:
        return None
    paces: Paces = {} if manifest.get("pace_s") is not None else _asked(steps)
    if paces.keys() >= pairs.keys():
        return fmean(_unequal_s(row, history, paces[step], pair) for step, pair in pairs.items())
    both = fmean(
        (max if row.get("bucket_bytes") else sum)(_needed_s(history, one) for one in pair.values())
        for pair in pairs.values()
    )
    pace = manifest.get("pace_s")
    computed = _computed_s(steps) if pace is None else float(pace)
    return max(computed, both) if row.get("overlap") else computed + both


def _computed_s(steps: Records) -> float:
    return fmean(float(step["compute_s"]) for step in steps if "compute_s" in step)


def _asked(steps: Records) -> Paces:
    found: dict[int, dict[str, float]] = {}
    for step in steps:
        if (pace_s := step.get("pace_s")) is not None:
            found.setdefault(int(step["step"]), {})[str(step["node"])] = float(pace_s)
    return found


def _unequal_s(
    row: Mapping[str, Any],
    history: LinkHistory,
    paces: Mapping[str, float],
    pair: Mapping[str, Sequence[Group]],
) -> float:
    """Of one step. Whatever the order, from any time on links have to carry what is computed only then."""
    slowest, down_s = max(paces.values()), _needed_s(history, pair["down"])
    if row.get("bucket_bytes"):
        both = max(_needed_s(history, pair["up"]), down_s)
        return max(slowest, both) if row.get("overlap") else slowest + both
    from_s = sorted(set(paces.values()))
    from_s = from_s[:: -(-len(from_s) // _LOOKS)]  # any of them is a bound; of very many, some
    return down_s + max(
        time_s + _needed_s(history, later)
        for time_s in from_s
        if (later := [part for group in pair["up"] if (part := _since(group, paces, time_s))])
    )


def _since(group: Group, paces: Mapping[str, float], time_s: float) -> Group | None:
    """Those messages of ``group`` that are computed at ``time_s`` or later; of unknown workers all."""
    loads = tuple(load for load in group.loads if paces.get(load.link, time_s) >= time_s)
    return replace(group, loads=loads) if loads else None


def _needed_s(history: LinkHistory, servers: Sequence[Group]) -> float:
    """Seconds in which the busiest link carries what goes one way in a step, to or from all ``servers``."""
    bits: dict[End, float] = {}
    for group in servers:
        for end, more in group.link_bits().items():
            bits[end] = bits.get(end, 0.0) + more
    start_s, last_s = min(g.start_s for g in servers), max(g.last_s for g in servers)
    return bottleneck_s(history.bits, bits, start_s, last_s)
