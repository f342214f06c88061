"""What a run's records say of gradients that were stale, of those that were dropped, and of workers that were lost."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Events = Mapping[str, Sequence[Mapping[str, Any]]]
"""By kind."""


def lost_workers(events: Events) -> list[str]:
    """Names of the workers without whom the run went on, in order."""
    return sorted({str(event["lost"]) for event in events.get("lost", [])})


def lost_reasons(events: Events) -> list[str]:
    """A sentence for each of them."""
    return [_sentence(name, events["lost"]) for name in lost_workers(events)]


def dropped(events: Events, names: Mapping[int, str]) -> dict[str, int]:
    """By sender, how many gradients came too late to be of use. ``names``: of peers, by number."""
    found = Counter(names[int(event["seen"]["sender"])] for event in events.get("dropped", []))
    return dict(sorted(found.items()))


def staleness(events: Events) -> dict[str, float | int | None]:
    """``mean_staleness`` and ``max_staleness`` of the gradients applied one by one; None where means are applied."""
    found = array("q", (int(event["staleness"]) for event in events.get("gradient", [])))
    return {
        "mean_staleness": fmean(found) if found else None,
        "max_staleness": max(found, default=None),
    }


def led_steps(events: Events, workers: int) -> int | None:
    """Steps of a run in which workers make different numbers of them, as its server counts; None for other runs."""
    if gradients := events.get("gradient"):
        return len(gradients) // workers
    skipped = any(step.get("skipped") for step in events.get("step", []))
    if skipped or events.get("dropped") or events.get("lost") or events.get("away"):
        return len(events.get("round", []))
    return None


def _sentence(name: str, lost: Sequence[Mapping[str, Any]]) -> str:
    said = [event for event in lost if event["lost"] == name]
    # what the session says of it comes first: it knows of events, a server of connections alone
    first = min(said, key=lambda event: (event["node"] != name, float(event["time_s"])))
    step = next((event["step"] for event in said if event["step"] is not None), None)
    at = "" if step is None else f" at step {step}"
    return f"{name} was lost{at}, {float(first['time_s']):.1f} s after t0 ({first['reason']}), and the run went on without it"
