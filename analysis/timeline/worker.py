"""A worker's spans: its passes, its buckets' ways, or the phases of a step that travelled whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from analysis.timeline.span import LEAST_S, Span, chain
from testbed.record.summary import PHASES, phase_s

Record = Mapping[str, Any]

_WAY = (
    "queue", "compress", "queue", "send", "wait", "receive", "queue", "decompress", "held", "apply",
)  # fmt: skip
_TIMES = (
    "ready_s", "pack_s", "packed_s", "start_s", "sent_s", "first_s", "last_s", "decode_s", "decoded_s", "applying_s",
    "applied_s",
)  # fmt: skip
"""Of a bucket: what is between two of them is the activity of ``_WAY`` at that place. ``decode_s`` is not recorded."""


def bucket_spans(records: Sequence[Record], dilation: float) -> Iterator[Span]:
    """The ways of a worker's buckets of one step, from the gradient to the parameters."""
    for record, decode_s in zip(records, _decodes_s(records), strict=True):
        # older records say only when it was applied
        missing = {"decode_s": decode_s, "applying_s": record["applied_s"]}
        yield from _bucket_spans({**missing, **record}, dilation)


def _decodes_s(records: Sequence[Record]) -> list[float]:
    """When each began to be decoded: it was there, and the one before it was done. Those that were done at the same
    time were decoded together."""
    order = sorted({float(record["decoded_s"]) for record in records})
    before = dict(zip(order, [0.0, *order], strict=False))
    there: dict[float, float] = {}
    for record in records:
        done_s = float(record["decoded_s"])
        there[done_s] = max(float(record["last_s"]), there.get(done_s, before[done_s]))
    return [there[float(record["decoded_s"])] for record in records]


def _bucket_spans(record: Record, dilation: float) -> Iterator[Span]:
    facts = {
        "compress": {key: record[key] for key in ("density", "sent_count", "size")},
        "send": {"bytes": record["bytes_up"]},
        "receive": {"bytes": record["bytes_down"]},
    }
    times = [float(record[key]) / dilation for key in _TIMES]
    for activity, from_s, to_s in chain(times, _WAY):
        yield Span(
            str(record["node"]), int(record["bucket"]), activity, int(record["step"]), from_s, to_s,
            facts=facts.get(activity, {}),
        )  # fmt: skip


def pass_spans(record: Record, before_s: float | None, dilation: float) -> Iterator[Span]:
    """A ``pass`` record's layers, and where the forward pass waited for parameters.

    ``before_s`` (wall time): the end of the backward pass before; None where there was none.
    """
    node, step = str(record["node"]), int(record["step"])
    free_s = before_s
    for layer, (from_s, to_s) in record["forward"].items():
        if free_s is not None and from_s - free_s >= LEAST_S * dilation:
            yield Span(node, None, "stall", step, free_s / dilation, from_s / dilation, layer)
        yield Span(node, None, "forward", step, from_s / dilation, to_s / dilation, layer)
        free_s = to_s
    for layer, (from_s, to_s) in record["backward"].items():
        yield Span(node, None, "backward", step, from_s / dilation, to_s / dilation, layer)


def phase_spans(record: Record, dilation: float, *, computed: bool, sent: bool) -> Iterator[Span]:
    """A ``step`` record's phases one after the other, without the computation or all others where
    ``computed`` or ``sent`` say that they are known better."""
    start_s = float(record["start_s"])
    times = accumulate((phase_s(record, phase) for phase in PHASES), initial=start_s)
    for activity, from_s, to_s in chain([time_s / dilation for time_s in times], PHASES):
        if activity != "stall" and not (computed if activity == "compute" else sent):
            yield Span(
                str(record["node"]), None, activity, int(record["step"]), from_s, to_s,
                facts=_of_phase(record, activity),
            )  # fmt: skip


def _of_phase(record: Record, phase: str) -> dict[str, Any]:
    if phase == "compress":
        return {key: record[key] for key in ("density", "sent_count", "size")}
    key = {"send": "bytes_up", "receive": "bytes_down"}.get(phase)
    return {} if key is None else {"bytes": record[key]}


def backward_ends_s(record: Record) -> float | None:
    """When the backward pass of a ``pass`` record ended; None where it has none."""
    return max((float(to_s) for _, to_s in record["backward"].values()), default=None)
