"""``docs/reference/values.md`` says what the code does."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.compress.base import Recipe, RecipeChoice, codings
from testbed.compress.layout import Layout

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "values.md").read_text()
COUNT = 25_000_000
MATRICES = Layout.of([(f"{number}", (512, 4608)) for number in range(10)])
POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def rows(columns: int) -> list[list[str]]:
    """Cells of every row that begins with a coding's name."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if len(row) == columns]


def number(text: str) -> float:
    """−2/7, 2⁻²⁴, 0.5."""
    text = text.replace("−", "-")
    if power := re.fullmatch(r"2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", text):
        return 2.0 ** int(power[1].translate(POWERS))
    return float(Fraction(text))


def options(cell: str) -> dict[str, Any]:
    """`bits` 4, `rounding` `nearest`."""
    found = re.findall(r"`(\w+)` (`\w+`|[\d.]+)", cell)
    return {
        name: value.strip("`") if value[0] == "`" else float(value) if "." in value else int(value)
        for name, value in found
    }


def test_every_coding_has_its_row() -> None:
    table = rows(6)
    assert {row[0].strip("`") for row in table} == set(codings)
    for name, code, *_ in table:
        assert codings.get(name.strip("`")).code == int(code)


@pytest.mark.parametrize("row", rows(6), ids=lambda row: f"{row[0]} {row[2]}")
def test_bits_and_options(row: list[str]) -> None:
    name, given = row[0].strip("`"), options(row[2])
    shaped = name == "lowrank" or given.get("per") == "row"
    layout = MATRICES if shaped else Layout.whole("w", COUNT)
    Recipe(values=RecipeChoice(name, given)).check()
    made = codings.get(name)(layout, **given)
    measured = 8 * made.section_bytes(layout.size) / layout.size
    assert row[5] == f"{measured:.4f}"
    assert 1 <= measured / float(row[4]) <= 1.01
    default = codings.get(name)(layout)
    if given.get("per") != "row":
        assert default.section_bytes(layout.size) == made.section_bytes(layout.size)


@pytest.mark.parametrize("row", rows(3), ids=lambda row: row[0])
def test_examples(row: list[str]) -> None:
    expected = [number(cell) for cell in row[2].split(", ")]
    section = np.frombuffer(bytes.fromhex(row[1].strip("`")), np.uint8)
    read = codings.get(row[0].strip("`")).read(section, len(expected))
    assert read.tolist() == np.array(expected, np.float32).tolist()


def test_what_keeps_zero() -> None:
    (said,) = re.findall(r"0 is read as 0 by all but (.*?)\. With", TEXT)
    named = set(re.findall(r"`(\w+)`", said))
    assert named == {name for name in codings if not codings.get(name).keeps_zero}
