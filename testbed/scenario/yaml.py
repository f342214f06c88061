"""YAML 1.2 text to plain data, with the line of every key; hostile or careless text is refused.

Refused with file and line: duplicate keys, keys that are no words, tags, deep nesting, and aliases
that expand to more than a small budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from testbed.errors import InputError

Place = tuple[str | int, ...]
"""Keys and indices from the top: ``("events", 0, "file")``."""

MAX_DEPTH = 24
ALIAS_BUDGET = 1000
"""Values that aliases may add to those that are written."""

_TAG = "tag:yaml.org,2002:"
_HINTS = {
    "\\t": "Indent with spaces, not tabs",
    "mapping values are not allowed": (
        "Text with ': ' in it needs quotes; keys of one mapping line up"
    ),
    "another document": "One scenario a file: remove the '---'",
    "undefined alias": "A text that begins with '*' needs quotes",
}


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data and where it was written."""

    path: str
    data: Any
    lines: dict[Place, int]

    def line(self, location: Place) -> int:
        """The line of ``location``, or of the nearest thing around it that is written."""
        while location not in self.lines and location:
            location = location[:-1]
        return self.lines.get(location, 1)


class _Nested(Exception):
    """Raised at the first thing that is nested too deeply, with its line."""


class _Composer(Composer):
    """Goes no deeper than ``MAX_DEPTH``: the more levels there are, the longer the next takes."""

    _level = -1

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._level == MAX_DEPTH:
            raise _Nested(self.parser.peek_event().start_mark.line + 1)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node


def parse(text: str, path: str) -> Document:
    """The data written in ``text``. Raises InputError with ``path:line``."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    yaml.composer.warn_double_anchors = False  # a later anchor of the same name is no mistake
    try:
        root = yaml.compose(text)
    except _Nested as error:
        raise _too_deep(path, error.args[0]) from None
    except MarkedYAMLError as error:
        raise _broken(error, path) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            "a control character is not allowed here", where=f"{path}:{line}"
        ) from None
    except (YAMLError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        raise InputError(f"not YAML: {error}", where=path) from None
    if root is None:
        hint = "`testbed init` writes a scenario to start from"
        raise InputError("the file is empty", where=path, hint=hint)
    builder = _Builder(path, yaml)
    return Document(path, builder.value(root, ()), builder.lines)


@dataclass(slots=True)
class _Builder:
    path: str
    yaml: YAML
    lines: dict[Place, int] = field(default_factory=dict)
    _visited: set[int] = field(default_factory=set)
    _repeated: int = 0

    def value(self, node: Node, location: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(location, line)
        self._count(node, line)
        if len(location) > MAX_DEPTH:
            raise _too_deep(self.path, line)
        if isinstance(node, MappingNode):
            return self._mapping(node, location)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*location, i)) for i, item in enumerate(node.value)]
        return self._scalar(node)

    def _count(self, node: Node, line: int) -> None:
        self._repeated += id(node) in self._visited
        self._visited.add(id(node))
        if self._repeated > ALIAS_BUDGET:
            raise self._error(
                line, f"aliases expand to more than {ALIAS_BUDGET} values", "Write them out"
            )

    def _mapping(self, node: MappingNode, location: Place) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, line)
            if key in data:
                first = self.lines[*location, key]
                raise self._error(line, f"key {key!r} is there twice", f"First in line {first}")
            self.lines[*location, key] = line
            data[key] = self.value(value_node, (*location, key))
        return data

    def _key(self, node: Node, line: int) -> str:
        if not isinstance(node, ScalarNode) or self._kind(node) not in {"str", "merge"}:
            raise self._error(line, "a key that is not a word", "Put it in quotes if it is meant")
        if self._kind(node) == "merge":
            raise self._error(line, "merge keys (<<) are not read", "Links inherit from `default`")
        return self._text(node, line)

    def _text(self, node: Node, line: int) -> str:
        value = str(node.value)
        if any(ch == "\0" or "\ud800" <= ch <= "\udfff" for ch in value):
            raise self._error(line, "a character that is none: an escape for zero or half a pair")
        return value

    def _scalar(self, node: Node) -> Any:
        line, kind = node.start_mark.line + 1, self._kind(node)
        if kind in {"str", "timestamp"}:
            return self._text(node, line)
        if kind == "null":
            return None
        if kind == "bool" and node.value.lower() in {"true", "false"}:
            return node.value.lower() == "true"
        if kind in {"int", "float"}:
            try:
                return getattr(self.yaml.constructor, f"construct_yaml_{kind}")(node)
            except ValueError:
                raise self._error(
                    line, f"{node.value[:40]!r} is not a number we can read"
                ) from None
        raise self._error(
            line, f"{node.value[:40]!r} has the tag {str(node.tag)[:60]}", "Leave tags out"
        )

    def _kind(self, node: Node) -> str:
        return str(node.tag).removeprefix(_TAG)

    def _error(self, line: int, message: str, hint: str | None = None) -> InputError:
        return InputError(message, where=f"{self.path}:{line}", hint=hint)


def _broken(error: MarkedYAMLError, path: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else path
    problem = str(error.problem or error.context)
    hint = next((hint for part, hint in _HINTS.items() if part in problem), None)
    return InputError(f"not YAML: {problem}", where=where, hint=hint)


def _too_deep(path: str, line: int) -> InputError:
    return InputError(f"nested more than {MAX_DEPTH} levels deep", where=f"{path}:{line}")
