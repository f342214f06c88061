"""The documentation's site in a browser: every page without a complaint; search, colours and what the pointer shows."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_rig import MARKS, SCHEMES, WIDTHS, browser, violations, watched

__all__ = ["browser"]
pytestmark = [*MARKS, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing on standard error."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Where the site is served on the loopback, and the paths of its pages."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: `make docs` does it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", [p for p in pages if p != "404.html"]
        server.shutdown()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_drawn_without_a_complaint(
    browser: Any, site: tuple[str, list[str]], width: int, scheme: str
) -> None:
    address, pages = site
    page = watched(browser, address, width, scheme)
    assert len(pages) > 50
    found: dict[str, Any] = {}
    for name in pages:
        assert page.goto(address + name).ok
        page.wait_for_function("document.readyState === 'complete'")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        if said := [
            *violations(page),
            *page.complaints,
            *(["wider than the screen"] if wide else []),
        ]:
            found[name] = said
        page.complaints.clear()
    page.context.close()
    assert found == {}


def test_search_finds_a_page(browser: Any, site: tuple[str, list[str]]) -> None:
    page = watched(browser, site[0])
    page.goto(site[0] + "index.html")
    page.locator("input.md-search__input").fill("certificate")
    results = page.locator(".md-search-result__item a.md-search-result__link")
    results.first.wait_for()
    names = [link.get_attribute("href") for link in results.all()]
    assert any("reference/certificate.html" in name for name in names), names
    assert "certificate" in page.locator(".md-search-result mark").first.inner_text().lower()
    results.first.click()
    page.wait_for_url("**/*.html?h=*")
    assert page.complaints == []
    page.context.close()


def test_colours_are_the_readers_choice_on_every_page(
    browser: Any, site: tuple[str, list[str]]
) -> None:
    page = watched(browser, site[0])
    page.goto(site[0] + "index.html")
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert page.evaluate(scheme) == "default"
    page.locator("label[title=Dark]").click()
    assert page.evaluate(scheme) == "slate"
    page.goto(site[0] + "docs/glossary.html")
    assert page.evaluate(scheme) == "slate" and page.complaints == []
    page.context.close()


def test_the_pointer_and_the_keyboard_reach_what_a_page_has(
    browser: Any, site: tuple[str, list[str]]
) -> None:
    page = watched(browser, site[0])
    page.goto(site[0] + "docs/first-steps/first-run.html")
    link = page.locator(".md-content a:not(.headerlink)").first
    colour = "(node) => getComputedStyle(node).color"
    before = link.evaluate(colour)
    link.hover()
    page.wait_for_function(
        "([a, b]) => getComputedStyle(a).color !== b", arg=[link.element_handle(), before]
    )
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator("div.highlight").first
    block.locator("button[data-md-type=copy]").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == block.locator("code").inner_text().strip()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.classList.contains('md-search__input')")
    assert page.complaints == []
    page.context.close()
