"""Mutations that cosmic-ray lacks: statements left out, ``min`` for ``max``, ``not in`` for ``in``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator

Position = tuple[tuple[int, int], tuple[int, int]]
ARITHMETIC = ("+=", "-=", "*=", "/=", "//=", "%=", "|=", "&=", "^=", "<<=", ">>=", "**=")
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
MEMBERSHIP = {"in": " not in", "not in": " in"}


class RemoveStatement(Operator):
    """Leave out a call whose result nobody takes, or an assignment to an attribute or an element."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Where ``node`` can be left out."""
        is_call = node.type == "atom_expr" and _is_statement(node)
        if is_call or (node.type == "expr_stmt" and (_is_augmented(node) or _is_stored(node))):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ARG002
        """Put ``pass`` in its place."""
        prefix = node.get_first_leaf().prefix
        return parso.parse(f"{prefix}pass").children[0]

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("a.clear()", "pass"), Example("a.b = 1", "pass"))


class SwapName(Operator):
    """Call the opposite function: the least for the greatest, any for all."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Where ``node`` is such a name, and called or handed on."""
        if node.type == "name" and node.value in {"min", "max", "any", "all"}:
            previous = node.get_previous_leaf()
            if previous is None or previous.value not in {".", "def", "import"}:
                following = node.get_next_leaf()
                if following is not None and following.value in {"(", ","}:
                    yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ARG002
        """Rename it."""
        node.value = SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("min(a, b)", "max(a, b)"),)


class ReplaceMembership(Operator):
    """Ask for the opposite of membership."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Every ``in`` and ``not in`` of a comparison."""
        if node.type == "comparison":
            for part in node.children[1::2]:
                if part.get_code().strip() in MEMBERSHIP:
                    yield part.start_pos, part.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replace the one that is number ``index``."""
        places = [
            place
            for place in range(1, len(node.children), 2)
            if node.children[place].get_code().strip() in MEMBERSHIP
        ]
        part = node.children[places[index]]
        node.children[places[index]] = parso.parse(MEMBERSHIP[part.get_code().strip()])
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("a in b", "a not in b"),)


class ReplaceAugmented(Operator):
    """Add for subtract where a variable is updated in place, multiply for divide."""

    opposite = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Every such operator."""
        if node.type == "operator" and node.value in self.opposite:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ARG002
        """Put its opposite in its place."""
        node.value = self.opposite[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("a += b", "a -= b"),)


class ReplaceException(Operator):
    """Handle an exception that nobody raises. cosmic-ray's own fails where the name has a dot."""

    never = "StopAsyncIteration"

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Every exception of an ``except``."""
        for exception in self._exceptions(node):
            yield exception.start_pos, exception.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Rename the one that is number ``index``."""
        first, *rest = _leaves(self._exceptions(node)[index])
        first.value = self.never
        for leaf in rest:
            leaf.value = ""
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        after = "try: a\nexcept StopAsyncIteration: b\n"
        return (Example("try: a\nexcept c.D: b\n", after),)

    @staticmethod
    def _exceptions(node: Any) -> list[Any]:
        if node.type != "except_clause":
            return []
        caught = node.children[1]
        if caught.type != "atom":
            return [caught]
        inside = caught.children[1]
        return inside.children[::2] if inside.type == "testlist_comp" else [inside]


def _leaves(node: Any) -> list[Any]:
    children = getattr(node, "children", None)
    return [node] if children is None else [leaf for child in children for leaf in _leaves(child)]


def _is_statement(node: Any) -> bool:
    return node.parent.type == "simple_stmt" and node.children[-1].type == "trailer"


def _is_augmented(node: Any) -> bool:
    return getattr(node.children[1], "value", None) in ARITHMETIC


def _is_stored(node: Any) -> bool:
    return node.children[0].type == "atom_expr" and "=" in [
        getattr(child, "value", None) for child in node.children
    ]


OWN = {
    operator.__name__: operator
    for operator in (
        RemoveStatement,
        SwapName,
        ReplaceMembership,
        ReplaceAugmented,
        ReplaceException,
    )
}
