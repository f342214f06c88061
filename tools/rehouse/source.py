"""One file as it is now: what its names refer to, and where each of them is written."""

from __future__ import annotations

import ast
import builtins
import hashlib
import io
import os
import pickle
import tokenize
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from libcst.metadata import (
    Assignment,
    BuiltinScope,
    ClassScope,
    GlobalScope,
    ImportAssignment,
    MetadataWrapper,
    PositionProvider,
    Scope,
    ScopeProvider,
)

CACHE = Path(os.environ.get("REHOUSE_CACHE", "/tmp/rehouse-cache"))
BUILTINS = frozenset(dir(builtins))


def dotted(path: str) -> str:
    """The module of a file: ``a/b.py`` → ``a.b``, ``a/__init__.py`` → ``a``."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class Edit:
    """Replace the characters from ``start`` to ``end`` of a text."""

    start: int
    end: int
    text: str


def apply(text: str, edits: list[Edit]) -> str:
    """Carry out edits that do not overlap; one that lies in another is left out."""
    pieces, at = [], 0
    for edit in sorted(set(edits), key=lambda edit: (edit.start, -edit.end)):
        if edit.start < at:
            continue
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])


@dataclass(eq=False)
class Use:
    """A place where a name is read, written or declared. ``chain``: local scopes around it, the innermost first."""

    start: int
    end: int
    name: str
    owner: int
    """Number of the scope that binds it: 0, the module; -1, builtins or nothing."""
    scope: int
    attribute: tuple[int, int, str] | None = None
    """``x.attribute``: its span and its name."""
    chain: tuple[int, ...] = ()
    patched: tuple[int, int, str] | None = None
    """Where the name is the first argument of a call whose second is a string: span and text of that."""
    line: int = 0


@dataclass(eq=False)
class Alias:
    """A name that an import binds. ``module`` is what is imported from; ``name`` None: a plain ``import module``."""

    module: str
    name: str | None
    local: str
    explicit: bool
    """Whether it has an ``as``."""


@dataclass(eq=False)
class ImportStatement:
    """An import: its characters without a comment behind it; ``section`` is one of top, typing, inner."""

    start: int
    end: int
    aliases: list[Alias]
    section: str
    scope: int
    indent: str
    comment: str
    alone: bool
    """Whether nothing else is in its block."""


@dataclass(eq=False)
class Statement:
    """A top-level statement with the comments above it."""

    start: int
    end: int
    node: ast.stmt


@dataclass(eq=False)
class Source:
    """A parsed file."""

    path: str
    text: str
    uses: list[Use] = field(default_factory=list)
    imports: list[ImportStatement] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    typing_statements: list[tuple[int, int]] = field(default_factory=list)
    """Those in ``if TYPE_CHECKING`` that are no imports."""
    docstring: str | None = None
    future: bool = False
    globals: dict[str, str] = field(default_factory=dict)
    """Top-level names: "import" where an import at the top is all that binds them, else "definition"."""
    bindings: dict[str, Alias] = field(default_factory=dict)
    """Those of kind "import"."""
    typing_only: set[str] = field(default_factory=set)
    builtins_used: set[str] = field(default_factory=set)
    strings: list[tuple[int, int]] = field(default_factory=list)
    all_names: list[str] | None = None
    main_block: Statement | None = None
    scope_names: dict[int, set[str]] = field(default_factory=dict)
    """What each local scope binds."""

    @property
    def module(self) -> str:
        """Its dotted name."""
        return dotted(self.path)

    @property
    def stem(self) -> str:
        """The last part of its name; of a package, the package's."""
        return self.module.split(".")[-1]


def names_of(scope: Scope) -> set[str]:
    """What a scope binds itself."""
    return {name for name, bound in scope._assignments.items() if bound}


def owner_of(scope: Scope, name: str) -> Scope | None:
    """Where a name that is used in ``scope`` is bound; None: a builtin, or nowhere."""
    at, first = scope, True
    while not isinstance(at, BuiltinScope):
        overwritten = getattr(at, "_scope_overwrites", {}).get(name)
        if overwritten is not None:
            return overwritten
        if (first or not isinstance(at, ClassScope)) and at._assignments.get(name):
            return at
        if isinstance(at, GlobalScope):
            return None
        at, first = at.parent, False
    return None


def chain_of(scope: Scope) -> tuple[Scope, ...]:
    """The scopes around a use whose names hide those of the module."""
    chain, at, first = [], scope, True
    while not isinstance(at, GlobalScope | BuiltinScope):
        if first or not isinstance(at, ClassScope):
            chain.append(at)
        at, first = at.parent, False
    return tuple(chain)


class _Names(cst.CSTVisitor):
    """Collects uses of names and import statements."""

    METADATA_DEPENDENCIES = (PositionProvider, ScopeProvider)

    def __init__(self, source: Source, lines: list[int]) -> None:
        self.source, self.lines = source, lines
        self.typing = 0
        self.depth = 0
        self.skip: set[cst.CSTNode] = set()
        self.attributes: dict[cst.CSTNode, cst.Name] = {}
        self.patched: dict[cst.CSTNode, cst.SimpleString] = {}
        self.blocks: list[int] = []
        self.assigned: list[cst.Name] = []
        self.numbers: dict[Scope, int] = {}

    def number(self, scope: Scope | None) -> int:
        if scope is None or isinstance(scope, BuiltinScope):
            return -1
        if isinstance(scope, GlobalScope):
            return 0
        if scope not in self.numbers:
            self.numbers[scope] = len(self.numbers) + 1
            self.source.scope_names[self.numbers[scope]] = names_of(scope)
        return self.numbers[scope]

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        where = self.get_metadata(PositionProvider, node)
        return (
            self.lines[where.start.line - 1] + where.start.column,
            self.lines[where.end.line - 1] + where.end.column,
        )

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.skip.add(node.attr)
        if isinstance(node.value, cst.Name):
            self.attributes[node.value] = node.attr

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self.skip.add(node.keyword)

    def visit_MatchKeywordElement(self, node: cst.MatchKeywordElement) -> None:
        self.skip.add(node.key)

    def visit_Call(self, node: cst.Call) -> None:
        if len(node.args) > 1 and isinstance(node.args[1].value, cst.SimpleString):
            self.patched[node.args[0].value] = node.args[1].value

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        """In a class, ``name: T = f(name)`` reads the module's ``name``."""
        if isinstance(node.target, cst.Name):
            self.assigned.append(node.target)

    def leave_AnnAssign(self, original_node: cst.AnnAssign) -> None:
        if isinstance(original_node.target, cst.Name):
            self.assigned.pop()

    def visit_If(self, node: cst.If) -> None:
        self.depth += 1
        test = node.test
        if (isinstance(test, cst.Name) and test.value == "TYPE_CHECKING") or (
            isinstance(test, cst.Attribute) and test.attr.value == "TYPE_CHECKING"
        ):
            self.typing += 1

    def leave_If(self, original_node: cst.If) -> None:
        self.depth -= 1
        test = original_node.test
        if (isinstance(test, cst.Name) and test.value == "TYPE_CHECKING") or (
            isinstance(test, cst.Attribute) and test.attr.value == "TYPE_CHECKING"
        ):
            self.typing -= 1

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self.blocks.append(len(node.body))
        self.depth += 1

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock) -> None:
        self.blocks.pop()
        self.depth -= 1

    def _imported(self, node: cst.Import | cst.ImportFrom, aliases: list[Alias]) -> None:
        start, end = self.span(node)
        text = self.source.text
        line = text.rfind("\n", 0, start) + 1
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop
        scope = self.get_metadata(ScopeProvider, node)
        outer = isinstance(scope, GlobalScope)
        section = "inner"
        if outer and self.depth == 0:
            section = "top"
        elif outer and self.typing and self.depth == 2:
            section = "typing"
        self.source.imports.append(
            ImportStatement(
                start,
                end,
                aliases,
                section,
                self.number(scope),
                text[line:start] if not text[line:start].strip() else "",
                text[end:stop].strip(),
                bool(self.blocks) and self.blocks[-1] == 1,
            )
        )

    def visit_Import(self, node: cst.Import) -> bool:
        aliases = []
        for alias in node.names:
            module = cst.Module([]).code_for_node(alias.name)
            if alias.asname:
                aliases.append(Alias(module, None, alias.asname.name.value, True))
            else:
                aliases.append(Alias(module, None, module.split(".")[0], False))
        self._imported(node, aliases)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = cst.Module([]).code_for_node(node.module)
        if isinstance(node.names, cst.ImportStar):
            raise ValueError(f"{self.source.path}: import *")
        aliases = [
            Alias(
                module,
                alias.name.value,
                alias.asname.name.value if alias.asname else alias.name.value,
                bool(alias.asname),
            )
            for alias in node.names
        ]
        self._imported(node, aliases)
        return False

    def visit_Global(self, node: cst.Global) -> bool:
        for item in node.names:
            start, end = self.span(item.name)
            self.source.uses.append(Use(start, end, item.name.value, 0, 0))
        return False

    def visit_Nonlocal(self, node: cst.Nonlocal) -> bool:
        scope = self.get_metadata(ScopeProvider, node, None)
        for item in node.names:
            start, end = self.span(item.name)
            owner = owner_of(scope, item.name.value) if scope else None
            self.source.uses.append(
                Use(start, end, item.name.value, self.number(owner), self.number(scope))
            )
        return False

    def visit_Name(self, node: cst.Name) -> None:
        if node in self.skip:
            return
        try:
            scope = self.get_metadata(ScopeProvider, node)
        except KeyError:
            return
        if scope is None:
            return
        start, end = self.span(node)
        owner = owner_of(scope, node.value)
        if (
            isinstance(owner, ClassScope)
            and owner is scope
            and any(name.value == node.value and name is not node for name in self.assigned)
        ):
            owner = scope.globals if scope.globals._assignments.get(node.value) else None
        use = Use(
            start,
            end,
            node.value,
            self.number(owner),
            self.number(scope),
            chain=tuple(self.number(one) for one in chain_of(scope)),
        )
        use.line = self.source.text.count("\n", 0, start) + 1
        if node in self.attributes:
            attribute = self.attributes[node]
            use.attribute = (*self.span(attribute), attribute.value)
        if node in self.patched:
            string = self.patched[node]
            use.patched = (*self.span(string), string.raw_value)
        self.source.uses.append(use)
        if owner is None and node.value in BUILTINS:
            self.source.builtins_used.add(node.value)


def read(path: str, root: Path) -> Source:
    """Parse a file; what was parsed before is kept in ``build/rehouse``."""
    text = (root / path).read_text(encoding="utf-8")
    key = hashlib.sha256(
        (Path(__file__).read_text(encoding="utf-8") + path + text).encode()
    ).hexdigest()
    kept = CACHE / key
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    source = _read(path, text)
    CACHE.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(source))
    return source


def read_all(paths: list[str], root: Path) -> dict[str, Source]:
    """Parse files side by side."""
    with ProcessPoolExecutor(2) as pool:
        return dict(
            zip(paths, pool.map(read, paths, [root] * len(paths), chunksize=20), strict=True)
        )


def _read(path: str, text: str) -> Source:
    source = Source(path, text)
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    scopes = wrapper.resolve(ScopeProvider)
    top = next((scope.globals for scope in scopes.values() if scope is not None), None)
    wrapper.visit(_Names(source, lines))
    _statements(source, lines)
    _globals(source, top)
    _strings(source, lines)
    return source


def _statements(source: Source, lines: list[int]) -> None:
    tree = ast.parse(source.text)
    rows = source.text.splitlines(keepends=True)
    previous = 0
    for index, node in enumerate(tree.body):
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        last = node.end_lineno
        if (
            index == 0
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            source.docstring = node.value.value
            previous = last
            continue
        begin = first
        while begin > previous and (
            rows[begin - 1].lstrip().startswith("#") or not rows[begin - 1].strip()
        ):
            begin -= 1
        while begin < first and not rows[begin].strip():
            begin += 1
        statement = Statement(lines[begin], lines[last], node)
        previous = last
        match node:
            case ast.ImportFrom(module="__future__"):
                source.future = True
            case ast.Import() | ast.ImportFrom():
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                source.typing_statements += [
                    (lines[one.lineno - 1], lines[one.end_lineno])
                    for one in node.body
                    if not isinstance(one, ast.Import | ast.ImportFrom)
                ]
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                source.main_block = statement
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                source.all_names = ast.literal_eval(node.value)
            case _:
                source.statements.append(statement)


def _globals(source: Source, top: Scope | None) -> None:
    for name, bound in top._assignments.items() if top else ():
        if not bound:
            continue
        if all(isinstance(one, ImportAssignment) for one in bound):
            source.globals[name] = "import"
        elif any(isinstance(one, Assignment) for one in bound):
            source.globals[name] = "definition"
    for statement in source.imports:
        if statement.scope != 0:
            continue
        for alias in statement.aliases:
            if statement.section == "inner":
                source.globals[alias.local] = "definition"
            elif source.globals.get(alias.local) == "import":
                source.bindings[alias.local] = alias
                if statement.section == "typing":
                    source.typing_only.add(alias.local)
    source.globals = {
        name: kind
        for name, kind in source.globals.items()
        if kind == "definition" or name in source.bindings
    }
    source.globals.pop("__all__", None)


def _strings(source: Source, lines: list[int]) -> None:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            start = lines[token.start[0] - 1] + token.start[1]
            end = lines[token.end[0] - 1] + token.end[1]
            source.strings.append((start, end))
