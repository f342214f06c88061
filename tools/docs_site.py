"""Hook of MkDocs (``mkdocs.yml``): the README, ``docs/`` and the scenarios' pages as one site.

Pages link to each other by paths in this repository, and to files that are no pages. MkDocs knows
only what lies below one folder, so pages and the files that they link to are copied to
``build/docs-source`` as they lie here. The menu is the index in ``docs/README.md``: its headings,
and the pages of their tables, in that order.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "docs-source"
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]+)")
IMAGE = re.compile(r"<img[^>]+src=\"(?!https?:)([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TITLES = {
    "README.md": "Narrows",
    "CONTRIBUTING.md": "Contributing",
    "CHANGELOG.md": "Changes",
}
"""Of the pages at the top, which no index lists."""
STYLE = """<style>
.md-typeset :is(p, li, td) a:not(.headerlink) { text-decoration: underline; }
.md-tabs__link { opacity: 1; }
[data-md-color-scheme="slate"][data-md-color-primary] {
  --md-typeset-a-color: #8ab4ff; --md-code-hl-number-color: #f09a8e;
  --md-code-hl-constant-color: #b3a7f0;
}
[data-md-color-scheme] {
  --md-code-hl-comment-color: var(--md-code-fg-color);
  --md-code-hl-generic-color: var(--md-code-fg-color);
  --md-code-hl-operator-color: var(--md-code-fg-color);
  --md-code-hl-punctuation-color: var(--md-code-fg-color);
  --md-code-hl-variable-color: var(--md-code-fg-color);
}
.md-footer-meta .md-copyright { color: #bbb; }
</style>
<script>
new MutationObserver(() => {
  document.querySelectorAll('.md-code__nav').forEach((nav, index) => {
    const label = `Code ${index + 1}`;
    if (nav.ariaLabel !== label) nav.ariaLabel = label;
  });
}).observe(document, { childList: true, subtree: true });
</script>
</head>"""
"""What the theme lacks for who does not see colours well, or hears the page: in every head."""


def pages() -> list[Path]:
    """Pages of the site, relative to the repository."""
    below = (page for part in ("docs", "scenarios") for page in (ROOT / part).rglob("*.md"))
    return [*map(Path, TITLES), *sorted(page.relative_to(ROOT) for page in below)]


def linked(page: Path) -> Iterator[Path]:
    """Files that ``page`` links to and that are no pages, relative to the repository."""
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for target in [*LINK.findall(text), *IMAGE.findall(text)]:
        file = (ROOT / page.parent / target).resolve()
        if file.is_file() and file.suffix != ".md":
            yield file.relative_to(ROOT)


def menu() -> list[dict[str, Any]]:
    """The site's menu, for MkDocs."""
    sections: list[dict[str, Any]] = [
        {TITLES["README.md"]: ["README.md", {"All pages": "docs/README.md"}]}
    ]
    for part in re.split(
        r"^## ", (ROOT / "docs/README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]:
        title, _, text = part.partition("\n")
        names = [
            name for name in re.findall(r"\]\(([^)#]+\.md)\)", text) if not name.startswith("..")
        ]
        sections.append({title.strip(): [f"docs/{name}" for name in dict.fromkeys(names)]})
    scenarios = [str(page) for page in pages() if page.parts[0] == "scenarios"]
    sections[-1]["Results"] += sorted(scenarios, key=lambda name: (name.count("/"), name))
    sections += [{title: name} for name, title in TITLES.items() if name != "README.md"]
    return sections


def copy() -> None:
    """Make ``build/docs-source`` anew."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    files = pages()
    for file in dict.fromkeys([*files, *(target for page in files for target in linked(page))]):
        (SOURCE / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, SOURCE / file)


def on_config(config: Any) -> Any:
    """Have MkDocs read the copy, with that menu."""
    copy()
    config["docs_dir"] = str(SOURCE)
    config["nav"] = menu()
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have the search list results and history after the pages that explain."""
    if page.file.src_uri.startswith(("scenarios/", "CHANGELOG")):
        page.meta["search"] = {"boost": 0.25}
    return markdown


def on_post_page(output: str, **_: Any) -> str:
    """Make a page accessible where the theme leaves that open: links that do not differ by colour
    alone, no heading of a column without words, tables that the keyboard can scroll."""
    text = re.sub(r"<th([^>]*)>\s*</th>", r"<td\1></td>", output)
    text = text.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)
    text = re.sub(r'aria-labelledby="__nav_([\d_]+)_label"', r'aria-label="Section \1"', text)
    return text.replace("<table>", '<table tabindex="0">').replace("</head>", STYLE, 1)
