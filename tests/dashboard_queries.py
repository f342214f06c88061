"""Queries of a dashboard as Grafana sends them, and what Prometheus answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from testbed.runner import observe

SCENARIO = """
name: watched
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
events:
  - {kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}
  - {kind: outage, links: [worker-0], at: 2 s, for: 200 ms}
train:
  task: digits
  model: mlp
  optimizer: {name: sgd, lr: 0.1}
  pace: 250 ms
  stop: {steps: 60}
  evaluate_every: 5
algorithms: [topk-0.15]
"""
"""Has an event of each kind that the dashboard shows."""


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


def files_of(folder: Path) -> Path:
    """The folder of what observes the only comparison in ``folder``."""
    (files,) = folder.glob(f"comparisons/*/{observe.FOLDER}")
    return files


def address_of(files: Path) -> str:
    """Where Prometheus answers, as Grafana's data source has it."""
    text = (files / "grafana/provisioning/datasources/narrows.yaml").read_text()
    found = re.search(r"url: (http://127\.0\.0\.1:\d+)$", text, re.M)
    assert found is not None
    return found[1]


def ask(address: str, path: str, **parameters: str) -> Any:
    """Data of an answer of the HTTP API, as Grafana's data source asks for them."""
    with urlopen(f"{address}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
        content = json.load(answer)
    assert content["status"] == "success", content
    return content["data"]


def forget_answered(missing: set[str], address: str) -> bool:
    """Take queries that get data out of ``missing``; whether none is left."""
    for expression in sorted(missing):
        if ask(address, "query", query=expression)["result"]:
            missing.discard(expression)
    return not missing
