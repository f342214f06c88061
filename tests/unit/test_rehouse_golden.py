"""What runs record and commands print is what it was before the code was moved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_rehouse import GOLDEN, as_text, recorded


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, str]]]:
    return recorded(tmp_path_factory.mktemp("golden"))


def test_recording_it_anew_moves_no_line() -> None:
    text = GOLDEN.read_text()
    assert as_text(json.loads(text)) == text


@pytest.mark.parametrize("kind", ["runs", "texts"])
def test_nothing_has_changed(kind: str, now: dict[str, dict[str, dict[str, str]]]) -> None:
    before = json.loads(Path(GOLDEN).read_text())[kind]
    changed = {
        name: [part for part in entry if now[kind].get(name, {}).get(part) != entry[part]]
        for name, entry in before.items()
        if now[kind].get(name) != entry
    }
    assert not changed and now[kind].keys() == before.keys()
