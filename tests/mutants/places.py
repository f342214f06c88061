"""What a place of a file belongs to, and whether anything there is to be mutated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Point = tuple[int, int]

READ_BY_PEOPLE = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a mutation is: in which function or class, which lines its statement has."""

    name: str
    lines: tuple[int, ...]
    function: str | None
    """The outermost function around it, as its code's ``co_qualname``; None: it acts on import."""


class Places:
    """The statements of a file."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._left_out = [_span(node) for node in _left_out(self._tree)]

    def at(self, line: int, column: int) -> Place | None:
        """The place of a line (from 1) and column (from 0). None: nothing there is to be mutated."""
        point = line, column
        if any(start <= point < stop for start, stop in self._left_out):
            return None
        names: list[str] = []
        function: str | None = None
        scope: ast.AST = self._tree
        while (inner := _statement_at(scope, point)) is not None:
            scope, in_header = inner, _statement_at(inner, point) is None
            if isinstance(inner, ast.ClassDef | ast.FunctionDef):
                names.append(inner.name)
                is_function = isinstance(inner, ast.FunctionDef)
                if is_function and in_header and not _in_default(inner, point):
                    return None
                if is_function and not in_header and function is None:
                    function = ".".join(names)
        if READ_BY_PEOPLE.intersection(names):
            return None
        return Place(".".join(names) or "(module)", _lines(scope), function)


def _statement_at(scope: ast.AST, point: Point) -> ast.AST | None:
    """The statement or clause directly in ``scope`` that ``point`` is in."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            start, stop = _span(child)
            if start <= point < stop:
                return child
    return None


def _in_default(node: Any, point: Point) -> bool:
    defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value)]
    return any(start <= point < stop for start, stop in map(_span, defaults))


def _lines(node: Any) -> tuple[int, ...]:
    """Of a compound statement those of its head."""
    (first, _), (last, _) = _span(node)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        last = max(first, body[0].lineno - 1)
    return tuple(range(first, last + 1))


def _span(node: Any) -> tuple[Point, Point]:
    """Beginning and end of a node, its decorators included."""
    if isinstance(node, ast.match_case):
        start, stop = node.pattern, node.body[-1]
        return (start.lineno, 0), (stop.end_lineno, stop.end_col_offset)
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    column = node.col_offset if first == node.lineno else 0
    return (first, column), (node.end_lineno, node.end_col_offset)


def _left_out(tree: ast.AST) -> Iterator[ast.AST]:
    """Annotations, decorators, messages of errors, text, ``strict=`` of zip, and what only type checkers run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from node.decorator_list
        if isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
            yield node
        if isinstance(node, ast.keyword) and node.arg == "strict":
            yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Annotated["):
            yield node
