"""A scenario written back as YAML, every inherited default in its place: ``scenario.yaml`` of a run."""

from __future__ import annotations

from io import StringIO

from ruamel.yaml import YAML

from testbed.scenario.model import Scenario


def dump(scenario: Scenario) -> str:
    """YAML that ``load`` reads back as an equal scenario (given its traces)."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = StringIO()
    yaml.dump(scenario.model_dump(mode="json", by_alias=True, exclude_none=True), stream)
    return stream.getvalue()
