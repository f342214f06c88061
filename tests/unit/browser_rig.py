"""Debian's Chromium, driven by Playwright: `pip install playwright`, `apt-get install chromium`.

With $NARROWS_AXE, the path of axe-core's `axe.min.js`, what that finds of accessibility counts, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MARKS = [
    pytest.mark.optional,
    pytest.mark.skipif(
        find_spec("playwright") is None,
        reason="the package playwright is not installed: make setup does without",
    ),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]
"""Of tests that need a browser."""
WIDTHS, SCHEMES = (390, 1280, 1920), ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def watched(browser: Any, origin: str, width: int = 1280, scheme: str = "light") -> Any:
    """An empty page; what the console has and what is asked of others than ``origin`` is in its ``complaints``."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(origin) or page.complaints.append(f"asked for {request.url}")
        ),
    )
    return page


def violations(page: Any) -> list[list[str]]:
    """What axe-core finds: each rule with a first element that breaks it. Empty without $NARROWS_AXE."""
    if not (axe := os.environ.get("NARROWS_AXE")):
        return []
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": Path(axe).read_text()})
    found: list[list[str]] = page.evaluate(
        "axe.run({resultTypes: ['violations']})"
        ".then((r) => r.violations.map((v) => [v.id, v.nodes[0].html, v.nodes[0].failureSummary]))"
    )
    session.detach()
    return found
