"""``train.profile`` of a scenario: the file it names, and the pace that it gives where the scenario gives none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from testbed.errors import InputError
from testbed.scenario.model import Scenario, Train
from testbed.scenario.problems import Problem
from testbed.train.profile_file import ProfileFile, find, read_profile
from testbed.units import Duration

_PLACE = ("train", "profile")
_FILELESS = (None, "measured", "constant")


def profiled(
    scenario: Scenario, folder: Path
) -> tuple[Scenario, ProfileFile | None, list[Problem]]:
    """``scenario`` with its pace, the profile's file if it has one, and what is wrong with it.

    ``folder``: the scenario file's, where a path starts.
    """
    train = scenario.train
    if train.profile == "constant" and train.pace is None:
        wrong = "`constant` shares a time among the layers: give it, `pace: 200 ms`"
        return scenario, None, [Problem(_PLACE, wrong)]
    if train.profile is None or train.profile in _FILELESS:
        return scenario, None, []
    try:
        found = read_profile(find(train.profile, folder))
    except InputError as error:
        return scenario, None, [Problem(_PLACE, str(error))]
    problems = [Problem(_PLACE, what) for what in _others(train, found)]
    if train.pace is None:
        train = train.model_copy(update={"pace": Duration(round(found.total_s, 9))})
        scenario = scenario.model_copy(update={"train": train})
    return scenario, found, problems


def _others(train: Train, found: ProfileFile) -> Iterator[str]:
    """What the profile is of, where it is not what is trained. In proportion, sizes do not matter: with a pace."""
    if train.model != found.model:
        yield f"it is of the model {found.model!r}, and {train.model!r} is trained"
    if train.pace is not None:
        return
    for key in ("task", "width", "batch"):
        its, ours = getattr(found, key), getattr(train, key)
        if its != ours:
            yield (
                f"its times are of {key} {its}, and {ours} is trained: measure or estimate that (`testbed profile`), "
                f"or give a `pace`, to which it is scaled"
            )
