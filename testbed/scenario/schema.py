"""The JSON schema of scenario files, for editors. ``python -m testbed.scenario.schema`` writes it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.scenario.model import Scenario

PATH = Path(__file__).with_name("schema.json")


def document() -> dict[str, Any]:
    """The schema as data."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(mode="validation"),
    }


def text() -> str:
    """The schema as it should stand in ``schema.json``."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
