"""A backlogged link that is dead for two seconds: what passes in it, and how soon it serves again."""

from __future__ import annotations

import time
from typing import Any

from testbed.bench.alternatives import Alternative, Ours, segments
from testbed.bench.figures import MBIT, Step, median
from testbed.bench.lab import OURS, PLAIN, Lab, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Row, Suite, at_most
from testbed.bench.setup import Setup
from testbed.bench.stream import stream
from testbed.bench.with_tc import TcHtb, TcTbf
from testbed.scenario.shape import FRAME_BYTES

RATE, LENGTH_S, LEAD_S, AFTER_S = 100 * MBIT, 2.0, 1.0, 3.0
GRACE_S = 5e-3
"""What had left the link, and the one bundle that carries the debt, may still arrive so long."""
BACK_MS = 20.0
Seen = dict[str, float | None]


def run(setup: Setup) -> Suite:
    """Ours against a tiny rate set with ``tc``, which is how it is done there."""
    length_s = setup.seconds(LENGTH_S, 0.5)
    others: list[Alternative] = [Ours(), TcHtb(), TcTbf()]
    found: dict[str, list[Seen]] = {other.name: [] for other in others}
    with lab([OURS, PLAIN], setup) as made:
        for repetition, other in interleaved(others, setup.repetitions):
            setup.say(f"outage: {other.name}, {repetition + 1} of {setup.repetitions}")
            found[other.name].append(_through(made, other, length_s))
    rows = [_row(name, seen) for name, seen in found.items()]
    ours = next(row for row in rows if row["alternative"] == "narrows")
    return Suite(
        f"An outage of {length_s:g} s at 100 Mbit/s",
        rows,
        checks(ours, segments([_history(length_s)])),
        {"repeat": setup.repetitions, "grace_ms": GRACE_S * 1e3, "waited_s": AFTER_S},
    )


def checks(ours: Row, bundle: int) -> list[Check]:
    """Of our own row; ``bundle``: frames of an offload bundle. Pure."""
    name = f"bytes in its first {GRACE_S * 1e3:g} ms (a bundle of {bundle} and a packet)"
    return [
        at_most("bytes in it", ours["inside_bytes"], 0),
        at_most(name, ours["at_its_beginning_bytes"], (bundle + 1) * FRAME_BYTES),
        at_most("first byte after it, ms", ours["first_byte_ms"], BACK_MS),
        at_most(f"outages without a byte {AFTER_S:g} s after", ours["never_back"], 0),
    ]


def _history(length_s: float) -> list[Step]:
    return [(0.0, RATE), (LEAD_S, 0), (LEAD_S + length_s, RATE)]


def _through(made: Lab, other: Alternative, length_s: float) -> Seen:
    begin_s, end_s = LEAD_S, LEAD_S + length_s
    other.install(made, _history(length_s))
    try:
        with stream(made, other.node) as running:
            t0_ns = time.monotonic_ns() + 500_000_000
            other.start(t0_ns)
            time.sleep(max(0.0, (t0_ns - time.monotonic_ns()) / 1e9 + end_s + AFTER_S))
            other.stop()
    finally:
        other.remove()
    return arrivals([((at - t0_ns) / 1e9, count) for at, count in running.came], begin_s, end_s)


def arrivals(came: list[tuple[float, int]], begin_s: float, end_s: float) -> Seen:
    """What came while the link should have been dead, and when the first came after it. Pure."""
    within = [(at, count) for at, count in came if begin_s <= at < end_s]
    first = next((at for at, _ in came if at >= end_s), None)
    return {
        "at_its_beginning": float(sum(n for at, n in within if at < begin_s + GRACE_S)),
        "inside": float(sum(n for at, n in within if at >= begin_s + GRACE_S)),
        "first_byte_ms": None if first is None else (first - end_s) * 1e3,
    }


def _row(name: str, seen: list[Seen]) -> dict[str, Any]:
    """``inside_bytes``: the most of all repetitions. ``never_back``: outages after which nothing came for 3 s."""
    back = [one["first_byte_ms"] for one in seen]
    first = [one["at_its_beginning"] or 0.0 for one in seen]
    return {
        "alternative": name,
        "inside_bytes": max(one["inside"] or 0.0 for one in seen),
        "at_its_beginning_bytes": median(first),
        "at_its_beginning_most": max(first),
        "first_byte_ms": median(back),
        "first_byte_worst_ms": max((at for at in back if at is not None), default=None),
        "never_back": back.count(None),
    }
