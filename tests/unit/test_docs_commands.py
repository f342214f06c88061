"""Every command that a page tells to type exists: verbs, options, targets, scenarios and scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from test_docs_links import ROOT, pages
from typer.core import TyperGroup
from typer.main import get_command

from testbed.cli import VERBS, application
from testbed.scenario.load import load

LINE = re.compile(
    r"^(?: {4}| {8}|\$ )?(?:sudo )?(?:[A-Z_]+=\S+ )*(?:\S*/)?((?:testbed|make|python) +[^\s.,:;].*)$"
)
LEFT_OUT, READERS = re.compile(r"<[^<>]*>|…"), "X"
"""What stands for something of the reader's, and what is written in its place."""
SHIPPED = re.compile(r"(?:scenarios|examples|tools)/[\w./-]+\.(?:yaml|py|csv)")


def code_lines(text: str) -> Iterator[str]:
    """Lines between fences, and those that are indented."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.rstrip()


def commands(text: str) -> Iterator[str]:
    """Commands in code, with lines that they go on in; comments and what follows are left out."""
    begun = ""
    for line in code_lines(text):
        begun += line
        if line.endswith("\\"):
            begun = begun[:-1]
        elif (typed := LINE.match(begun)) and begun.count('"') % 2:
            begun += " "
        else:
            if typed:
                yield re.split(r" +# | \| | && ", typed[1])[0]
            begun = ""


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The innermost command that ``words`` name, and what they give it. Raises KeyError."""
    if not words or words[0].startswith("-"):
        return get_command(application()), words
    module, _, name = VERBS[words.pop(0)].partition(":")
    target = getattr(import_module(module), name)
    if not isinstance(target, typer.Typer):
        app = typer.Typer()
        app.command()(target)
        return get_command(app), words
    inner: Any = get_command(target)
    while words and isinstance(inner, TyperGroup) and words[0] != READERS:
        *others, last = words.pop(0).split("|")
        assert set(others) <= set(inner.commands)
        inner = inner.commands[last]
    return inner, words


def complaints(command: str) -> Iterator[str]:
    """What of ``command`` there is not."""
    for path in SHIPPED.findall(command):
        if not (ROOT / path).exists():
            yield path
        elif path.endswith(".yaml"):
            load(ROOT / path, trains=False)
    program, *words = shlex.split(LEFT_OUT.sub(READERS, command))
    if program == "make":
        known, variables = targets()
        for word in words:
            name, assigned, _ = word.partition("=")
            if name not in (variables if assigned else known):
                yield word
    elif program == "testbed":
        try:
            inner, given = command_of(words)
        except KeyError as unknown:
            yield str(unknown.args[0])
            return
        ours = given[: given.index("--")] if "--" in given else given
        options = {name for param in inner.params for name in (*param.opts, *param.secondary_opts)}
        for word in ours:
            if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}:
                yield word


def targets() -> tuple[set[str], set[str]]:
    """Targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    return set(phony[1].split()), set(re.findall(r"\b[A-Z][A-Z_0-9]*\b", text))


def by_page() -> Mapping[Path, list[str]]:
    every = {page: list(commands(page.read_text(encoding="utf-8"))) for page in pages()}
    return {page: those for page, those in every.items() if those}


@pytest.mark.parametrize(
    ("page", "typed"), by_page().items(), ids=lambda it: "" if isinstance(it, list) else str(it.relative_to(ROOT))
)  # fmt: skip
def test_what_a_page_tells_to_type_exists(page: Path, typed: list[str]) -> None:
    assert {command: said for command in typed if (said := list(complaints(command)))} == {}, page


def test_nearly_all_pages_with_commands_are_looked_at() -> None:
    assert sum(map(len, by_page().values())) > 150
    assert {"README.md", "docs/how-to/exec.md", "docs/first-steps/own-scenario.md"} <= {
        str(page.relative_to(ROOT)) for page in by_page()
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    testbed ran scenarios/demo.yaml\n", ["ran"]),
        ("    testbed run scenarios/demo.yaml --fabrik sim\n", ["--fabrik"]),
        ("```\n.venv/bin/testbed bench wires --x   # z\n```\n", ["wires"]),
        ("    testbed trace make markov \\\n        --seeds 4\n", ["--seeds"]),
        ("    make demos FABRICS=sim\n", ["demos", "FABRICS=sim"]),
        ("1. So:\n\n        sudo .venv/bin/testbed cleen\n", ["cleen"]),
        ("    python examples/none.py\n", ["examples/none.py"]),
        ("    testbed exec scenarios/demo.yaml -- train --fabrik\n", []),
    ],
)
def test_what_does_not_exist_is_found(text: str, said: list[str]) -> None:
    (command,) = commands(text)
    assert list(complaints(command)) == said
