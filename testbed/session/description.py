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
    """Write the manifest and the resolved scenario.

    ``links``: every direction as asked and as held. ``model``: of links that are modelled, how.
    """
    pace = loaded.wall().train.pace
    directory.write_text("scenario.yaml", dump(loaded.scenario))
    directory.write_json(
        "manifest.json",
        manifest(
            scenario_name=loaded.scenario.name,
            content_hash=loaded.hash,
            algorithm=algorithm,
            seed=seed,
            dilation=loaded.scenario.dilation,
            pace_s=None if pace is None else float(pace),
            nodes={spec.name: asdict(spec) for spec in specs},
            links=links,
            fabric=fabric,
            congestion=loaded.scenario.congestion,
            model=model,
        ),
    )
