"""Write the new tree."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

from tools.rehouse.source import Edit, ImportStatement, Source, Use, apply, dotted
from tools.rehouse.tree import Key, Target, Tree, bound

DOTTED = re.compile(r"\b(?:testbed|analysis)(?:\.[A-Za-z_]\w*)+")
JOINED = re.compile(r'"[a-z_]+"(?: / "[a-z_]+")* / "[a-z_]+[.]py"')
STRING_IMPORT = re.compile(
    r"\bfrom ((?:testbed|analysis)(?:[.]\w+)*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)"
)
PATHS = re.compile(r"\b(?:testbed|analysis)(?:/[A-Za-z_]\w*)+(?:\.py\b|/|\b)")


class Mover:
    """Carries out the move of one tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.rooms = self._rooms()

    # Texts

    def _rooms(self) -> dict[str, str]:
        """Old folders, each with the new folder that most of it goes to."""
        where: dict[str, Counter[str]] = defaultdict(Counter)
        for module, target in self.tree.home.items():
            path = self.tree.by_module[module].path
            parts, new = path.split("/")[:-1], "/".join(target.path.split("/")[:-1])
            for depth in range(2, len(parts) + 1):
                where["/".join(parts[:depth])][new] += 1
        rooms = {}
        for old, counts in where.items():
            new = counts.most_common(1)[0][0]
            home = self.tree.home.get(old.replace("/", "."))
            rooms[old] = (
                "/".join(home.path.split("/")[:-1])
                if home and home.path.endswith("__init__.py")
                else new
            )
        return rooms

    def words(self, text: str, where: str) -> str:
        """Replace module names and paths in prose, strings and data."""

        def name(match: re.Match[str]) -> str:
            parts = match[0].split(".")
            for size in range(len(parts), 1, -1):
                module = ".".join(parts[:size])
                if module in self.tree.home:
                    rest = parts[size:]
                    if rest:
                        rest[0] = self.tree.attribute(module, rest[0])
                    return ".".join([self.tree.home[module].module, *rest])
            return match[0]

        def path(match: re.Match[str]) -> str:
            found = match[0]
            if found.endswith(".py"):
                module = dotted(found)
                return self.tree.home[module].path if module in self.tree.home else found
            bare = found.rstrip("/")
            if bare in self.rooms:
                return self.rooms[bare] + ("/" if found.endswith("/") else "")
            if bare.replace("/", ".") in self.tree.home:
                return self.tree.home[bare.replace("/", ".")].path.removesuffix(".py")
            for old in sorted(self.rooms, key=len, reverse=True):
                if bare.startswith(old + "/"):
                    return self.rooms[old] + found[len(old) :]
            return found

        text = re.sub(
            r"(?:testbed|analysis)\.[\w.]+:\w+", lambda match: self._entry(match[0]), text
        )
        text = DOTTED.sub(name, text)
        return PATHS.sub(path, text)

    def _entry(self, text: str) -> str:
        module, _, name = text.partition(":")
        if module in self.tree.home:
            return f"\0{self.tree.home[module].module}:{self.tree.attribute(module, name)}\0"
        return text

    def prose(self, text: str, where: str) -> str:
        """As ``words``, with entry points."""
        protected: list[str] = []

        def keep(match: re.Match[str]) -> str:
            protected.append(match[1])
            return f"\0{len(protected) - 1}\0"

        text = re.sub(
            r"(?:testbed|analysis)\.[\w.]+:[A-Za-z_]\w*", lambda match: self._entry(match[0]), text
        )
        text = re.sub("\0([^\0]+)\0", keep, text)
        text = STRING_IMPORT.sub(self._import_in_string, text)
        text = re.sub(
            "\0([^\0]+)\0", lambda match: match[0] if match[1].isdigit() else keep(match), text
        )
        out = self.words(text, where)
        return re.sub("\0([0-9]+)\0", lambda match: protected[int(match[1])], out)

    def _import_in_string(self, match: re.Match[str]) -> str:
        """An import in a string that is code; what is used of a module that is merged stays to be done by hand."""
        tree, lines = self.tree, []
        for part in match[2].split(", "):
            name, _, local = part.partition(" as ")
            key = tree.resolve(match[1], name)
            home = tree.home_of(key)
            if home is None:
                return match[0]
            local = local or name
            if key[0] == "module":
                package, _, leaf = home.module.rpartition(".")
                lines.append(
                    f"from {package} import {leaf}" + (f" as {local}" if leaf != local else "")
                )
            else:
                new = tree.new_name(tree.actual(key))
                lines.append(
                    f"from {home.module} import {new}" + (f" as {local}" if new != local else "")
                )
        grouped: dict[str, list[str]] = {}
        for line in lines:
            module, _, rest = line[5:].partition(" import ")
            grouped.setdefault(module, []).append(rest)
        return (
            "\0"
            + "; ".join(
                f"from {module} import {', '.join(names)}" for module, names in grouped.items()
            )
            + "\0"
        )

    # Names in one file

    def edits(self, target: Target, source: Source) -> list[Edit]:
        """All changes in a source but for its top-level imports, which a merged target collects."""
        tree, edits = self.tree, []
        inner = tree.inner(source)
        local: dict[tuple[int, str], tuple[Key, str | None]] = {}
        in_place = [
            statement
            for statement in source.imports
            if statement.section == "inner" or not target.merged
        ]
        for statement in in_place:
            edits += self._in_place(target, source, statement, local)
        for use in source.uses:
            binding = local.get((use.owner, use.name))
            if binding:
                key, name = binding
            else:
                key = tree.key_of_use(source, use, inner)
                if key is None or (not target.merged and key[0] != "module"):
                    continue
                name = None
            edits += self._use(target, source, use, key, name)
        for match in JOINED.finditer(source.text):
            old = "testbed/" + "/".join(re.findall(r'"([^"]+)"', match[0]))
            if old in tree.sources and dotted(old) in tree.home:
                new = tree.home[dotted(old)].path.removeprefix("testbed/").split("/")
                edits.append(
                    Edit(match.start(), match.end(), " / ".join(f'"{part}"' for part in new))
                )
        for start, end in source.strings:
            before = source.text[start:end]
            literal = re.fullmatch(r'"([a-z_]+(?:/[a-z_]+)*[.]py)"', before)
            if (
                literal
                and f"testbed/{literal[1]}" in tree.sources
                and not source.path.startswith("testbed/")
            ):
                target_path = tree.home[dotted(f"testbed/{literal[1]}")].path
                edits.append(Edit(start, end, f'"{target_path.removeprefix("testbed/")}"'))
                continue
            if "testbed" in before or "analysis" in before:
                after = self.prose(before, source.path)
                if after != before:
                    edits.append(Edit(start, end, after))
        return edits

    def _use(
        self, target: Target, source: Source, use: Use, key: Key, name: str | None
    ) -> list[Edit]:
        tree = self.tree
        edits = []
        if key[0] == "module" and key[1] in tree.by_module:
            home = tree.home_of(key)
            if use.patched:
                start, end, text = use.patched
                if text.isidentifier():
                    new = tree.attribute(key[1], text)
                    if new != text:
                        edits.append(Edit(start + 1, end - 1, new))
            alias = name or target.local.get(key)
            if not use.attribute and not use.patched and home is not None:
                self._object(source, use, key, home)
            if home is target and target.merged:
                if not use.attribute:
                    return edits
                of = tree.resolve(key[1], use.attribute[2])
                new = self._called(target, of)
                if new is None:
                    tree.reports.append(
                        f"uses: {source.path}:{use.line} {use.name}.{use.attribute[2]}"
                    )
                    return edits
                return [*edits, Edit(use.start, use.attribute[1], new)]
            if alias and alias != use.name:
                edits.append(Edit(use.start, use.end, alias))
            if use.attribute:
                start, end, text = use.attribute
                new = tree.attribute(key[1], text)
                if new != text:
                    edits.append(Edit(start, end, new))
            return edits
        new = name or self._called(target, key)
        if new and new != use.name:
            edits.append(Edit(use.start, use.end, new))
        return edits

    def _object(self, source: Source, use: Use, key: Key, home: Target) -> None:
        """Report modules that are used as objects, where that is not what it was."""
        changed = [
            f"{name} > {new}"
            for (module, name), new in self.tree.renamed.items()
            if module == key[1]
        ]
        others = {
            alias.name
            for alias in [*source.bindings.values(), *self.tree.inner(source).values()]
            if (other := self.tree.meaning(alias))[0] == "module"
            and other != key
            and self.tree.home_of(other) is home
        }
        if changed or others:
            self.tree.reports.append(
                f"object: {source.path}:{use.line} uses {key[1]} as an object; it goes to {home.path}: {changed or others}"
            )

    def _called(self, target: Target, key: Key) -> str | None:
        """What something is called in a target."""
        if key[0] == "name" and self.tree.home_of(key) is target:
            return self.tree.new_name(self.tree.actual(key))
        return target.local.get(key)

    def _in_place(
        self,
        target: Target,
        source: Source,
        statement: ImportStatement,
        local: dict[tuple[int, str], tuple[Key, str | None]],
    ) -> list[Edit]:
        """Rewrite one import where it stands."""
        tree = self.tree
        lines: list[str] = []
        changed = False
        for alias in statement.aliases:
            key = tree.meaning(alias)
            if alias.name is None and not alias.explicit and alias.module in tree.home:
                home = tree.home[alias.module]
                new = home.module
                if home is target and target.merged:
                    changed = True
                    continue
                if new != alias.module:
                    changed = True
                lines.append(f"import {new}")
                continue
            home = tree.home_of(key)
            if home is None:
                as_name = f" as {alias.local}" if alias.explicit else ""
                lines.append(
                    f"import {alias.module}{as_name}"
                    if alias.name is None
                    else f"from {alias.module} import {alias.name}{as_name}"
                )
                continue
            if home is target and target.merged:
                changed = True
                if key[0] == "name":
                    new = tree.new_name(tree.actual(key))
                    local[statement.scope, alias.local] = (key, new)
                    users = [
                        use
                        for use in source.uses
                        if use.owner == statement.scope and use.name == alias.local
                    ]
                    if any(
                        new in source.scope_names.get(s, ())
                        and not (s == statement.scope and new == alias.local)
                        for use in users
                        for s in use.chain
                    ):
                        tree.reports.append(f"hidden: {source.path} {new} in a function")
                else:
                    local[statement.scope, alias.local] = (key, None)
                continue
            if key[0] == "module":
                package, _, leaf = home.module.rpartition(".")
                own = (
                    source.scope_names.get(statement.scope, set())
                    if statement.scope
                    else set(source.globals)
                )
                everywhere = own | {n for names in source.scope_names.values() for n in names}
                named = alias.local if alias.explicit and alias.local != alias.name else leaf
                earlier = [
                    name
                    for (scope, _), (other, name) in local.items()
                    if scope == statement.scope
                    and other[0] == "module"
                    and tree.home_of(other) is home
                    and name
                ]
                if earlier:
                    named = earlier[0]
                elif named != alias.local and (
                    named in everywhere or any(name == named for _, name in local.values())
                ):
                    named = alias.local
                local[statement.scope, alias.local] = (key, named)
                line = f"from {package} import {leaf}" if package else f"import {leaf}"
                lines.append(line + (f" as {named}" if named != leaf else ""))
            else:
                new = tree.new_name(tree.actual(key))
                lines.append(
                    f"from {home.module} import {new}"
                    + (f" as {alias.local}" if new != alias.local else "")
                )
            changed = True
        if not changed:
            return []
        lines = list(dict.fromkeys(lines))
        grouped: dict[str, list[str]] = {}
        plain = []
        for line in lines:
            if line.startswith("from "):
                module, _, rest = line[5:].partition(" import ")
                grouped.setdefault(module, []).append(rest)
            else:
                plain.append(line)
        texts = plain + [
            f"from {module} import {', '.join(names)}" for module, names in grouped.items()
        ]
        start, end = statement.start, statement.end
        if not texts:
            if statement.alone:
                return [Edit(start, end, "pass")]
            stop = source.text.find("\n", end) + 1
            return [Edit(start - len(statement.indent), stop, "")]
        comment = f"  {statement.comment}" if statement.comment.startswith("#") else ""
        text = f"{comment}\n{statement.indent}".join(texts)
        return [Edit(start, end, text)]

    # Files

    def text(self, target: Target) -> str:
        """The text of a merged target."""
        tree = self.tree
        runtime: dict[str, str] = {}
        typing: dict[str, str] = {}
        runtime_keys: set[Key] = set()
        bodies, typing_bodies, mains, names = [], [], [], []
        for source in target.sources:
            for statement in source.imports:
                if statement.section == "inner":
                    continue
                for alias in statement.aliases:
                    if alias.module == "__future__":
                        continue
                    line, key = self._import_line(target, alias)
                    if line is None:
                        continue
                    comment = f"  {statement.comment}" if statement.comment.startswith("#") else ""
                    if statement.section == "top":
                        runtime.setdefault(line, comment)
                        runtime_keys.add(key)
                    else:
                        typing.setdefault(line, comment)
        typing = {line: comment for line, comment in typing.items() if line not in runtime}
        if typing or any(source.typing_statements for source in target.sources):
            runtime.setdefault("from typing import TYPE_CHECKING", "")
        for source in target.sources:
            edits = self.edits(target, source)
            pieces = []
            dropped = {name for (module, name) in tree.dropped if module == source.module}
            statements = source.statements
            skip = False
            for statement in statements:
                node = statement.node
                if isinstance(node, ast.Delete) and len(target.sources) > 1:
                    gone = {name.id for name in node.targets if isinstance(name, ast.Name)}
                    if all(
                        tree.home_of(tree.key(source, name)) is target
                        for name in gone
                        if name in source.globals
                    ):
                        continue
                text = self._cut(source, edits, statement.start, statement.end)
                names_bound = bound(node)
                if skip and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    skip = False
                    continue
                skip = bool(names_bound & dropped)
                if skip:
                    continue
                before = source.text[: statement.start]
                blank = len(before) - len(before.rstrip("\n")) - 1
                big = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
                pieces.append("\n" * (2 if big else max(0, min(blank, 2))) + text)
            bodies.append("".join(pieces).strip("\n"))
            for start, end in source.typing_statements:
                typing_bodies.append(self._cut(source, edits, start, end).rstrip("\n"))
            if source.main_block:
                mains.append(
                    self._cut(source, edits, source.main_block.start, source.main_block.end).strip(
                        "\n"
                    )
                )
            if source.all_names is not None:
                names += [tree.attribute(source.module, name) for name in source.all_names]
        for wanted in (entry.partition(":")[2] for entry in tree.data["concatenate"]):
            parts = [
                tree.renamed.get((source.module, wanted))
                for source in target.sources
                if source.globals.get(wanted) == "definition"
            ]
            if any(parts):
                bodies.append(
                    f"{wanted} = ({', '.join('*' + part for part in parts if part)},)".replace(
                        ",,", ","
                    )
                )
        if len(mains) > 1:
            tree.reports.append(f"main: {target.path} has {len(mains)} blocks")
        out = [self._docstring(target)]
        head = []
        if any(source.future for source in target.sources):
            head.append("from __future__ import annotations\n")
        if runtime:
            head.append("\n".join(line + comment for line, comment in runtime.items()) + "\n")
        if typing or typing_bodies:
            rows = [f"    {line}{comment}" for line, comment in typing.items()]
            if typing_bodies:
                rows += ["", *typing_bodies]
            head.append("if TYPE_CHECKING:\n" + "\n".join(rows) + "\n")
        if names:
            head.append(f"__all__ = {json.dumps(sorted(set(names)))}\n")
        if head:
            out.append("\n".join(head))
        bodies = [body for body in bodies if body]
        text = "\n".join(out) + ("\n\n" + "\n\n\n".join(bodies) + "\n" if bodies else "")
        for source in target.sources:
            for (module, name), new in tree.renamed.items():
                if module == source.module:
                    text = text.replace(f'{new} = TypeVar("{name}"', f'{new} = TypeVar("{new}"')
        if mains:
            text += "\n\n" + "\n\n\n".join(mains) + "\n"
        return text

    def _cut(self, source: Source, edits: list[Edit], start: int, end: int) -> str:
        inside = [
            Edit(e.start - start, e.end - start, e.text)
            for e in edits
            if start <= e.start and e.end <= end
        ]
        return apply(source.text[start:end], inside)

    def _import_line(self, target: Target, alias) -> tuple[str | None, Key]:
        tree = self.tree
        key = tree.meaning(alias)
        if alias.name is None and not alias.explicit and alias.module in tree.home:
            home = tree.home[alias.module]
            return (None if home is target else f"import {home.module}"), key
        home = tree.home_of(key)
        if home is target:
            return None, key
        name = target.local.get(key, alias.local)
        again = alias.explicit and alias.local == alias.name
        if home is None:
            if alias.name is None:
                if alias.explicit or name != alias.local:
                    return f"import {alias.module} as {name}", key
                return f"import {alias.module}", key
            return f"from {alias.module} import {alias.name}" + (
                f" as {name}" if name != alias.name else ""
            ), key
        if key[0] == "module":
            package, _, leaf = home.module.rpartition(".")
            return (f"from {package} import {leaf}" if package else f"import {leaf}") + (
                f" as {name}" if name != leaf or again else ""
            ), key
        new = tree.new_name(tree.actual(key))
        return f"from {home.module} import {new}" + (
            f" as {name}" if name != new or again else ""
        ), key

    def _docstring(self, target: Target) -> str:
        texts = [
            self.prose(source.docstring.strip(), source.path)
            for source in target.sources
            if source.docstring
        ]
        if len(target.sources) > 1:
            says = target.says.strip().replace("`", "``")
            if says:
                says = says[0].upper() + says[1:]
                texts = [
                    says if says.endswith(".") else f"{says}.",
                    *[t for t, s in zip(texts, target.sources, strict=False) if not _empty(s)],
                ]
        text = (
            "\n\n".join(texts)
            if len(texts) > 1
            else (texts[0] if texts else target.says or "A package.")
        )
        mark = 'r"""' if "\\" in text else '"""'
        return f'{mark}{text}{chr(10) if chr(10) in text else ""}"""\n'

    def move(self) -> None:
        """Write every file."""
        tree, root = self.tree, self.tree.root
        texts: dict[str, str] = {}
        tree.name_all()
        for target in tree.targets:
            if target.merged:
                texts[target.path] = self.text(target)
            else:
                source = target.sources[0]
                after = apply(source.text, self.edits(target, source))
                if after != source.text:
                    texts[target.path] = after
        python = set(tree.sources)
        for path in tree.files:
            if (
                path in python
                or path in tree.data["data"]
                or path.startswith("tests/golden/rehouse")
            ):
                continue
            try:
                before = (root / path).read_text(encoding="utf-8")
            except (UnicodeDecodeError, FileNotFoundError):
                continue
            after = self.prose(before, path)
            if after != before:
                texts[path] = after
        run = lambda *command: subprocess.run(
            ["git", *command], cwd=root, check=True, capture_output=True
        )
        real = set(tree.files)
        moved = [
            (target, max((s for s in target.sources if s.path in real), key=lambda s: len(s.text)))
            for target in tree.targets
            if target.merged and any(s.path in real for s in target.sources)
        ]
        passing: list[tuple[str, str]] = []
        for number, (target, biggest) in enumerate(moved):
            if biggest.path != target.path:
                between = f"testbed/moved-{number}"
                run("mv", biggest.path, between)
                passing.append((between, target.path))
        for target, biggest in moved:
            for source in target.sources:
                if source is not biggest and source.path in real:
                    run("rm", "-q", "--cached", source.path)
                    (root / source.path).unlink(missing_ok=True)
        for between, path in passing:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            run("mv", between, path)
        for old, new in tree.data["data"].items():
            if (root / old).exists():
                (root / new).parent.mkdir(parents=True, exist_ok=True)
                run("mv", old, new)
        for path, text in texts.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        for package in sorted({str(Path(t.path).parent) for t in tree.targets if t.merged}):
            init = root / package / "__init__.py"
            if not init.exists():
                init.write_text(
                    f'"""{tree.data["packages"].get(package, "A part of the testbed.")}"""\n'
                )
        self._patches()
        run("add", "-A")
        for folder in sorted(
            (p for top in ("testbed", "analysis") for p in (root / top).rglob("*") if p.is_dir()),
            reverse=True,
        ):
            if not any(one.name != "__pycache__" for one in folder.iterdir()):
                subprocess.run(["rm", "-rf", str(folder)], check=True)

    def _patches(self) -> None:
        for file in sorted((Path(__file__).parent / "patches").glob("*.json")):
            for rule in json.loads(file.read_text()):
                path = self.tree.root / rule["file"]
                text = path.read_text(encoding="utf-8") if path.exists() else ""
                if rule["find"] not in text:
                    self.tree.reports.append(
                        f"patch: {rule['file']} does not have {rule['find'][:60]!r}"
                    )
                    continue
                path.write_text(text.replace(rule["find"], rule["replace"]), encoding="utf-8")


def _empty(source: Source) -> bool:
    return source.path.endswith("__init__.py") and not source.globals
