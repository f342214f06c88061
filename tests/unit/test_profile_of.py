"""What a worker is held to, by layer: from its job, its model's layers and what it measures itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from virtual_setup import job

from testbed.errors import InputError
from testbed.scenario.profile import LayerTimes, Profile
from testbed.training.job import Job
from testbed.training.profiling import profile_of

NAMES = ["1", "3"]
OWN = Profile((LayerTimes("1", 1.0, 3.0), LayerTimes("3", 2.0, 2.0)), "measured", "here")
GIVEN = Profile((LayerTimes("1", 0.2, 0.3), LayerTimes("3", 0.1, 0.4)), "estimated", "V100")


def worker(
    profile: str | None = None, given: Profile | None = None, pace: str | None = "2 s"
) -> Job:
    return replace(job(1, 2, "none", pace=pace, profile=profile), profile=given)


def own() -> Profile:
    return OWN


def never() -> Profile:
    raise AssertionError("it was measured")


@pytest.mark.parametrize("profile", [None, "measured"])
def test_without_a_pace_nothing_is_held(profile: str | None) -> None:
    assert profile_of(worker(profile, pace=None), NAMES, never) is None


@pytest.mark.parametrize("profile", [None, "measured"])
def test_what_is_measured_is_as_long_as_the_pace_in_all(profile: str | None) -> None:
    found = profile_of(worker(profile), NAMES, own)
    assert found is not None
    assert [(one.forward_s, one.backward_s) for one in found.layers] == [(0.25, 0.75), (0.5, 0.5)]
    assert found.source == "measured"


def test_constant_measures_nothing() -> None:
    found = profile_of(worker("constant"), NAMES, never)
    assert found == Profile.constant(NAMES, 2.0)


def test_a_given_one_is_scaled_to_the_pace() -> None:
    found = profile_of(worker("v100", GIVEN), NAMES, never)
    assert found is not None
    assert found.source == "estimated"
    assert [one.forward_s for one in found.layers] == pytest.approx([0.4, 0.2])
    assert found.total_s == pytest.approx(2.0)


def test_one_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="the profile is of another model: layer '3'"):
        profile_of(worker("v100", GIVEN), ["1", "5"], never)


def test_a_job_that_lacks_its_profile_is_refused() -> None:
    with pytest.raises(InputError, match="lacks the times of its profile 'v100'"):
        profile_of(worker("v100"), NAMES, never)


def test_where_computation_takes_no_time_all_layers_are_alike() -> None:
    nothing = Profile((LayerTimes("1", 0.0, 0.0), LayerTimes("3", 0.0, 0.0)), "measured")
    found = profile_of(worker(), NAMES, lambda: nothing)
    assert found is not None
    assert found.layers == Profile.constant(NAMES, 2.0).layers
    assert "computation takes none" in found.about


def test_a_profile_travels_with_its_job() -> None:
    given = worker("v100", GIVEN)
    assert Job.from_json(json.loads(json.dumps(given.to_json()))) == given
