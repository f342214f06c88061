"""Circles of imports: ``python tests/import_cycles.py [PACKAGE…]`` prints each and exits 1 if there is one.

All imports count, those in functions and under ``TYPE_CHECKING``, too. A package's ``__init__`` counts where a name is taken
from it, not where one of its modules is.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules(root: Path, packages: tuple[str, ...]) -> dict[str, Path]:
    """Every module of these packages, by its dotted name."""
    files = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ``known`` that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            targets = [
                name if (name := f"{node.module}.{alias.name}") in known else node.module
                for alias in node.names
            ]
        else:
            continue
        yield from (name for name in targets if name in known and name != module)


def graph(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Who imports whom."""
    known = modules(root, packages)
    return {name: set(imports(name, path, known)) for name, path in known.items()}


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two modules or more, the largest first (Tarjan's algorithm, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []
    for start in edges:
        if start in order:
            continue
        order[start] = low[start] = len(order)
        stack.append(start)
        work = [(start, iter(sorted(edges[start])))]
        while work:
            module, others = work[-1]
            for other in others:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in stack:
                    low[module] = min(low[module], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == order[module]:
                    at = stack.index(module)
                    if len(stack) - at > 1:
                        components.append(sorted(stack[at:]))
                    del stack[at:]
    return sorted(components, key=len, reverse=True)


def main() -> int:
    """Print the circles of the packages that are named."""
    there = circles(graph(ROOT, tuple(sys.argv[1:]) or ("testbed", "analysis")))
    for component in there:
        sys.stdout.write(f"{len(component)} modules: {' '.join(component)}\n")
    sys.stdout.write(f"{len(there)} circles\n")
    return bool(there)


if __name__ == "__main__":
    sys.exit(main())
