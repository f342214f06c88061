"""The documentation as a site: every page is in its menu, once, and what pages link to is copied beside them."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook, with a copy of its own."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOURCE", tmp_path / "source")
    return module


def listed(menu: list[Any]) -> list[str]:
    """Pages of a menu, in its order."""
    pages: list[str] = []
    for entry in menu:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        pages += listed(value) if isinstance(value, list) else [value]
    return pages


def test_the_menu_has_every_page_once(site: ModuleType) -> None:
    menu = listed(site.menu())
    assert sorted(menu) == sorted(map(str, site.pages()))
    assert len(set(menu)) == len(menu)
    sections = [next(iter(entry)) for entry in site.menu()]
    assert sections[1:6] == ["First steps", "How to", "Reference", "Explanation", "Results"]


def test_what_pages_link_to_is_copied(site: ModuleType) -> None:
    site.copy()
    copied = {
        str(path.relative_to(site.SOURCE)) for path in site.SOURCE.rglob("*") if path.is_file()
    }
    assert {"README.md", "docs/images/rate_k_delay.png", "docs/how-to/comparing.md"} <= copied
    for page in site.pages():
        assert {str(file) for file in site.linked(page)} <= copied
        assert (site.SOURCE / page).read_bytes() == (ROOT / page).read_bytes()


def test_every_file_that_a_page_shows_or_names_is_one_of_its_own(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it is written; no pages, nothing from elsewhere, nothing in a block of code."""
    monkeypatch.setattr(site, "ROOT", tmp_path)
    for name in ("a.png", "b.svg", "c.yaml", "code.txt", "other.md"):
        (tmp_path / name).touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(
        '![one](../a.png) <img width="3" src="../b.svg"> [three](../c.yaml#L3) [page](../other.md)\n'
        '<img src="https://example.org/d.png"> [gone](../gone.txt)\n```\n[no](../code.txt)\n```\n'
    )
    own = {str(file) for file in site.linked(Path("docs/page.md"))}
    assert own == {"a.png", "b.svg", "c.yaml"}


def test_code_in_a_list_is_code_on_the_site_too(site: ModuleType) -> None:
    """Python-Markdown takes fewer than eight spaces there for words of the item."""
    for page in site.pages():
        lines, within = (ROOT / page).read_text(encoding="utf-8").splitlines(), False
        for before, line in itertools.pairwise(lines):
            if line and not line.startswith(" "):
                within = re.match(r"(\d+\.|[-*]) ", line) is not None
            assert before or not within or not re.match(r" {5,7}\S", line), f"{page}: {line}"


def test_pages_are_made_accessible(site: ModuleType) -> None:
    theme = (
        '<head></head><div role="dialog"><nav aria-labelledby="__nav_3_label"><nav '
        'aria-labelledby="__nav_4_1_label"><table><th></th><th style="x">name</th></table>'
    )
    assert site.on_post_page(theme, page=None, config=None) == (
        f'<head>{site.STYLE}<div role="dialog" aria-label="Search"><nav aria-label="Section 3">'
        '<nav aria-label="Section 4_1"><table tabindex="0"><td></td><th style="x">name</th></table>'
    )


@pytest.mark.optional
def test_the_site_is_built_without_a_warning(site: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: `make docs` does it")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "site" / "docs" / "reference" / "verdict.html").read_text()
    assert "degraded_factor" in page
    assert 'src="http' not in page and "fonts.googleapis" not in page, "nothing is fetched"


def test_the_search_finds_parts_of_keys_and_explanations_first(site: ModuleType) -> None:
    (separator,) = re.findall(r"separator: '(.+?)'\}", (ROOT / "mkdocs.yml").read_text())
    assert re.split(separator, "offset_per_seed: 10.5 s") == ["offset", "per", "seed", "10.5", "s"]
    boosts = {}
    for name in ("docs/how-to/report.md", "scenarios/papers/algc/README.md", "CHANGELOG.md"):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
        assert site.on_page_markdown("text", page=page, config=None) == "text"
        boosts[name] = page.meta.get("search", {}).get("boost", 1)
    assert list(boosts.values()) == [1, 0.25, 0.25]
