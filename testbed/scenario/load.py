"""A scenario file and its traces, read, checked and dilated, or one error that lists all that is
wrong; the resolved scenario and the JSON schema (``python -m testbed.scenario.load``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from io import StringIO
from math import fmod
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from testbed.errors import InputError
from testbed.scenario import timeline
from testbed.scenario.diagnostics import Problem, dotted, from_pydantic, report
from testbed.scenario.link_model import TraceEvent
from testbed.scenario.model import RecordedPace, Scenario, Swarm
from testbed.scenario.profile import ProfileFile, profiled, shipped
from testbed.scenario.recorded_paces import recorded_paces
from testbed.scenario.timeline import Timeline
from testbed.scenario.validate import check
from testbed.scenario.yaml import Document, parse
from testbed.traces.rate_trace import RateTrace
from testbed.traces.readers import read
from testbed.units import Duration, Rate
from testbed.user_files import text_of

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


MAX_BYTES = 2**20
"""Larger scenario files are refused."""


@dataclass(frozen=True)
class Loaded:
    """A valid scenario as written: model time, not dilated. A profile's time is its pace."""

    scenario: Scenario
    source: Path
    traces: dict[str, RateTrace]
    """Traces, keyed by the event's ``key``: its file, and the column where one is named."""
    text: str
    hash: str
    """SHA-256 over the resolved scenario, its traces, profile and recorded paces."""
    profile: ProfileFile | None = None
    """The profile that ``train.profile`` names, if that is a file."""
    step_times: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Recorded times of the paces from files, by the pace's ``key``: seconds of model time."""

    def wall(self) -> Scenario:
        """The scenario in wall time: dilation applied."""
        return dilate(self.scenario)

    def timeline(self) -> Timeline:
        """The history of its links in wall time; built once."""
        return self._timeline

    def where(self, *location: str | int) -> str:
        """Return ``file:line: key.path`` of what is, or would be, written at ``location``."""
        return f"{self.source}:{parse(self.text, '').line(location)}: {dotted(location)}"

    @cached_property
    def _timeline(self) -> Timeline:
        traces = dilate_traces(self.traces, self.scenario.dilation)
        return timeline.build(self.wall(), traces)


def load(path: Path, *, timed: bool = True, trains: bool = True) -> Loaded:
    """Read ``path``, and the traces, profile and paces it names (relative to it).

    Not ``timed``: whatever profile it names may still have to be made, and is not looked at.
    Raises InputError that lists every mistake as ``file:line: key.path: what, and what works``.
    """
    text = _text(path)
    document = parse(text, str(path))
    scenario = _validated(document)
    traces, problems = _traces(scenario, path.parent)
    scenario, profile, wrong = (
        profiled(scenario, path.parent) if timed else (scenario, None, list[Problem]())
    )
    step_times, unread = recorded_paces(scenario, path.parent)
    beside = problems + wrong + unread
    if problems := beside + check(scenario, traces, trains=trains):
        hint = _meant(scenario, traces) if trains and not beside else None
        raise report(document, problems, hint=hint)
    hash_ = scenario_hash(scenario, traces, profile, step_times)
    return Loaded(scenario, path, traces, text, hash_, profile, step_times)


def _meant(scenario: Scenario, traces: Mapping[str, RateTrace]) -> str | None:
    """Return a hint where only training is wrong, and the scenario says nothing of training."""
    if {"train", "algorithms"} & scenario.model_fields_set:
        return None
    return None if check(scenario, traces, trains=False) else _FOR_JOBS


_LATER = ("classes", "down_density")
"""Keys without a value that are no part of the hash: scenarios of before have the same."""


def scenario_hash(
    scenario: Scenario,
    traces: dict[str, RateTrace],
    profile: ProfileFile | None = None,
    step_times: Mapping[str, tuple[float, ...]] | None = None,
) -> str:
    """SHA-256 in hexadecimal of everything that a run depends on."""
    # where a swarm's nodes are is no part of the experiment
    whole = scenario.model_dump(mode="json", by_alias=True, exclude={"swarm"})
    for part in (whole["train"], *whole["algorithms"]):
        for key in _LATER:
            if isinstance(part, dict) and part.get(key, "") is None:
                del part[key]
    # the same traces, profile and paces are the same experiment, wherever their files are
    rates = {
        key: [trace.times_s, trace.rates_bits, trace.duration_s] for key, trace in traces.items()
    }
    named = {key: _digest(content) for key, content in rates.items()}
    for event, fields in zip(scenario.events, whole["events"], strict=True):
        if isinstance(event, TraceEvent) and event.key in named:
            fields["file"] = named[event.key]
    parts = {} if profile is None else {"profile": profile.model_dump(mode="json")}
    if parts and scenario.train.profile not in shipped():
        whole["train"]["profile"] = _digest(parts)
    times = dict(step_times or {})
    _name_paces(scenario, whole["train"], {key: _digest(own) for key, own in times.items()})
    content = {
        "scenario": whole,
        "traces": {named[key]: content for key, content in rates.items()},
        **parts,
        **({"step_times": {_digest(own): own for own in times.values()}} if times else {}),
    }
    return _digest(content)


def _name_paces(scenario: Scenario, train: dict[str, Any], digests: Mapping[str, str]) -> None:
    """Name recorded paces in ``train`` by the digests of their times, by key, not by their files.

    Their columns have no name then: times are those of one.
    """
    paces = [(scenario.train.pace, train["pace"])]
    paces += [(pace, train["paces"][name]) for name, pace in scenario.train.paces.items()]
    for pace, fields in paces:
        if isinstance(pace, RecordedPace) and pace.key in digests:
            fields.update(file=digests[pace.key], column=None)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _validated(document: Document) -> Scenario:
    if not isinstance(document.data, dict):
        raise report(document, [Problem((), "a scenario is keys with values, `name: …` first")])
    try:
        return Scenario.model_validate(document.data)
    except ValidationError as error:
        raise report(document, from_pydantic(error)) from None
    except ValueError as error:  # numbers too long to be written in a message
        raise report(document, [Problem((), f"a number is out of all bounds: {error}")]) from None


def _traces(scenario: Scenario, folder: Path) -> tuple[dict[str, RateTrace], list[Problem]]:
    traces: dict[str, RateTrace] = {}
    problems: list[Problem] = []
    for i, event in enumerate(scenario.events):
        if isinstance(event, TraceEvent) and event.key not in traces:
            column = {} if event.column is None else {"column": event.column}
            try:
                traces[event.key] = read(folder / event.file, **column)
            except InputError as error:
                exists = os.path.exists(folder / event.file)  # noqa: PTH110 - a bad name is none
                hint = "" if exists else "; paths start at the scenario file"
                problems.append(Problem(("events", i, "file"), f"{error}{hint}"))
    return traces, problems


def _text(path: Path) -> str:
    try:
        return text_of(path, MAX_BYTES, _TEXT)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            hint = _neighbours(path)
            raise InputError("no such file", where=str(path), hint=hint) from None
        raise


_FOR_JOBS = (
    "`testbed exec`, which trains nothing itself, takes this scenario as it is: "
    "`validate --exec` and `plan --exec` look at it so"
)
_TEXT = "A scenario is YAML text; `testbed init` writes one to start from"


def _neighbours(path: Path) -> str:
    """Return a hint at what could have been meant: the scenarios beside ``path``."""
    folder = path.parent
    scenarios = sorted(str(other) for other in folder.glob("*.yaml")) if folder.is_dir() else []
    listed = ", ".join(scenarios[:10])
    return f"There are {listed}" if scenarios else "`testbed init` writes one to start from"


def for_seed(loaded: Loaded, seed: int) -> Loaded:
    """Return ``loaded`` with traces begun where ``seed`` has them begin. Its hash stays the
    file's."""
    events = tuple(
        _begun(event, loaded.traces[event.key].duration_s, seed)
        if isinstance(event, TraceEvent) and event.offset_per_seed
        else event
        for event in loaded.scenario.events
    )
    if events == loaded.scenario.events:
        return loaded
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"events": events}))


def _begun(event: TraceEvent, duration_s: float, seed: int) -> TraceEvent:
    offset = round(fmod(event.offset + seed * event.offset_per_seed, duration_s), 9)
    still = {"offset": Duration(offset), "offset_per_seed": Duration(0.0)}
    return event.model_copy(update=still)


def dump(scenario: Scenario) -> str:
    """YAML that ``load`` reads back as an equal scenario (given its traces)."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = StringIO()
    unused = {"swarm"} if scenario.swarm == Swarm() else set()
    content = scenario.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=unused)
    yaml.dump(content, stream)
    return stream.getvalue()


PATH = Path(str(files("testbed.scenario"))) / "schema.json"


def document() -> dict[str, Any]:
    """The schema as data."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(mode="validation"),
    }


def text() -> str:
    """The schema as it should stand in ``schema.json``."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
