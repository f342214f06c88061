"""Pages of docs/how-to/examples: what they tell to type names scenarios, scripts and options that there are."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from not_empty import not_empty

from testbed.scenario.load import load

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to" / "examples").glob("*.md"))
TYPED = re.compile(r"(?:^ {4}|`)((?:testbed exec|make example) [^`#\n]+)", re.MULTILINE)


def typed(page: Path) -> list[str]:
    return [found.strip() for found in TYPED.findall(page.read_text())]


def made(command: str) -> str:
    """What `make example …` would run."""
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = re.search(r"testbed exec .*?(?=;)", done.stdout)
    assert found is not None, done.stdout
    return found[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_typed_is_there(page: Path) -> None:
    commands = typed(page)
    assert any(command.startswith("make") for command in commands)
    for command in commands:
        line = made(command) if command.startswith("make") else command
        ours, _, theirs = line.partition(" -- ")
        load(ROOT / shlex.split(ours)[2], trains=False)
        _, script, *arguments = shlex.split(theirs)
        text = (ROOT / script).read_text()
        options = [argument for argument in arguments if argument.startswith("--")]
        assert all(f'"{option}"' in text for option in options), command


def test_every_script_has_a_page() -> None:
    pages = {page.stem for page in PAGES} - {"README"}
    told = " ".join(page.read_text() for page in PAGES)
    assert pages <= {script.stem for script in (ROOT / "examples").glob("*.py")}
    for script in not_empty((ROOT / "examples").glob("char_*.py")):
        assert script.stem in pages and f"({script.stem}.md)" in told
