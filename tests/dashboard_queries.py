"""Queries of a dashboard as Grafana sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def queries(document: Mapping[str, Any]) -> list[str]:
    """Return every query of a dashboard, of panels and annotations, its variables filled in."""
    expressions = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    expressions += [annotation["expr"] for annotation in document["annotations"]["list"]]
    values = {entry["name"]: entry["current"]["value"] for entry in document["templating"]["list"]}
    return [_filled(expression, values) for expression in expressions]


def _filled(expression: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    return expression
