"""Every link of a page leads to a file and a heading; pages have short lines, and stand in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"https?://\S+")
DOCS = ROOT / "docs"
WRAPPED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
"""Pages that have short lines."""
LONGEST_LINE = LONGEST_README = 120


def pages() -> list[Path]:
    """What the project has, and neither environments nor builds beside it."""
    top = [*ROOT.glob("*.md")]
    return top + [page for part in ("docs", "scenarios") for page in (ROOT / part).rglob("*.md")]


def anchor(heading: str) -> str:
    """As code hosts make it of a heading: letters, digits, hyphens and underscores; blanks become hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        found[anchor(heading)] = found.get(anchor(heading), 0) + 1
    return {name if not n else f"{name}-{n}" for name, many in found.items() for n in range(many)}


def broken(page: Path) -> Iterator[str]:
    for place, heading in LINK.findall(FENCE.sub("", page.read_text())):
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            yield place
        elif heading and heading not in anchors(target):
            yield f"{place}#{heading}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# One, `two`\n[x](#one-two) [y](b.md) [z](#three) [w](a.md#one)\n"
    )
    assert list(broken(tmp_path / "a.md")) == ["b.md", "#three", "a.md#one"]


def long_lines(text: str) -> list[str]:
    """Lines of a page over the limit, without code between fences and without addresses."""
    lines = ADDRESS.sub("", FENCE.sub("", text)).splitlines()
    return [line for line in lines if len(line) > LONGEST_LINE]


@pytest.mark.parametrize("page", WRAPPED, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_short_lines(page: Path) -> None:
    assert long_lines(page.read_text(encoding="utf-8")) == []


def test_long_lines_are_found_outside_of_code_and_addresses() -> None:
    long = "x" * (LONGEST_LINE + 1)
    assert long_lines(f"{long}\n\n```\n{long}\n```\n") == [long]
    assert long_lines(f"[a](https://{long})\n") == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_every_page_stands_in_the_index() -> None:
    index = DOCS / "README.md"
    listed = {(DOCS / place).resolve() for place, _ in LINK.findall(index.read_text()) if place}
    assert set(DOCS.rglob("*.md")) - {index} - listed == set()
