"""Dilation: every time × D and every rate ÷ D, once; bytes and shares stay what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from testbed.scenario.model import Scenario
from testbed.traces import RateTrace
from testbed.units import Duration, Rate

M = TypeVar("M", bound=BaseModel)


def dilate(scenario: Scenario) -> Scenario:
    """``scenario`` in wall time; it still says by how much it was dilated. Not to be dilated again.

    A queue given as a time holds the same bytes: longer by D, at a rate lower by D.
    """
    return scenario if scenario.dilation == 1.0 else _model(scenario, scenario.dilation)


def dilate_traces(traces: Mapping[str, RateTrace], factor: float) -> dict[str, RateTrace]:
    """``traces`` in wall time; ``factor`` is the dilation of the scenario that names them."""
    if factor == 1.0:
        return dict(traces)
    return {file: trace.dilated(factor) for file, trace in traces.items()}


def _model(model: M, factor: float) -> M:
    fields = {name: _value(getattr(model, name), factor) for name in type(model).model_fields}
    return model.model_copy(update=fields)


def _value(value: Any, factor: float) -> Any:
    """Scale by type: what is a duration or a rate says so itself."""
    if isinstance(value, Duration):
        return Duration(value * factor)
    if isinstance(value, Rate):
        return Rate(round(value / factor))
    if isinstance(value, BaseModel):
        return _model(value, factor)
    if isinstance(value, tuple):
        return tuple(_value(item, factor) for item in value)
    if isinstance(value, dict):
        return {key: _value(item, factor) for key, item in value.items()}
    return value
