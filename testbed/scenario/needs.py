"""What a scenario asks of a kernel beyond a rate and a queue."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.scenario.events import StepEvent
from testbed.scenario.expand import end_settings
from testbed.scenario.impairments import Impairments
from testbed.scenario.model import Scenario
from testbed.scenario.reach import alike, link_events
from testbed.scenario.settings import impairments, overlaid
from testbed.scenario.shape import End

_FIELDS = {
    "delay": "delay_ns",
    "jitter": "jitter_ns",
    "loss": "loss",
    "reorder": "reorder",
    "duplicate": "duplicate",
    "corrupt": "corrupt",
    "slot": "slot",
    "ecn": "ecn",
}


def kernel_needs(scenario: Scenario) -> list[str]:
    """Needs in words, such as ``netem (worker-0 up: delay)``; link directions alike are one entry.

    ``netem`` with what is asked of it at any time; ``ifb`` for the directions that are impaired, or
    shaped, where their packets arrive; ``seed`` where random numbers are to be the same every time.
    """
    netem: dict[tuple[str, ...], list[End]] = {}
    impaired: set[End] = set()
    for settings, events, ends in alike(scenario):
        states = [settings]
        for event in link_events(scenario, events):
            if isinstance(event, StepEvent):
                states.append(overlaid(states[-1], event))
        if fields := _asked([impairments(state) for state in states]):
            netem.setdefault(fields, []).extend(ends)
            impaired.update(ends)
    placed = end_settings(scenario).items()
    arriving = [end for end, own in placed if end in impaired or own.at == "network"]
    seeded = [end for end, own in placed if end in impaired and own.seed is not None]
    needs = [f"netem ({_ends(ends)}: {', '.join(fields)})" for fields, ends in netem.items()]
    needs += [f"ifb ({_ends(arriving)})"] if arriving else []
    return needs + ([f"seed ({_ends(seeded)})"] if seeded else [])


def _asked(states: Iterable[Impairments]) -> tuple[str, ...]:
    listed = list(states)
    return tuple(
        word for word, name in _FIELDS.items() if any(getattr(state, name) for state in listed)
    )


def _ends(ends: list[End]) -> str:
    return str(ends[0]) if len(ends) == 1 else f"{ends[0]} and {len(ends) - 1} more"
