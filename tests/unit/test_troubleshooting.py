"""Messages that the page on troubleshooting explains are messages of the product, word for word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
GAP = "…"


def text_of(node: ast.expr) -> str | None:
    """A string or an f-string, with a gap for everything that is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or GAP for part in node.values)
    return None


def messages() -> Iterator[str]:
    for path in (ROOT / "testbed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.expr) and (text := text_of(node)) is not None:
                yield text


MESSAGES = [re.sub(f"{GAP}+", GAP, text) for text in messages() if " " in text]


def listed() -> list[str]:
    rows = re.findall(r"^\| (`.+?`) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [row.strip("`").strip() for row in rows if row != "`message`"]


def known(message: str) -> bool:
    """Whether it is what the product says, or its beginning."""
    return any(said.startswith(message.removesuffix(GAP)) for said in MESSAGES)


@pytest.mark.parametrize("message", listed())
def test_the_product_says_so(message: str) -> None:
    assert known(message)


def test_another_message_is_not_known() -> None:
    assert len(listed()) > 15
    assert not known("no Docker engine replies")
    assert not known("the image … has never been made")
