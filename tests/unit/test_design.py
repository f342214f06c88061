"""The design's pages name what there is, and the tree keeps the design's rules."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from import_cycles import circles, graph

ROOT = Path(__file__).parents[2]
PACKAGES = ("testbed", "analysis")
DESIGN, GLOSSARY = ROOT / "docs" / "design.md", ROOT / "docs" / "glossary.md"
PLAIN = Path(__file__).with_name("plain_words.txt")
"""Words in names that an engineer knows without a glossary."""
MOST_FILES = {"A gradient": 30, "A link change": 35, "A figure": 12}
MOST_MODULES, MOST_LINES = 349, 500
PLUG_INS = {"testbed/compress/selectors": 12, "testbed/compress/values": 10, "testbed/control": 12}
"""Folders to which an algorithm adds one file, and the number of files that count in each."""
LONGEST_LINE, LONGEST_PAGE = 120, 220
FILE = re.compile(r"`((?:testbed|analysis)/[\w/]+\.py)`")
ITEM = re.compile(r"^(\d+)\. `([^`]+)`: ", re.MULTILINE)
ELSEWHERE = ": EpollEndpoint"
"""A class that an item mentions beside those of its own file."""
OPENING = re.compile(r"(What|Of|Whether|By) ")


def section(heading: str) -> str:
    """The text under a heading of the design's page, up to the next heading."""
    page = DESIGN.read_text(encoding="utf-8")
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, heading
    return match[1]


def rows(table: str) -> list[list[str]]:
    """The cells of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def modules() -> dict[str, ast.Module]:
    """Every module of the product, by its path."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def tree() -> dict[str, ast.Module]:
    return modules()


def class_places(tree: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Where each public class is defined."""
    places: dict[str, list[str]] = {}
    for path, module in tree.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return places


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands alone: of modules, classes, functions, and attributes."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def glossary() -> list[list[str]]:
    return rows(GLOSSARY.read_text(encoding="utf-8"))


def glossary_file(cell: str) -> Path:
    place = cell.strip("`")
    return ROOT / place if place.startswith("analysis/") else ROOT / "testbed" / place


@pytest.mark.parametrize("heading", MOST_FILES)
def test_walk_names_files_that_exist_and_few(heading: str) -> None:
    items = ITEM.findall(section(heading))
    files = {path for _, path in items}
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    assert set(FILE.findall(section(heading))) == files
    assert [path for path in sorted(files) if not (ROOT / path).is_file()] == []
    assert MOST_FILES[heading] / 2 <= len(files) <= MOST_FILES[heading]


@pytest.mark.parametrize("heading", MOST_FILES)
def test_walk_says_names_that_its_files_define(heading: str) -> None:
    parts = re.split(r"^\d+\. ", section(heading), flags=re.MULTILINE)[1:]
    unknown = []
    for part in parts:
        (path, *_), text = FILE.findall(part), (ROOT / FILE.findall(part)[0]).read_text()
        names = re.findall(r"`([A-Za-z_][\w.]*)`", part.partition("`: ")[2])
        code = [name for name in names if "/" not in name and not name.endswith(".json")]
        unknown += [
            f"{path}: {name}"
            for name in code
            if not all(re.search(rf"\b{word}\b", text) for word in name.split("."))
        ]
    assert [line for line in unknown if not line.endswith(ELSEWHERE)] == []


def test_room_table_names_every_room_and_files_that_exist() -> None:
    table = rows(section("The rooms"))
    folders = {folder.strip("`") for folder, *_ in table}
    packages = {str(p.parent.relative_to(ROOT)) for p in ROOT.glob("testbed/*/__init__.py")}
    assert folders == packages | {"analysis"}
    for folder, holds, first in table:
        assert holds
        assert first.strip("`").startswith(folder.strip("`") + "/")
    named = FILE.findall(section("The rooms")) + FILE.findall(section("Three questions"))
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert len(section("Three questions").split("* **")) == 4


def test_layers_of_the_page_are_those_of_the_linter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    layers = [re.sub(r"\btestbed\.", "", layer).split(" : ") for layer in contract["layers"]]
    block = section("Import rules").split("```")[1]
    assert [line.split(", ") for line in block.strip().splitlines()] == layers
    for rule in contract["ignore_imports"]:
        assert all(f"`{module}`" in section("Import rules") for module in rule.split(" -> "))


def test_the_channel_alone_opens_netlink() -> None:
    opened = [path for path in (ROOT / "testbed").rglob("*.py") if "AF_NETLINK" in path.read_text()]
    assert [str(path.relative_to(ROOT)) for path in opened] == ["testbed/links/tc/netlink.py"]


def test_glossary_terms_are_in_the_files_that_it_names() -> None:
    table = glossary()
    assert 70 <= len(table) <= 130
    terms = [term for term, *_ in table]
    assert len(set(terms)) == len(terms)
    missing = []
    for term, meaning, source, cell in table:
        assert meaning, term
        assert source, term
        path = glossary_file(cell)
        text = path.read_text(encoding="utf-8").casefold() if path.is_file() else ""
        words = re.findall(r"\w+", term.casefold())
        words = [word for word in words if len(word) > 2] or words
        if not any(re.search(rf"\b{re.escape(word)}", text) for word in words):
            missing.append(f"{term}: {cell}")
    assert missing == []


def name_words(tree: Mapping[str, ast.Module]) -> set[str]:
    """Words of three letters or more in the names of modules and public classes, but for those of algorithms' schemes."""
    names = set()
    for path, module in tree.items():
        folder, _, file = path.rpartition("/")
        if folder not in PLUG_INS:
            names.add(file.removesuffix(".py"))
            names |= {node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    public = [name for name in names if not name.startswith("_")]
    words = [word for name in public for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return {word.casefold() for word in words if len(word) > 2}


def test_words_of_names_are_in_the_glossary_or_plain_english(
    tree: Mapping[str, ast.Module],
) -> None:
    """A new one is explained in the glossary; or it needs no explanation, and goes into the list."""
    explained = {
        word
        for term, meaning, *_ in glossary()
        for word in re.findall(r"[a-z]+", f"{term} {meaning}".casefold())
    }
    plain = set(PLAIN.read_text(encoding="utf-8").split())
    unexplained = {
        word
        for word in name_words(tree)
        if explained.isdisjoint({word, f"{word}s", f"{word}es", word.removesuffix("s")})
    }
    assert unexplained - plain == set(), "not in docs/glossary.md"
    assert plain - unexplained == set(), "in no name any more, or in the glossary"


@pytest.mark.parametrize("page", [DESIGN, GLOSSARY], ids=lambda page: page.name)
def test_page_has_short_lines(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE] == []
    assert page == GLOSSARY or len(lines) <= LONGEST_PAGE


def test_public_class_is_defined_once(tree: Mapping[str, ast.Module]) -> None:
    doubled = {name: places for name, places in class_places(tree).items() if len(places) > 1}
    assert doubled == {}


def test_docstring_begins_with_a_verb_or_noun_phrase(tree: Mapping[str, ast.Module]) -> None:
    wrong = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, module in tree.items()
        for line, text in docstrings(module)
        if OPENING.match(text)
    ]
    assert wrong == [], f"{len(wrong)} docstrings"


def test_no_import_circles() -> None:
    """Imports in functions and those for types count, too."""
    assert circles(graph(ROOT, PACKAGES)) == []


def test_modules_are_few_and_short(tree: Mapping[str, ast.Module]) -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in tree}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}
    assert 100 < counted(lengths) <= MOST_MODULES


def counted(paths: Iterable[str]) -> int:
    """The number of modules: of a folder of plug-ins so many at most."""
    folders = Counter(path.rpartition("/")[0] for path in paths)
    return sum(min(number, PLUG_INS.get(folder, number)) for folder, number in folders.items())


def test_a_new_scheme_counts_as_none_and_a_new_module_as_one(
    tree: Mapping[str, ast.Module],
) -> None:
    now = counted(tree)
    for folder in PLUG_INS:
        assert counted([*tree, f"{folder}/random_block.py"]) == now
    assert counted([*tree, "testbed/compress/random_block.py"]) == now + 1
