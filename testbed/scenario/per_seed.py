"""What of a scenario depends on the seed of a run: where in their traces its links begin."""

from __future__ import annotations

from dataclasses import replace
from math import fmod

from testbed.scenario.events import TraceEvent
from testbed.scenario.load import Loaded
from testbed.units import Duration


def for_seed(loaded: Loaded, seed: int) -> Loaded:
    """``loaded`` as runs with ``seed`` meet it: every algorithm the same. Its hash stays the file's."""
    events = tuple(
        _begun(event, loaded.traces[event.key].duration_s, seed)
        if isinstance(event, TraceEvent) and event.offset_per_seed
        else event
        for event in loaded.scenario.events
    )
    if events == loaded.scenario.events:
        return loaded
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"events": events}))


def _begun(event: TraceEvent, duration_s: float, seed: int) -> TraceEvent:
    offset = round(fmod(event.offset + seed * event.offset_per_seed, duration_s), 9)
    still = {"offset": Duration(offset), "offset_per_seed": Duration(0.0)}
    return event.model_copy(update=still)
