"""What a scenario asks of a kernel beyond a rate and a queue."""

from __future__ import annotations

from testbed.scenario.expand import end_settings
from testbed.scenario.model import Scenario
from testbed.scenario.shape import End

NETEM_FIELDS = ("delay", "jitter", "loss", "reorder", "duplicate", "corrupt")


def kernel_needs(scenario: Scenario) -> list[str]:
    """Needs in words, such as ``netem (worker-0 up: delay)``; link directions alike are one entry."""
    asking: dict[tuple[str, ...], list[End]] = {}
    for end, settings in end_settings(scenario).items():
        if fields := tuple(name for name in NETEM_FIELDS if getattr(settings, name)):
            asking.setdefault(fields, []).append(end)
    return [f"netem ({_ends(ends)}: {', '.join(fields)})" for fields, ends in asking.items()]


def _ends(ends: list[End]) -> str:
    return str(ends[0]) if len(ends) == 1 else f"{ends[0]} and {len(ends) - 1} more"
