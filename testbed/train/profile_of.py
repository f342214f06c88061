"""The profile that a worker is held to: what its scenario asks for, in wall seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from testbed.errors import InputError
from testbed.train.job import Job
from testbed.train.profile import Profile
from testbed.train.step_times import step_times


def profile_of(job: Job, names: Sequence[str], measure: Callable[[], Profile]) -> Profile | None:
    """How long each of the layers ``names`` is to compute; None where nothing is held.

    ``names``: of the model's ``Layout.layers()``. ``measure``: called only where the scenario says `measured`, or nothing.
    In all it takes what a usual step takes by ``job.train.pace``, which a profile from a file has set where the scenario does not.
    Raises InputError for a profile of another model.
    """
    if (times := step_times(job)) is None:
        return None
    pace_s = times.usual_s
    if job.train.profile == "constant":
        return Profile.constant(names, pace_s)
    if job.profile is not None:
        return job.profile.of(names).scaled(pace_s)
    if job.train.profile not in (None, "measured"):
        raise InputError(f"the job lacks the times of its profile {job.train.profile!r}")
    return _timed(measure().of(names), names, pace_s)


def _timed(found: Profile, names: Sequence[str], pace_s: float) -> Profile:
    """Scaled. On a virtual clock computation takes no time, so that nothing can be measured: all layers alike then."""
    if found.total_s > 0:
        return found.scaled(pace_s)
    constant = Profile.constant(names, pace_s)
    return replace(constant, about="the same time for every layer: here computation takes none")
