"""The timeline of some steps of a run, from its records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from analysis.load import Run
from analysis.timeline.server import round_spans, served_spans
from analysis.timeline.span import Span
from analysis.timeline.worker import backward_ends_s, bucket_spans, pass_spans, phase_spans
from testbed.errors import InputError

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of ``nodes`` (workers by rank, then servers), in the order of their times on each."""

    nodes: tuple[str, ...]
    spans: tuple[Span, ...]
    names: Mapping[int, str]
    """Of buckets: the layers in them. Empty where gradients travelled whole."""

    def of(self, node: str) -> list[Span]:
        """One node's."""
        return [span for span in self.spans if span.node == node]


def middle(run: Run) -> int:
    """The step in the middle of those that have a record."""
    return int(run.steps[len(run.steps) // 2])


def chosen(run: Run, first: int | None, last: int | None) -> list[int]:
    """The recorded steps from ``first`` to ``last``, both included. Raises InputError when there are none."""
    steps = [int(step) for step in run.steps]
    kept = [
        s for s in steps if (first is None or s >= first) and (last is None or s <= last)
    ]  # fmt: skip
    if not kept:
        raise InputError(
            "none of these steps has a record", where="--steps",
            hint=f"The run has steps {steps[0]} to {steps[-1]}",
        )  # fmt: skip
    return kept


def timeline(run: Run, steps: Collection[int]) -> Timeline:
    """All that nodes did in ``steps``, in model time."""
    wanted = set(steps)
    found = chain(_workers(run, wanted), _servers(run, wanted))
    spans = sorted(found, key=lambda span: (span.from_s, span.to_s))
    seen = {span.node for span in spans}
    nodes = tuple(name for role in ("worker", "server") for name in _ranked(run, role))
    return Timeline(
        tuple(name for name in nodes if name in seen), tuple(spans), bucket_names(run)
    )  # fmt: skip


def bucket_names(run: Run) -> dict[int, str]:
    """By bucket, ascending: its layers, from the first to the last in the order of the forward pass."""
    parts = {int(r["bucket"]): [*r["parts"]] for r in run.events.get("bucket", [])}
    return {number: _layers(parts[number]) for number in sorted(parts)}


def layer_of(part: str) -> str:
    """The layer that a parameter belongs to, as ``compress.layout`` has it."""
    return part.rpartition(".")[0]


def layers_of(run: Run) -> dict[str, int]:
    """By layer, the bucket that it travels in."""
    return {
        layer_of(part): int(record["bucket"])
        for record in run.events.get("bucket", [])
        for part in record["parts"]
    }


def _layers(parts: Collection[str]) -> str:
    layers = list(dict.fromkeys(map(layer_of, parts)))
    if not layers:
        return "?"
    said = layers[0] if len(layers) == 1 else f"{layers[0]} … {layers[-1]}"
    return f"layer {said}" if layers[0].isdigit() else said or "model"


def _workers(run: Run, steps: set[int]) -> Iterator[Span]:
    passes, in_buckets = _keyed(run, "pass"), _grouped(run, "bucket")
    ends_s = {key: backward_ends_s(record) for key, record in passes.items()}
    for key, record in passes.items():
        if key[1] in steps:
            yield from pass_spans(record, ends_s.get((key[0], key[1] - 1)), run.dilation)
    for key, record in _keyed(run, "step").items():
        if key[1] in steps:
            yield from phase_spans(
                record, run.dilation, computed=key in passes, sent=key in in_buckets
            )
    for key, records in in_buckets.items():
        if key[1] in steps:
            yield from bucket_spans(records, run.dilation)


def _servers(run: Run, steps: set[int]) -> Iterator[Span]:
    in_buckets = _keyed(run, "served")
    for record in run.events.get("served", []):
        if record["step"] in steps:
            yield from served_spans(record, run.dilation)
    for key, record in _keyed(run, "round").items():
        if key[1] in steps and key not in in_buckets:
            yield from round_spans(record, run.dilation)


def _keyed(run: Run, kind: str) -> dict[Key, Mapping[str, Any]]:
    """By node and step; of several, the last."""
    return {(str(r["node"]), int(r["step"])): r for r in run.events.get(kind, [])}


def _grouped(run: Run, kind: str) -> dict[Key, list[Mapping[str, Any]]]:
    """All of each node and step."""
    found: dict[Key, list[Mapping[str, Any]]] = {}
    for record in run.events.get(kind, []):
        found.setdefault((str(record["node"]), int(record["step"])), []).append(record)
    return found


def _ranked(run: Run, role: str) -> list[str]:
    nodes: Mapping[str, Mapping[str, Any]] = run.manifest["nodes"]
    return sorted(
        (n for n in nodes if nodes[n]["role"] == role), key=lambda n: int(nodes[n]["rank"])
    )
