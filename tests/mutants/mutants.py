"""The mutants of a file: every place where an operator applies, but for those that no test should mind."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.plugins import get_operator
from operators import OWN
from places import Place, Places

NEGATED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file. ``key`` names it as long as its line stays as it is, wherever that moves."""

    key: str
    path: str
    lines: tuple[int, ...]
    """Those of its statement: tests that reach none of them cannot see it."""
    function: str | None
    """The outermost function that it is in, as its code's ``co_qualname``; None: it acts on import."""
    cut: tuple[int, int]
    """The lines from … up to … of the file (counted from 0) are replaced …"""
    put: tuple[str, ...]
    """… by these."""

    def source(self) -> str:
        """The whole file, mutated."""
        lines = Path(self.path).read_text().splitlines()
        lines[slice(*self.cut)] = self.put
        return "\n".join(lines) + "\n"


def mutants_of(path: str, operators: list[str]) -> list[Mutant]:
    """All of a file, by line. Of several that come to the same there is one."""
    text = Path(path).read_text()
    found: list[tuple[int, int, str, Place, str]] = []
    programs = {_program(text)}
    for start, place, changed in _changes(text, operators):
        program = _program(changed)
        if program is not None and program not in programs:
            programs.add(program)
            found.append((*start, shown(text, changed), place, changed))
    counts: dict[str, int] = {}
    mutants = []
    for _, _, change, place, changed in sorted(found, key=lambda entry: entry[:3]):
        key = f"{path} {place.name}: {change}"
        counts[key] = counts.get(key, 0) + 1
        key = key if counts[key] == 1 else f"{key} ({counts[key]})"
        mutants.append(Mutant(key, path, place.lines, place.function, *_replaced(text, changed)))
    return mutants


def _changes(text: str, operators: list[str]) -> Iterator[tuple[tuple[int, int], Place, str]]:
    """Where, and the whole file after it. One tree is changed and put back, since parsing takes long."""
    tree, places = get_ast(text), Places(text)
    nodes = list(ast_nodes(tree))
    for name in operators:
        operator = OWN[name]() if name in OWN else get_operator(f"core/{name}")()
        for node in nodes:
            for index, (start, _) in enumerate(list(operator.mutation_positions(node))):
                place = places.at(*start)
                if place is not None:
                    restore = _snapshot(node)
                    _put(node, operator.mutate(node, index))
                    changed = tree.get_code()
                    restore()
                    yield start, place, changed
        assert tree.get_code() == text


def _put(node: Any, instead: Any) -> None:
    if instead is not node:
        siblings = node.parent.children
        siblings[siblings.index(node)] = instead


def _snapshot(node: Any) -> Callable[[], None]:
    """What undoes a mutation of ``node``: of its value, its children, their values, or of its place."""
    parent = node.parent
    siblings = list(parent.children) if parent else []
    children = list(getattr(node, "children", []))
    near = ast_nodes(node) if node.type == "except_clause" else (node, *children)
    values = [(leaf, leaf.value) for leaf in near if hasattr(leaf, "value")]

    def restore() -> None:
        if parent:
            parent.children[:] = siblings
        if children:
            node.children[:] = children
        for leaf, value in values:
            leaf.value = value

    return restore


class _Plain(ast.NodeTransformer):
    """``not a < b`` as ``a >= b``, so that either is one mutant."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        inner = node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            return ast.Compare(inner.left, [NEGATED[type(inner.ops[0])]()], inner.comparators)
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):  # fmt: skip
            return inner.operand
        return node


def _program(text: str) -> str | None:
    """The program that ``text`` is, without its layout; None if it is none."""
    try:
        return ast.dump(_Plain().visit(ast.parse(text)))
    except SyntaxError:
        return None


def _replaced(text: str, changed: str) -> tuple[tuple[int, int], tuple[str, ...]]:
    before, after = text.splitlines(), changed.splitlines()
    top = _common(before, after)
    bottom = _common(before[top:][::-1], after[top:][::-1])
    return (top, len(before) - bottom), tuple(after[top : len(after) - bottom])


def shown(text: str, changed: str) -> str:
    """The first line that differs, with what is replaced by what in brackets."""
    (top, stop), put = _replaced(text, changed)
    old, new = (
        _tokens(" ".join(map(str.strip, lines))) for lines in (text.splitlines()[top:stop], put)
    )
    left = _common(old, new)
    right = _common(old[left:][::-1], new[left:][::-1])
    cut, into = ("".join(part[left : len(part) - right]).strip() for part in (old, new))
    return f"{''.join(old[:left])}[{cut} → {into}]{''.join(old[len(old) - right :])}"


def _tokens(line: str) -> list[str]:
    return re.findall(r"[\w.]+|\s+|[=<>!+*/-]+|.", line)


def _common(first: list[str], second: list[str]) -> int:
    """How many elements from the first on are the same in both."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
