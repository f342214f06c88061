"""Mistakes in a scenario, in words and with their places, all of them in one error; and names that
mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from testbed.errors import InputError
from testbed.scenario.expand import ALL, groups_of_nodes
from testbed.scenario.link_model import DEFAULT, LOSS_MODELS, UNION_TAGS
from testbed.scenario.model import PACE_NAMES, PACE_TAGS, Scenario
from testbed.scenario.yaml import Document, Place

_NAME_RULE = "a name has lower-case letters, digits and '-', a letter first, 31 characters at most"
_UNIONS = ("events", "algorithms")
"""Lists of alternatives: behind the index pydantic names the alternative it tried."""
_FORMS = {"loss", "reorder", "duplicate", "corrupt"}
"""Keys of alternatives: behind them pydantic names the alternative as well."""
_LONGEST = 600
_COMPARED = 64
"""Characters of a longer name that are compared with the known names."""
MAX_PROBLEMS = 100
"""More are not listed: nobody would read them."""


class Problem(NamedTuple):
    """Something wrong at ``location``."""

    location: Place
    message: str


def report(document: Document, problems: list[Problem], *, hint: str | None = None) -> InputError:
    """One error that lists all, ``file:line: key.path: message``, by line, then the ``hint``."""
    placed = sorted(
        (document.line(location), dotted(location), text) for location, text in problems
    )
    lines = [
        f"{document.path}:{line}: {_cut(f'{path}: ' if path else '')}{_cut(text)}"
        for line, path, text in placed
    ]
    if len(problems) >= MAX_PROBLEMS:
        lines = [*lines[:MAX_PROBLEMS], f"{document.path}: … and perhaps more"]
    return InputError("\n".join(dict.fromkeys(lines)), hint=hint)


def _cut(text: str) -> str:
    """Whatever a file may hold, a message is a line, and no longer than can be read."""
    if not text.isprintable():
        text = "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text[:_LONGEST])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def dotted(location: Place) -> str:
    """``events[0].file``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def from_pydantic(error: ValidationError) -> list[Problem]:
    """Pydantic's findings in our words."""
    details = (
        detail for detail in error.errors(include_url=False) if not _other_alternative(detail)
    )
    return [_problem(detail) for detail in islice(details, MAX_PROBLEMS)]


def _other_alternative(detail: ErrorDetails) -> bool:
    """Return whether it complains of the form, name or mapping, that was not meant."""
    loc, given = detail["loc"], detail["input"]
    if loc[0] != "algorithms" or len(loc) != 3:
        return False
    return loc[2] == "str" if isinstance(given, Mapping) else loc[2] != "str"


def _problem(detail: ErrorDetails) -> Problem:
    loc, kind = detail["loc"], detail["type"]
    location = _without_forms(loc[:2] + loc[3:] if loc and loc[0] in _UNIONS else loc)
    if location and location[-1] == "[key]":
        return Problem(location[:-1], f"{location[-2]!r} is not a name: {_NAME_RULE}")
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        key, known = _tag_at(location)
        return Problem((*location, key), _about_tag(detail, key, known))
    if kind == "extra_forbidden":
        return Problem(location, unknown("key", str(location[-1]), _keys_at(loc[:-1])))
    return Problem(location, _message(detail))


def _without_forms(loc: Place) -> Place:
    return tuple(
        part
        for i, part in enumerate(loc)
        if not (part in UNION_TAGS and i and loc[i - 1] in _FORMS) and part not in PACE_TAGS
    )


def _tag_at(location: Place) -> tuple[str, list[str]]:
    """The key that tells alternatives apart, and what it may say."""
    if location[-1] == "pace" or "paces" in location:
        return "name", list(PACE_NAMES)
    return ("model", list(LOSS_MODELS)) if location[-1] in _FORMS else ("kind", _kinds())


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
    if kind == "float_type" and (share := _percent(given)) is not None:
        return f"{_short(given)} does not work: write a share such as {share:g}"
    says = detail["msg"].replace("Input should", "it should")
    return f"{_short(given)} does not work: {says[0].lower()}{says[1:]}"


def _percent(given: object) -> float | None:
    """The share that ``1 %`` means; None of anything else."""
    number, sign, rest = given.partition("%") if isinstance(given, str) else ("", "", "")
    try:
        return float(number) / 100 if sign and not rest.strip() else None
    except ValueError:
        return None


def _about_tag(detail: ErrorDetails, key: str, known: list[str]) -> str:
    if detail["type"] == "union_tag_not_found":
        return f"this key is missing: use one of {', '.join(known)}"
    return unknown(key, str(detail["ctx"]["tag"]), known)


def _kinds() -> list[str]:
    return list(_resolved(_schema()["properties"]["events"]["items"])["discriminator"]["mapping"])


def unknown(noun: str, name: str, known: list[str]) -> str:
    """An unknown name, the nearest known one, and all of them."""
    near = get_close_matches(name[:_COMPARED], known, n=1)
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
    if "anyOf" in schema:  # keys, or nothing at all
        schema = _resolved(next((form for form in schema["anyOf"] if "$ref" in form), {}))
    return list(schema.get("properties", {}))


def _inside(schema: dict[str, Any], part: int | str) -> dict[str, Any]:
    inner: dict[str, Any]
    if isinstance(part, int):
        inner = schema["items"]
    elif part in UNION_TAGS | PACE_TAGS:
        inner = _alternative(schema, part)
    elif "discriminator" in schema:
        inner = {"$ref": schema["discriminator"]["mapping"][part]}
    elif "anyOf" in schema:
        inner = next(option for option in schema["anyOf"] if "$ref" in option)
    elif "patternProperties" in schema:
        inner = next(iter(schema["patternProperties"].values()))
    else:
        inner = schema["properties"][part]
    return inner


def _alternative(schema: dict[str, Any], tag: str) -> dict[str, Any]:
    """The form of `loss` and the like that is called ``tag``."""
    if tag in _schema()["$defs"]:
        return {"$ref": f"#/$defs/{tag}"}
    forms = schema["anyOf"][0]["oneOf"]
    return next((form for form in forms if "$ref" in form), {})


_NAMES_COMPARED = 200
"""With more nodes than this only groups and racks are suggested: it would take too long."""


class Names:
    """The names of a scenario: ``groups`` has every node and group, each with its group."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = groups_of_nodes(scenario)
        self.groups = {**{group: group for group in scenario.nodes}, **self.nodes}
        self.racks = set(scenario.racks)

    def unknown(self, name: str, *special: str, racks: bool = False) -> str:
        """Return the message for a name that is no node, group or (with ``racks``) rack."""
        near = get_close_matches(name[:64], self._candidates(racks), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        groups = [
            group if g.count is None else f"{group} ({group}-0 to {group}-{g.count - 1})"
            for group, g in self.scenario.nodes.items()
        ]
        known = [
            *(f"`{word}`" for word in special),
            *groups,
            *(sorted(self.racks) if racks else ()),
        ]
        noun = "node, group or rack" if racks and self.racks else "node or group"
        return f"no {noun} is called {name!r}: {meant}Known: {', '.join(known)}"

    def not_one_node(self, name: str) -> str | None:
        """Return what is wrong with ``name`` where one node is needed; None if nothing is."""
        if name in self.nodes:
            return None
        if name in self.groups:
            return f"{name!r} is a group of nodes: name one of them, such as {name}-0"
        return self.unknown(name)

    def _candidates(self, racks: bool) -> list[str]:
        few = len(self.nodes) <= _NAMES_COMPARED
        return [*(self.groups if few else self.scenario.nodes), *(self.racks if racks else ())]


def check_names(scenario: Scenario) -> Iterator[Problem]:
    """Yield problems of names: two things with the same name, or a name that is reserved."""
    owners: dict[str, str] = {}
    for kind, names in (("nodes", list(scenario.nodes)), ("racks", list(scenario.racks))):
        for name in names:
            if name in {DEFAULT, ALL}:
                yield Problem((kind, name), f"{name!r} means something else: use another name")
    for node, group in _every_node(scenario):
        other = owners.setdefault(node, group)
        if other != group or (node != group and node in scenario.nodes):
            yield Problem(
                ("nodes", group), f"two things are called {node!r}: use other group names"
            )
    for rack in scenario.racks:
        if rack in owners or rack in scenario.nodes:
            yield Problem(("racks", rack), f"two things are called {rack!r}: use another name")


def _every_node(scenario: Scenario) -> Iterator[tuple[str, str]]:
    for group, settings in scenario.nodes.items():
        count = settings.count
        names = [group] if count is None else (f"{group}-{i}" for i in range(count))
        for name in names:
            yield name, group
