"""Every link of a page leads to a file that the project has, and to a heading that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


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
