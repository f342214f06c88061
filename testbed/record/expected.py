"""How long a step takes if only its computation's pace and its bits on the wire take time. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from typing import Any

from testbed.record.fluid import bottleneck_s
from testbed.record.groups import Group, groups
from testbed.record.history import LinkHistory
from testbed.record.manifest import peer_names, recorded_every
from testbed.record.stored import Records, by_number
from testbed.scenario.shape import End

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
    if every > 1:
        rounds = [round_ for round_ in rounds if (int(round_["step"]) - 1) % every == 0]
    names, pace = peer_names(manifest), manifest.get("pace_s")
    together = max if row.get("bucket_bytes") else sum
    unequal_s, both_s, all_paced = array("d"), array("d"), pace is None
    pairs = _pairs(groups(rounds, steps, names, every), history)
    paces = _paces(steps) if pace is None else iter(())
    asked: tuple[int, Mapping[str, float]] = (-1, {})
    for step, pair in pairs:
        if pair is None:
            return None
        while asked[0] < step and (following := next(paces, None)) is not None:
            asked = following
        all_paced = all_paced and asked[0] == step
        if all_paced:
            unequal_s.append(_unequal_s(row, history, asked[1], pair))
        both_s.append(together(_needed_s(history, one) for one in pair.values()))
    if not both_s:
        return None
    if all_paced:
        return fmean(unequal_s)
    both, computed = fmean(both_s), _computed_s(steps) if pace is None else float(pace)
    return max(computed, both) if row.get("overlap") else computed + both


def _pairs(
    found: Iterable[Group], history: LinkHistory
) -> Iterator[tuple[int, Mapping[str, Sequence[Group]] | None]]:
    """Of every step what goes up and what comes down, where there is both; None: links were not sampled."""
    for step, own in groupby(found, key=lambda group: group.step):
        pair: dict[str, list[Group]] = {}
        for group in own:
            if any(end not in history for end in group.ends):
                yield step, None
                return
            pair.setdefault(group.direction, []).append(group)
        if len(pair) == 2:
            yield step, pair


def _computed_s(steps: Records) -> float:
    return fmean(float(step["compute_s"]) for step in steps if "compute_s" in step)


def _paces(steps: Records) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Steps in their order, each with the wall seconds that workers' computation was to take; others are left out."""
    for (own,) in by_number(steps):
        paces = {
            str(step["node"]): float(pace_s)
            for step in own
            if (pace_s := step.get("pace_s")) is not None
        }
        if paces:
            yield int(own[0]["step"]), paces


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
