"""Messages of a training run against the service curves of their links, queues at the sender and one hop on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.bench.figures import median, times
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite, at_least, at_most
from testbed.bench.setup import Setup
from testbed.bench.training import sized, summary, written

PLACES = ("nic", "network")
USED = 1.0
"""Error over its tolerance of 1 % and two packet times."""
JUDGED = 0.5
"""So large a share of the messages has to be judged: a figure for a few says nothing of the others."""


def run(setup: Setup) -> Suite:
    """Four workers whose traffic goes on and off, 100 Mbit/s, the server's link following a trace.

    Every run counts, invalid ones too: what made them so may be the very figure that is judged.
    """
    found: dict[str, list[dict[str, Any]]] = {place: [] for place in PLACES}
    for repetition, place in interleaved(PLACES, setup.repetitions):
        setup.say(f"completion: at {place}, {repetition + 1} of {setup.repetitions}")
        content = sized(setup, 200)
        end = content["links"]["default"]["up"]
        content["links"] = {"default": {"up": {**end, "at": place}, "down": end}}
        path = written(setup, f"completion-{place}-{repetition}", content)
        found[place].append(summary(setup, path))
    rows = [_row(place, runs) for place, runs in found.items()]
    return Suite(
        "Message completion in training: error over the tolerance of 1 % and two packet times",
        rows,
        checks(rows),
        {
            "repeat": setup.repetitions,
            "steps": content["train"]["stop"]["steps"],
            "workers": content["nodes"]["worker"]["count"],
        },
    )


def checks(rows: Sequence[dict[str, Any]]) -> list[Check]:
    """The error, and how much of all it was judged for. Pure."""
    return [
        check
        for row in rows
        for check in (
            at_most(f"p99, at {row['at']}", row["used_p99"], USED),
            at_least(f"share judged, at {row['at']}", times(row["judged"], row["groups"]), JUDGED),
        )
    ]


def _row(place: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    measures = [_completion(run) for run in runs]
    return {
        "at": place,
        "used_p99": median(_value(one, "used", "p99") for one in measures),
        "used_p99_at_least": median(_value(one, "used", "p99_at_least") for one in measures),
        "used_p50": median(_value(one, "used", "p50") for one in measures),
        "error_p99": median(_value(one, "error", "p99") for one in measures),
        "error_p99_ms": median(_value(one, "error_ms", "p99") for one in measures),
        "judged": sum(int(one.get("judged") or 0) for one in measures),
        "groups": sum(int(one.get("groups") or 0) for one in measures),
        "verdicts": " ".join(sorted({run["verdict"] for run in runs})),
    }


def _completion(run: dict[str, Any]) -> dict[str, Any]:
    found = run["measures"].get("completion")
    return found if isinstance(found, dict) else {}


def _value(measure: dict[str, Any], *keys: str) -> float | None:
    found: Any = measure
    for key in keys:
        found = (found or {}).get(key)
    return None if found is None else float(found)
