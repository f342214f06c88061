"""``python -m tools.rehouse check | move | names``, in the root of a clean checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.rehouse.move import Mover
from tools.rehouse.tree import Tree


def main() -> None:
    """Carry out one command."""
    command = sys.argv[1] if len(sys.argv) > 1 else "check"
    tree = Tree(Path.cwd())
    if command == "move":
        Mover(tree).move()
    elif command == "check":
        from tools.rehouse.check import check

        check(tree)
        return
    for line in sorted(set(tree.reports)):
        print(line)
    print(len(tree.renamed), "names changed")
    for (module, name), new in sorted(tree.renamed.items()):
        print(f"renamed: {module}:{name} > {new}")


if __name__ == "__main__":
    main()
