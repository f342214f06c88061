"""What is wrong with a map: sizes, circles of imports, layers."""

from __future__ import annotations

from collections import defaultdict

from tools.rehouse.tree import Target, Tree

LAYERS = [
    ["cli", "bench", "analysis"], ["runner"], ["fabric", "training", "fidelity", "comm_trace"],
    ["host", "compatibility"], ["links", "exchange", "algorithms"], ["transport", "records"],
    ["scenario", "compress", "control"], ["traces", "topology", "node", "process", "journal", "user_files"],
    ["errors", "units", "registry"],
]  # fmt: skip
ALLOWED = {("comm_trace", "fidelity"), ("compatibility", "algorithms")}


def components(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == node:
                    break
            if len(part) > 1:
                out.append(sorted(part))

    import sys

    sys.setrecursionlimit(10000)
    for node in list(edges):
        if node not in index:
            visit(node)
    return sorted(out, key=len, reverse=True)


def room(path: str) -> str:
    """The room of a file."""
    parts = path.removesuffix(".py").split("/")
    return parts[0] if parts[0] != "testbed" or len(parts) < 2 else parts[1]


def edges_of(tree: Tree, target: Target) -> list[tuple[str, str, str, str]]:
    """Imports of a target: (other's path, section, old file, what)."""
    out = []
    for source in target.sources:
        used = {use.name for use in source.uses}
        for statement in source.imports:
            for alias in statement.aliases:
                if (
                    alias.local not in used
                    and alias.module in tree.home
                    and statement.start == 0 == statement.end
                ):
                    continue
                key = tree.meaning(alias)
                home = tree.home_of(key) or (
                    tree.home.get(alias.module) if alias.name is None else None
                )
                if home and home is not target:
                    out.append(
                        (home.path, statement.section, source.path, f"{alias.module}.{alias.name}")
                    )
    return out


HEAVY = frozenset(
    {"torch", "numba", "llvmlite", "docker", "pyroute2", "sklearn", "matplotlib", "scipy"}
)


LIGHT = ("testbed.cli", "testbed.cli.validate", "testbed.cli.plan", "testbed.algorithms", "testbed.scenario.load", "testbed.session.run",
    "testbed.session.node", "testbed.links.agent", "testbed.fabric.enter", "testbed.session.flow", "testbed.session.launch",
    "testbed.messages.player", "testbed.train.tasks", "testbed.train.models", "testbed.exchange.builtin", "testbed.setup.__main__",
    "testbed.fabric.sim.node", "testbed.session.play_run", "testbed.compress.kernels.warm", "testbed.bench.busy",
    "testbed.fabric.docker.keeper", "testbed.guest.keeper", "testbed.guest.inside", "testbed.mark", "analysis.load",
)  # fmt: skip
"""Modules that are started in great numbers, or must work where libraries are missing."""


def chains(tree: Tree, start: str, after: bool) -> dict[str, list[str]]:
    """Big libraries that come with an import of a module, each with a shortest way to it."""
    first = tree.home[start].path if after else start
    ways = {first: [first]}
    queue, out = [first], {}
    targets = {target.path: target.sources for target in tree.targets}
    while queue:
        name = queue.pop(0)
        sources = targets[name] if after else [tree.by_module[name]]
        for source in sources:
            others = [
                ".".join(source.module.split(".")[:depth])
                for depth in range(1, source.module.count(".") + 1)
            ]
            if after:
                others = [tree.home[source.module].module.rpartition(".")[0]]
                others = [
                    t.sources[0].module for t in tree.targets if t.merged and t.module in others
                ]
            for statement in source.imports:
                if statement.section == "top":
                    for alias in statement.aliases:
                        key = tree.meaning(alias)
                        if key[0] in {"name", "module"}:
                            others.append(key[1])
                        elif alias.module in tree.home:
                            others.append(alias.module)
                        elif alias.module.split(".")[0] in HEAVY:
                            out.setdefault(alias.module.split(".")[0], ways[name])
            for other in others:
                if other in tree.home:
                    place = tree.home[other].path if after else other
                    if place not in ways:
                        ways[place] = [*ways[name], place]
                        queue.append(place)
    return out


def heavy(tree: Tree) -> None:
    """Report what comes with modules that should be light, and does not today."""
    for module in LIGHT:
        if module in tree.home:
            before, now = chains(tree, module, False), chains(tree, module, True)
            for library in sorted(now.keys() - before.keys()):
                print(f"heavy: {module} would load {library}: {' > '.join(now[library])}")


def check(tree: Tree) -> None:
    """Print everything."""
    tree.name_all()
    for line in sorted(set(tree.reports)):
        print(line)
    heavy(tree)
    for target in tree.targets:
        if (
            target.merged
            and len({source.future for source in target.sources if source.globals}) > 1
        ):
            print(
                f"future: not all sources of {target.path} have `from __future__ import annotations`"
            )
    sizes = []
    graph: dict[str, list[tuple[str, str, str, str]]] = {}
    for target in tree.targets:
        if target.merged:
            size = sum(source.text.count("\n") for source in target.sources) - 12 * (
                len(target.sources) - 1
            )
            sizes.append(size)
            if size > 480:
                print(f"size: {target.path} {size}")
            graph[target.path] = edges_of(tree, target)
    sizes.sort()
    print(
        f"{len(sizes)} files, {sum(sizes)} lines, median {sizes[len(sizes) // 2]}, longest {sizes[-1]}"
    )
    for title, sections in (("when imported", {"top"}), ("all", {"top", "typing", "inner"})):
        edges = {
            path: {to for to, section, _, _ in out if section in sections}
            for path, out in graph.items()
        }
        parts = components(edges)
        print(f"circles, {title}: {len(parts)} of {[len(part) for part in parts]}")
        for part in parts:
            print(" ", " ".join(part))
            for path in part:
                for to, section, source, what in sorted(set(graph[path])):
                    if to in part and section in sections:
                        print(f"    {path} > {to}: {section} {source} imports {what}")
    rank = {name: number for number, row in enumerate(LAYERS) for name in row}
    wrong = defaultdict(set)
    for path, out in graph.items():
        here = room(path)
        for to, _, source, what in out:
            there = room(to)
            if (
                here != there
                and here in rank
                and there in rank
                and rank[there] <= rank[here]
                and (here, there) not in ALLOWED
            ):
                wrong[here, there].add(f"{source} imports {what}")
    for (here, there), edges in sorted(wrong.items()):
        print(f"layers: {here} > {there}: {len(edges)}: {'; '.join(sorted(edges)[:6])}")
