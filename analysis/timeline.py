"""The timeline of some steps of a run, from its records: spans of workers and servers, side by
side in tracks, and the bytes under way. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from itertools import chain as concatenated
from typing import Any

from analysis.load import Run
from testbed.errors import InputError
from testbed.records.events import PHASES, phase_s
from testbed.records.stored import Record

ACTIVITIES = (
    "forward", "backward", "compute", "stall", "queue", *PHASES[2:], "held", "gather", "aggregate",
    "reply",
)  # fmt: skip
"""In the order of a legend. ``stall``: a worker's computation waited for parameters. ``queue``:
what was there waited for others' turn. ``held``: a bucket was decoded until its parameters began to
be applied, which may be when they are next computed with. ``gather``: from the first header to the
last byte of all workers' parts; ``reply``: the server sends."""

LEAST_S = 1e-9
"""Less is the difference of two sums that should be equal."""


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds of model time after t0; ``to_s`` is never before ``from_s``."""

    node: str
    bucket: int | None
    """None: of the whole step."""
    activity: str
    step: int
    from_s: float
    to_s: float
    layer: str | None = None
    """That is computed; None where it is not one layer's."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts about it, as JSON values."""

    @property
    def name(self) -> str:
        """Return the activity, and the layer that it was for."""
        return self.activity if self.layer is None else f"{self.activity} {self.layer}"


def chain(times: Iterable[float], activities: Iterable[str]) -> Iterable[tuple[str, float, float]]:
    """Activities that follow one another, with their times; those that took less than ``LEAST_S``
    are left out.

    A time before the one before it, which clocks of two threads may give, counts as equal to it.
    """
    for activity, (from_s, to_s) in zip(activities, pairwise(accumulate(times, max)), strict=True):
        if to_s - from_s >= LEAST_S:
            yield activity, from_s, to_s


_DONE = ("gather", "aggregate", "queue", "reply")


def served_spans(record: Record, dilation: float) -> Iterator[Span]:
    """Yield the spans of a ``served`` record."""
    yield from _spans(record, int(record["bucket"]), float(record["complete_s"]), dilation)


def round_spans(record: Record, dilation: float) -> Iterator[Span]:
    """Yield the spans of a ``round`` record, whose messages are all of the step's."""
    complete_s = max((float(m["last_s"]) for m in record["messages"]), default=None)
    if complete_s is not None:
        yield from _spans(record, None, complete_s, dilation)


def _spans(
    record: Record, bucket: int | None, complete_s: float, dilation: float
) -> Iterator[Span]:
    first_s = min((float(m["first_s"]) for m in record["messages"]), default=complete_s)
    times = [
        first_s,
        complete_s,
        complete_s + float(record["aggregate_s"]),
        float(record["send_start_s"]),
        float(record["send_end_s"]),
    ]
    facts = {
        "gather": {
            "messages": len(record["messages"]),
            "bytes": sum(m["bytes"] for m in record["messages"]),
        },
        "aggregate": {"union_count": record["union_count"]},
        "reply": {"bytes": record["bytes_down"]},
    }
    yield from _followed(record, bucket, times, _DONE, facts, dilation)


def _followed(
    record: Record,
    bucket: int | None,
    times: Iterable[float],
    activities: Iterable[str],
    facts: Mapping[str, dict[str, Any]],
    dilation: float,
) -> Iterator[Span]:
    """Yield the spans of activities that follow one another, of a record's node and step.
    ``times``: wall time."""
    node, step = str(record["node"]), int(record["step"])
    for activity, from_s, to_s in chain([time_s / dilation for time_s in times], activities):
        yield Span(node, bucket, activity, step, from_s, to_s, facts=facts.get(activity, {}))


_WAY = (
    "queue", "compress", "queue", "send", "wait", "receive", "queue", "decompress", "held", "apply",
)  # fmt: skip
_TIMES = (
    "ready_s", "pack_s", "packed_s", "start_s", "sent_s", "first_s", "last_s", "decode_s",
    "decoded_s", "applying_s", "applied_s",
)  # fmt: skip
"""Times of a bucket: between two of them is the activity of ``_WAY`` at that place. ``decode_s`` is
not recorded."""


def bucket_spans(records: Sequence[Record], dilation: float) -> Iterator[Span]:
    """The ways of a worker's buckets of one step, from the gradient to the parameters."""
    for record, decode_s in zip(records, _decodes_s(records), strict=True):
        # older records say only when it was applied
        missing = {"decode_s": decode_s, "applying_s": record["applied_s"]}
        whole = {**missing, **record}
        times, facts = [float(whole[key]) for key in _TIMES], _message_facts(whole)
        yield from _followed(whole, int(whole["bucket"]), times, _WAY, facts, dilation)


def _decodes_s(records: Sequence[Record]) -> list[float]:
    """When each began to be decoded: it was there, and the one before it was done. Those that were
    done at the same time were decoded together."""
    order = sorted({float(record["decoded_s"]) for record in records})
    before = dict(zip(order, [0.0, *order], strict=False))
    arrived_s: dict[float, float] = {}
    for record in records:
        done_s = float(record["decoded_s"])
        arrived_s[done_s] = max(float(record["last_s"]), arrived_s.get(done_s, before[done_s]))
    return [arrived_s[float(record["decoded_s"])] for record in records]


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
    for span in _followed(record, None, times, PHASES, _message_facts(record), dilation):
        if span.activity != "stall" and not (computed if span.activity == "compute" else sent):
            yield span


def _message_facts(record: Record) -> dict[str, dict[str, Any]]:
    """Return the facts of a message's activities."""
    return {
        "compress": {key: record[key] for key in ("density", "sent_count", "size")},
        "send": {"bytes": record["bytes_up"]},
        "receive": {"bytes": record["bytes_down"]},
    }


def backward_ends_s(record: Record) -> float | None:
    """When the backward pass of a ``pass`` record ended; None where it has none."""
    return max((float(to_s) for _, to_s in record["backward"].values()), default=None)


Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """Spans of ``nodes`` (workers by rank, then servers), in the order of their times on each."""

    nodes: tuple[str, ...]
    spans: tuple[Span, ...]
    names: Mapping[int, str]
    """Layers in each bucket, by its number. Empty where gradients travelled whole."""

    def of(self, node: str) -> list[Span]:
        """One node's."""
        return [span for span in self.spans if span.node == node]


def middle(run: Run) -> int:
    """The step in the middle of those that have a record."""
    return int(run.steps[len(run.steps) // 2])


def chosen(run: Run, first: int | None, last: int | None) -> list[int]:
    """The recorded steps from ``first`` to ``last``, both included. Raises InputError when there
    are none."""
    steps = [int(step) for step in run.steps]
    kept = [s for s in steps if (first is None or s >= first) and (last is None or s <= last)]
    if not kept:
        raise InputError(
            "none of these steps has a record",
            where="--steps",
            hint=f"The run has steps {steps[0]} to {steps[-1]}",
        )
    return kept


def timeline(run: Run, steps: Collection[int]) -> StepTimeline:
    """All that nodes did in ``steps``, in model time."""
    wanted = set(steps)
    unsorted = concatenated(_workers(run, wanted), _servers(run, wanted))
    spans = sorted(unsorted, key=lambda span: (span.from_s, span.to_s))
    active = {span.node for span in spans}
    nodes = tuple(name for role in ("worker", "server") for name in _ranked(run, role))
    return StepTimeline(
        tuple(name for name in nodes if name in active), tuple(spans), bucket_names(run)
    )


def bucket_names(run: Run) -> dict[int, str]:
    """Return the layers of each bucket, by bucket, ascending: from the first to the last in the
    order of the forward pass."""
    parts = {int(r["bucket"]): [*r["parts"]] for r in run.events.get("bucket", [])}
    return {number: _layers(parts[number]) for number in sorted(parts)}


def layer_of(part: str) -> str:
    """The layer that a parameter belongs to, as ``compress.layout`` has it."""
    return part.rpartition(".")[0]


def layers_of(run: Run) -> dict[str, int]:
    """Return the bucket that each layer travels in."""
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
    """Key the records of a kind by node and step; of several, the last."""
    return {(str(r["node"]), int(r["step"])): r for r in run.events.get(kind, [])}


def _grouped(run: Run, kind: str) -> dict[Key, list[Mapping[str, Any]]]:
    """All of each node and step."""
    records: dict[Key, list[Mapping[str, Any]]] = {}
    for record in run.events.get(kind, []):
        records.setdefault((str(record["node"]), int(record["step"])), []).append(record)
    return records


def _ranked(run: Run, role: str) -> list[str]:
    nodes: Mapping[str, Mapping[str, Any]] = run.manifest["nodes"]
    return sorted(
        (n for n in nodes if nodes[n]["role"] == role), key=lambda n: int(nodes[n]["rank"])
    )


def tracks(spans: Iterable[Span]) -> list[list[Span]]:
    """As few tracks as possible, each in the order of time: a span goes to the first that is free.

    One row mostly needs one track. Rows of a server may need more: one worker has a bucket's reply
    and sends the next step's while the reply to another is still being sent.
    """
    rows_of_spans: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.from_s, span.to_s)):
        free = next((track for track in rows_of_spans if track[-1].to_s <= span.from_s), None)
        if free is None:
            rows_of_spans.append([span])
        else:
            free.append(span)
    return rows_of_spans


def rows(spans: Iterable[Span]) -> dict[int | None, list[Span]]:
    """A node's spans by bucket, ascending; what is of the whole step comes first."""
    by_bucket: dict[int | None, list[Span]] = {}
    for span in spans:
        by_bucket.setdefault(span.bucket, []).append(span)
    return dict(sorted(by_bucket.items(), key=lambda item: -1 if item[0] is None else item[0]))


Point = tuple[float, int]
"""Model time (s), and bytes under way from then on."""


def under_way(run: Run, steps: Collection[int]) -> dict[tuple[str, str], list[Point]]:
    """Return, for each worker and direction (``up``, ``down``), points of the frames that one side
    began to send and that had not wholly come to the other's network stack. They come from the
    servers' records: nothing where there are none."""
    wanted = set(steps)
    names = {int(node["peer"]): name for name, node in run.manifest["nodes"].items()}
    moves: dict[tuple[str, str], list[Point]] = {}
    for record in _records(run, ("served", "round"), wanted):
        for message in record["messages"]:
            path = names[int(message["sender"])], "up"
            _add(moves, path, message["sent_s"], message["arrived_s"], message["bytes"])
    sent_s = _replies(run, wanted)
    resting = (record for record in run.events.get("rest", []) if record["step"] in wanted)
    for record in concatenated(_records(run, ("bucket", "step"), wanted), resting):
        step = int(record["step"])
        begun_s = sent_s.get((step, record.get("bucket")), sent_s.get((step, None)))
        if begun_s is not None:
            path = str(record["node"]), "down"
            _add(moves, path, begun_s, record["arrived_s"], record["bytes_down"])
    return {path: list(_summed(points, run.dilation)) for path, points in sorted(moves.items())}


def _records(run: Run, kinds: tuple[str, str], steps: set[int]) -> Iterator[Mapping[str, Any]]:
    """Yield the records of buckets; those of a whole step where a node has none."""
    finer, coarser = ([r for r in run.events.get(kind, []) if r["step"] in steps] for kind in kinds)
    known = {(r["node"], r["step"]) for r in finer}
    yield from finer
    yield from (r for r in coarser if (r["node"], r["step"]) not in known)


def _replies(run: Run, steps: set[int]) -> dict[tuple[int, int | None], float]:
    """When the first server began to reply, by step and bucket; None where it has no buckets."""
    begun_s: dict[tuple[int, int | None], float] = {}
    for record in _records(run, ("served", "round"), steps):
        key = int(record["step"]), record.get("bucket")
        begun_s[key] = min(float(record["send_start_s"]), begun_s.get(key, float("inf")))
    return begun_s


def _add(
    moves: dict[tuple[str, str], list[Point]],
    path: tuple[str, str],
    from_s: float,
    to_s: float,
    size: float,
) -> None:
    if to_s > from_s:
        moves.setdefault(path, []).extend([(from_s, int(size)), (to_s, -int(size))])


def _summed(points: Iterable[Point], dilation: float) -> Iterator[Point]:
    total = 0
    for time_s, same in groupby(sorted(points), key=lambda point: point[0]):
        total += sum(change for _, change in same)
        yield time_s / dilation, total
