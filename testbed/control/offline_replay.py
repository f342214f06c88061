"""A controller run again on what a worker recorded: the same inputs must give the same
densities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.control.base import Controller, Observation
from testbed.errors import InputError


@dataclass(frozen=True, slots=True)
class ReplayedDecisions:
    """Recorded against replayed densities of one worker, step by step."""

    steps: tuple[int, ...]
    recorded: tuple[float, ...]
    replayed: tuple[float, ...]

    @property
    def mismatches(self) -> tuple[int, ...]:
        """Steps whose densities are not equal to the last bit."""
        rows = zip(self.steps, self.recorded, self.replayed, strict=True)
        return tuple(step for step, was, now in rows if was != now)

    @property
    def exact(self) -> bool:
        """Every step agrees, and there is at least one."""
        return bool(self.steps) and not self.mismatches


def replay(
    records: Iterable[Mapping[str, Any]], make: Callable[[], Controller[Any]]
) -> list[float]:
    """Densities that a fresh controller asks for, one per ``step`` record of one worker, in order.

    It is shown the recorded observations. Given a controller other than the recorded one this is an
    open loop: what it observes are the consequences of another one's densities.
    Raises InputError for a record whose observation cannot be read.
    """
    controller = make()
    densities = []
    for record in records:
        if record.get("kind") != "step":
            continue
        densities.append(controller.density())
        if (observed := record.get("controller")) is not None:
            controller.observe(_observation(record, observed))
    return densities


def compare(
    records: Iterable[Mapping[str, Any]], make: Callable[[], Controller[Any]]
) -> ReplayedDecisions:
    """``replay`` beside the recorded densities. Raises InputError for records without them."""
    steps = [record for record in records if record.get("kind") == "step"]
    try:
        numbers = tuple(int(record["step"]) for record in steps)
        recorded = tuple(float(record["density"]) for record in steps)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a step record has no usable step or density: {error!r}") from error
    return ReplayedDecisions(numbers, recorded, tuple(replay(steps, make)))


def _observation(record: Mapping[str, Any], observed: Mapping[str, Any]) -> Observation:
    try:
        return Observation(**observed)
    except TypeError as error:
        raise InputError(
            f"step {record.get('step')}: the controller's observation cannot be read: {error}"
        ) from error
