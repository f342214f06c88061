"""The new tree: where each module and each name of it goes, and what each is called there."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.rehouse.source import BUILTINS, Alias, ImportStatement, Source, Use, dotted, read_all

Key = tuple
"""("name", module, name) of ours; ("module", module) of ours; ("other", module, name or None)."""


@dataclass
class Target:
    """A new file and its sources, in the order in which they are put together."""

    path: str
    says: str
    sources: list[Source]
    merged: bool
    """Whether its top-level imports are collected; False: a file that stays as it is but for its imports."""
    local: dict[Key, str] = field(default_factory=dict)
    """What is imported into it, by what it is called there."""

    @property
    def module(self) -> str:
        return dotted(self.path)


class Tree:
    """All files, before and after."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = json.loads(Path(__file__).with_name("map.json").read_text())
        listed = subprocess.check_output(["git", "ls-files"], cwd=root, text=True).split("\n")
        self.files = [name for name in listed if name and not name.startswith("tools/rehouse/")]
        python = [name for name in self.files if name.endswith(".py")]
        self.sources = read_all(python, root)
        for path, parts in self.data["carve"].items():
            for part, names in parts.items():
                if path in self.sources:
                    self.sources[part] = carve(self.sources[path], part, names)
        self.by_module = {
            source.module: source
            for path, source in self.sources.items()
            if path.startswith(("testbed/", "analysis/"))
        }
        self.packages = {
            ".".join(module.split(".")[:depth])
            for module in self.by_module
            for depth in range(1, module.count(".") + 1)
        }
        self.reports: list[str] = []
        self.renamed: dict[tuple[str, str], str] = {}
        """New names of definitions, by old module and name."""
        self.dropped: dict[tuple[str, str], str] = {}
        """Definitions that are the same as another source's in their target, by that source's module."""
        self.targets: list[Target] = []
        self.home: dict[str, Target] = {}
        self._place()

    def _place(self) -> None:
        used = set()
        for path, entry in self.data["targets"].items():
            sources = [self.sources[name] for name in entry["from"] if name in self.sources]
            for name in entry["from"]:
                if name not in self.sources:
                    self.reports.append(f"map: {name} does not exist")
            if sources:
                used |= {source.path for source in sources}
                self.targets.append(Target(path, entry["says"], self._ordered(sources), True))
        for path, source in self.sources.items():
            if path not in used:
                ours = path.startswith(("testbed/", "analysis/"))
                if ours:
                    self.reports.append(f"map: {path} has no target; it stays where it is")
                self.targets.append(Target(path, "", [source], ours))
        for target in self.targets:
            for source in target.sources:
                if source.module in self.by_module and source.path.startswith(
                    ("testbed/", "analysis/")
                ):
                    self.home[source.module] = target

    def _ordered(self, sources: list[Source]) -> list[Source]:
        """Each after those that it imports when it is imported itself."""
        among = {source.module: source for source in sources}
        order: list[Source] = []
        under_way: list[str] = []

        def add(source: Source) -> None:
            if source in order:
                return
            if source.module in under_way:
                self.reports.append(
                    f"order: {' > '.join([*under_way, source.module])} import each other"
                )
                return
            under_way.append(source.module)
            for statement in source.imports:
                if statement.section == "top":
                    for alias in statement.aliases:
                        for module in (f"{alias.module}.{alias.name}", alias.module):
                            if module in among and module != source.module:
                                add(among[module])
            under_way.pop()
            order.append(source)

        for source in sources:
            add(source)
        return order

    # What names refer to

    def resolve(self, module: str, name: str, hops: int = 0) -> Key:
        """What ``module.name`` is."""
        source = self.by_module.get(module)
        if source is None:
            return (
                ("module", f"{module}.{name}")
                if f"{module}.{name}" in self.by_module
                else ("other", module, name)
            )
        if source.globals.get(name) == "definition":
            return ("name", module, name)
        if name in source.bindings and hops < 9:
            return self.meaning(source.bindings[name], hops + 1)
        if f"{module}.{name}" in self.by_module or f"{module}.{name}" in self.packages:
            return ("module", f"{module}.{name}")
        return ("name", module, name)

    def meaning(self, alias: Alias, hops: int = 0) -> Key:
        """What an import binds."""
        if alias.name is None:
            if alias.explicit and alias.module in self.by_module:
                return ("module", alias.module)
            return ("other", alias.module, None)
        if alias.module in self.by_module:
            return self.resolve(alias.module, alias.name, hops)
        return ("other", alias.module, alias.name)

    def key(self, source: Source, name: str) -> Key:
        """What a top-level name of a file is."""
        if source.globals.get(name) == "definition":
            return (
                "name",
                source.module if source.path.startswith(("testbed/", "analysis/")) else source.path,
                name,
            )
        return self.meaning(source.bindings[name])

    def new_name(self, key: Key) -> str:
        """What a definition is called in its new home."""
        return self.renamed.get((key[1], key[2]), key[2])

    def home_of(self, key: Key) -> Target | None:
        """Where a definition or a module of ours goes."""
        return self.home.get(key[1]) if key[0] in {"name", "module"} else None

    # What things are called

    def name_all(self) -> None:
        """Decide all names."""
        for target in self.targets:
            if target.merged:
                self._definitions(target)
        for target in self.targets:
            if target.merged:
                self._imports(target)

    def uses_of(self, target: Target) -> dict[Key, list[tuple[Source, Use, str]]]:
        """Uses in a target, each with how it is written now: a module's attribute counts as a use of the name."""
        uses: dict[Key, list[tuple[Source, Use, str]]] = defaultdict(list)
        for source in target.sources:
            inner = self.inner(source)
            for use in source.uses:
                key = self.key_of_use(source, use, inner)
                if key is None:
                    continue
                if key[0] == "module" and use.attribute and self.home_of(key) is target:
                    uses[self.resolve(key[1], use.attribute[2])].append(
                        (source, use, "." + use.attribute[2])
                    )
                else:
                    uses[key].append((source, use, use.name))
        return uses

    def inner(self, source: Source) -> dict[tuple[int, str], Alias]:
        """Imports in functions, by scope and name."""
        return {
            (statement.scope, alias.local): alias
            for statement in source.imports
            if statement.section == "inner"
            for alias in statement.aliases
        }

    def key_of_use(
        self, source: Source, use: Use, inner: dict[tuple[int, str], Alias]
    ) -> Key | None:
        """What a use of a name refers to, if to a top-level name or an import."""
        if use.owner > 0 or (use.owner == 0 and (0, use.name) in inner):
            alias = inner.get((use.owner, use.name))
            return self.meaning(alias) if alias else None
        if use.owner == 0 and use.name in source.globals:
            return self.key(source, use.name)
        return None

    @staticmethod
    def decorated(name: str, stem: str) -> str:
        """Another name for the same thing, with its old module's."""
        bare = name.lstrip("_")
        lead = name[: len(name) - len(bare)]
        stem = stem.strip("_")
        if bare.isupper() or (bare.replace("_", "").isupper()):
            return f"{lead}{stem.upper()}_{bare}"
        if bare[:1].isupper():
            return f"{lead}{''.join(part.title() for part in stem.split('_'))}{bare}"
        return f"{lead}{bare}_{stem}"

    def hidden(self, uses: list[tuple[Source, Use, str]], name: str) -> bool:
        """Whether a local name hides ``name`` where it would be written newly."""
        return any(
            written != name and any(name in source.scope_names[scope] for scope in use.chain)
            for source, use, written in uses
        )

    def _definitions(self, target: Target) -> None:
        others = set()
        for source in target.sources:
            for alias in source.bindings.values():
                if self.meaning(alias)[0] == "other":
                    others.add(alias.local)
        builtin = {name: source for source in target.sources for name in source.builtins_used}
        uses = self.uses_of(target)
        taken: dict[str, tuple[Source, str]] = {}
        texts = {source: definitions(source) for source in target.sources}
        for source in target.sources:
            for name, kind in source.globals.items():
                if kind != "definition":
                    continue
                key = ("name", source.module, name)
                fixed = self.data["names"].get(f"{source.module}:{name}")
                if name in taken and not fixed and self._same(texts, source, taken[name][0], name):
                    self.dropped[source.module, name] = taken[name][0].module
                    continue
                if len(target.sources) > 1 and self.concatenated(source, name):
                    fixed = f"_{name}_{source.stem.upper()}"
                parent = source.module.split(".")[-2] if "." in source.module else ""
                candidates = (
                    [fixed]
                    if fixed
                    else [
                        name,
                        self.decorated(name, source.stem),
                        self.decorated(name, f"{parent}_{source.stem}"),
                        self.decorated(name, f"{source.stem}_2"),
                    ]
                )
                for candidate in candidates:
                    if candidate in taken or (
                        candidate in others and source.globals.get(candidate) != "definition"
                    ):
                        continue
                    if candidate in BUILTINS and any(
                        one is not source for one in [builtin.get(candidate, source)]
                    ):
                        continue
                    if self.hidden(uses.get(key, []), candidate):
                        continue
                    break
                else:
                    self.reports.append(
                        f"names: no name for {source.module}:{name} in {target.path}"
                    )
                taken[candidate] = (source, name)
                if candidate != name:
                    self.renamed[source.module, name] = candidate
        target.taken = set(taken) | {n for source in target.sources for n in ()}

    def concatenated(self, source: Source, name: str) -> bool:
        """Whether tuples of this name are joined where modules are."""
        return any(
            source.module.startswith(f"{package}.") and name == wanted
            for package, _, wanted in (entry.partition(":") for entry in self.data["concatenate"])
        )

    def _same(self, texts: dict, source: Source, other: Source, name: str) -> bool:
        """Whether two sources define a constant or a function alike, by the same names."""
        mine, theirs = texts[source].get(name), texts[other].get(name)
        if not mine or not theirs or mine[0] != theirs[0]:
            return False
        for used in mine[1]:
            kinds = source.globals.get(used), other.globals.get(used)
            if used == name or kinds == (None, None):
                continue
            if kinds != ("import", "import") or self.key(source, used) != self.key(other, used):
                return False
        return True

    def _imports(self, target: Target) -> None:
        taken = set(getattr(target, "taken", set()))
        uses = self.uses_of(target)
        wanted: dict[Key, list[str]] = {}
        for source in target.sources:
            for alias in source.bindings.values():
                key = self.meaning(alias)
                if self.home_of(key) is target:
                    if key[0] == "module" and any(
                        not use.attribute for one, use, _ in uses.get(key, ()) if one is source
                    ):
                        self.reports.append(
                            f"uses: {source.path} uses {key[1]} as an object, which it becomes part of"
                        )
                    continue
                wanted.setdefault(key, [])
                if key[0] == "module":
                    home = self.home_of(key)
                    leaf, parent = (
                        (home.module.split(".")[-1], home.module.split(".")[-2:][0])
                        if home
                        else (alias.local, "")
                    )
                    names = [leaf, f"{parent}_{leaf}", f"{leaf}_module"]
                    if (
                        alias.explicit
                        and alias.local != alias.name
                        and key[1].split(".")[-1] != leaf
                    ):
                        names = [*names]
                elif key[0] == "name":
                    new = self.new_name(self.actual(key))
                    home = self.home_of(key)
                    leaf = home.module.split(".")[-1] if home else "x"
                    names = [
                        alias.local if alias.explicit and alias.local != alias.name else new,
                        new,
                        self.decorated(new, leaf),
                    ]
                    names += [self.decorated(alias.local, leaf), self.decorated(new, f"{leaf}_2")]
                else:
                    names = [
                        alias.local,
                        f"{alias.local}_{key[1].split('.')[-1]}",
                        f"{alias.local}_2",
                    ]
                wanted[key] += [name for name in names if name not in wanted[key]]
        order = {"other": 0, "name": 1, "module": 2}
        modules: dict[str, str] = {}
        for key in sorted(
            wanted, key=lambda key: (order[key[0]], wanted[key][0] != key[-1], str(key))
        ):
            home = self.home_of(key)
            if key[0] == "module" and home and home.path in modules:
                name = modules[home.path]
                if not self.hidden(uses.get(key, []), name):
                    target.local[key] = name
                    continue
            for name in wanted[key]:
                if name in taken or self.hidden(uses.get(key, []), name):
                    continue
                break
            else:
                self.reports.append(f"names: no name for {key} in {target.path}")
            taken.add(name)
            target.local[key] = name
            if key[0] == "module" and home:
                modules[home.path] = name

    def actual(self, key: Key) -> Key:
        """The definition that is kept, where one is the same as another."""
        while (key[1], key[2]) in self.dropped:
            key = ("name", self.dropped[key[1], key[2]], key[2])
        return key

    def attribute(self, module: str, name: str) -> str:
        """What ``module.name`` is called as an attribute of ``module``'s new home."""
        source = self.by_module.get(module)
        target = self.home.get(module)
        if source is None or target is None or name not in source.globals:
            return name
        key = self.key(source, name)
        if self.home_of(key) is target:
            return self.new_name(self.actual(key)) if key[0] == "name" else name
        return target.local.get(key, name)


def carve(source: Source, path: str, names: list[str]) -> Source:
    """Take definitions out of a file into another, which does not exist yet."""
    chosen, rest = [], []
    take = False
    for statement in source.statements:
        node = statement.node
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring:
            take = bool(bound(node) & set(names))
        (chosen if take else rest).append(statement)

    def within(start: int) -> bool:
        return any(statement.start <= start < statement.end for statement in chosen)

    part = Source(path, source.text)
    part.statements, part.future = chosen, source.future
    part.uses = [use for use in source.uses if within(use.start)]
    part.strings = [span for span in source.strings if within(span[0])]
    part.scope_names = source.scope_names
    used = {use.name for use in part.uses if use.owner == 0}
    part.bindings = {name: alias for name, alias in source.bindings.items() if name in used}
    part.typing_only = source.typing_only & used
    part.builtins_used = source.builtins_used
    part.globals = {
        name: "definition" for name in names if source.globals.get(name) == "definition"
    }
    part.globals |= dict.fromkeys(part.bindings, "import")
    for statement in source.imports:
        if statement.section == "inner":
            if within(statement.start):
                part.imports.append(statement)
        else:
            kept = [alias for alias in statement.aliases if alias.local in used]
            if kept:
                part.imports.append(replace(statement, aliases=kept))
    back = [
        Alias(source.module, name, name, False)
        for name in sorted(used)
        if source.globals.get(name) == "definition" and name not in names
    ]
    if back:
        part.imports.append(ImportStatement(0, 0, back, "top", 0, "", "", False))
        part.bindings |= {alias.local: alias for alias in back}
        part.globals |= dict.fromkeys((alias.local for alias in back), "import")
    source.imports = [s for s in source.imports if s.section != "inner" or not within(s.start)]
    source.statements = rest
    source.uses = [use for use in source.uses if not within(use.start)]
    source.strings = [span for span in source.strings if not within(span[0])]
    still = {use.name for use in source.uses if use.owner == 0}
    for statement in source.imports:
        if statement.section != "inner":
            statement.aliases = [
                a
                for a in statement.aliases
                if a.local in still or a.local not in used or a.module == "__future__"
            ]
    moved = [Alias(part.module, name, name, False) for name in names if name in part.globals]
    source.bindings |= {alias.local: alias for alias in moved}
    source.globals |= dict.fromkeys((alias.local for alias in moved), "import")
    needed = [alias for alias in moved if alias.local in still]
    if needed:
        source.imports.append(ImportStatement(0, 0, needed, "top", 0, "", "", False))
    return part


def bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {
                name.id
                for one in node.targets
                for name in ast.walk(one)
                if isinstance(name, ast.Name)
            }
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def definitions(source: Source) -> dict[str, tuple[str, set[str]]]:
    """Texts of top-level functions and simple constants that are defined once, and the names that they use."""
    out: dict[str, tuple[str, set[str]]] = {}
    count: dict[str, int] = defaultdict(int)
    changed = {
        name
        for node in ast.walk(ast.parse(source.text))
        if isinstance(node, ast.Global)
        for name in node.names
    }
    for statement in source.statements:
        node = statement.node
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [
                name.id
                for one in node.targets
                for name in ast.walk(one)
                if isinstance(name, ast.Name)
            ]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        for name in names:
            count[name] += 1
        if len(names) == 1 and names[0] not in changed:
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and any(
                    isinstance(
                        one, ast.Dict | ast.List | ast.Set | ast.Call | ast.DictComp | ast.ListComp
                    )
                    for one in ast.walk(node.value or node)
                )
                and "getLogger" not in ast.dump(node)
            ):
                continue
            if isinstance(node, ast.ClassDef):
                continue
            used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            out[names[0]] = (ast.dump(node), used)
    return {name: text for name, text in out.items() if count[name] == 1}
