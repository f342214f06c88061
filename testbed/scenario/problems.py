"""What is wrong with a scenario, in words and with its place; all of it in one error."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from testbed.errors import InputError
from testbed.scenario.model import Scenario
from testbed.scenario.yaml_text import Document, Place

_NAME_RULE = "a name has lower-case letters, digits and '-', a letter first, 31 characters at most"
_UNIONS = ("events", "algorithms")
"""Lists of alternatives: behind the index pydantic names the alternative it tried."""


class Problem(NamedTuple):
    """Something wrong at ``place``."""

    place: Place
    message: str


def report(document: Document, problems: list[Problem]) -> InputError:
    """One error that lists all of them, ``file:line: key.path: message``, in the file's order."""
    placed = sorted((document.line(place), dotted(place), text) for place, text in problems)
    lines = [
        f"{document.path}:{line}: {f'{path}: ' if path else ''}{text}"
        for line, path, text in placed
    ]
    return InputError("\n".join(dict.fromkeys(lines)))


def dotted(place: Place) -> str:
    """``events[0].file``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")


def from_pydantic(error: ValidationError) -> list[Problem]:
    """Pydantic's findings in our words."""
    return [
        _problem(detail)
        for detail in error.errors(include_url=False)
        if not _other_alternative(detail)
    ]


def _other_alternative(detail: ErrorDetails) -> bool:
    """Algorithms are names or mappings: complaints about the form that was not meant say nothing."""
    loc, given = detail["loc"], detail["input"]
    if loc[0] != "algorithms" or len(loc) != 3:
        return False
    return loc[2] == "str" if isinstance(given, Mapping) else loc[2] != "str"


def _problem(detail: ErrorDetails) -> Problem:
    loc, kind = detail["loc"], detail["type"]
    place = loc[:2] + loc[3:] if loc and loc[0] in _UNIONS else loc
    if place and place[-1] == "[key]":
        return Problem(place[:-1], f"{place[-2]!r} is not a name: {_NAME_RULE}")
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return Problem((*place, "kind"), _about_kind(detail))
    if kind == "extra_forbidden":
        return Problem(place, unknown("key", str(place[-1]), _keys_at(loc[:-1])))
    return Problem(place, _message(detail))


def _message(detail: ErrorDetails) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return "this key is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return f"{given!r} does not work: {_NAME_RULE}"
    if kind == "literal_error":
        return f"{_short(given)} does not work: use {context['expected']}"
    if kind in {"tuple_type", "list_type"}:
        return f"a list is needed, such as [a, b], not {_short(given)}"
    if kind in {"model_type", "dict_type"}:
        return f"keys with values are needed here, not {_short(given)}"
    if kind == "string_type" and detail["loc"][0] == "algorithms":
        return f"{_short(given)} is not an algorithm: write a name, or {{name: …, from: …}}"
    says = detail["msg"].replace("Input should", "it should")
    return f"{_short(given)} does not work: {says[0].lower()}{says[1:]}"


def _about_kind(detail: ErrorDetails) -> str:
    kinds = list(_resolved(_schema()["properties"]["events"]["items"])["discriminator"]["mapping"])
    if detail["type"] == "union_tag_not_found":
        return f"this key is missing: use one of {', '.join(kinds)}"
    return unknown("kind", str(detail["ctx"]["tag"]), kinds)


def unknown(noun: str, name: str, known: list[str]) -> str:
    """An unknown name, the nearest known one, and all of them."""
    near = get_close_matches(name, known, n=1)
    meant = f" did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(known) if known else "none"
    return f"unknown {noun} {name!r}:{meant} Known: {listed}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@cache
def _schema() -> dict[str, Any]:
    return Scenario.model_json_schema()


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    definition: dict[str, Any] = _schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    return definition


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are known at a place, as pydantic names places."""
    schema = _schema()
    for part in loc:
        schema = _resolved(_inside(schema, part))
    return list(schema.get("properties", {}))


def _inside(schema: dict[str, Any], part: int | str) -> dict[str, Any]:
    found: dict[str, Any]
    if isinstance(part, int):
        found = schema["items"]
    elif "discriminator" in schema:
        found = {"$ref": schema["discriminator"]["mapping"][part]}
    elif "anyOf" in schema:
        found = next(option for option in schema["anyOf"] if "$ref" in option)
    elif "patternProperties" in schema:
        found = next(iter(schema["patternProperties"].values()))
    else:
        found = schema["properties"][part]
    return found
