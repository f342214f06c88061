"""What a run directory says of a run's conditions before its t0: the manifest and the resolved scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from testbed.fabric.base import NodeSpec
from testbed.record.directory import RunDirectory
from testbed.record.manifest import manifest
from testbed.scenario.dump import dump
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.session.paces import keep_paces, one_pace_s
from testbed.session.profiled import pacing
from testbed.train.profile_file import shipped

_PROFILE = "profile.json"


def describe(
    directory: RunDirectory,
    loaded: Loaded,
    specs: Iterable[NodeSpec],
    links: Iterable[Mapping[str, Any]],
    *,
    fabric: str,
    algorithm: Mapping[str, Any],
    seed: int,
    model: Mapping[str, Any] | None = None,
) -> None:
    """Write the manifest, the resolved scenario, and the profile that it names.

    ``links``: every direction as asked and as held. ``model``: of links that are modelled, how.
    """
    directory.write_text("scenario.yaml", dump(_kept(directory, loaded)))
    directory.write_json(
        "manifest.json",
        manifest(
            scenario_name=loaded.scenario.name,
            content_hash=loaded.hash,
            algorithm=algorithm,
            seed=seed,
            dilation=loaded.scenario.dilation,
            pace_s=one_pace_s(loaded),
            pacing=pacing(loaded, by_layer=bool(algorithm.get("overlap")), virtual=fabric == "sim"),
            nodes={spec.name: asdict(spec) for spec in specs},
            links=links,
            fabric=fabric,
            congestion=loaded.scenario.congestion,
            model=model,
        ),
    )


def _kept(directory: RunDirectory, loaded: Loaded) -> Scenario:
    """The scenario with its profile and recorded paces beside it: the files they were read from may change, or be elsewhere."""
    scenario, profile = keep_paces(directory, loaded), loaded.profile
    if profile is None:
        return scenario
    directory.write_text(_PROFILE, profile.text())
    if scenario.train.profile in shipped():
        return scenario
    train = scenario.train.model_copy(update={"profile": _PROFILE})
    return scenario.model_copy(update={"train": train})
