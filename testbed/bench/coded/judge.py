"""From steps and step times to savings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from testbed.bench.coded.plan import ASYNC, BASE

Row = dict[str, Any]


def rows(known: Mapping[str, Any]) -> Iterator[Row]:
    """A row for every scheme and c: on real links first, then in virtual time.

    Schemes share the steps of SSGD as long as nothing ``saturated``: else they compute another gradient.
    """
    steps, plan = int(known["steps"]), known["plan"]
    real = known["steps_real"]
    yield from _rows("real", plan["share"], steps, real, known["async_real"]["time_s"])
    for share, found in known["virtual"].items():
        yield from _rows("virtual", float(share), steps, found["steps"], found["async_s"])


def _rows(
    links: str, share: float, steps: int, timed: Mapping[str, Any], async_s: float | None
) -> Iterator[Row]:
    base_s = steps * float(timed[BASE]["step_s"])
    for name, found in timed.items():
        taken_s = steps * float(found["step_s"])
        yield {
            "links": links,
            "c": share,
            "scheme": name,
            "step_s": found["step_s"],
            "time_s": taken_s,
            "saved_ssgd": 1 - taken_s / base_s,
            "saved_asgd": None if async_s is None else 1 - taken_s / async_s,
            "sent_mb_step": found["bytes_up"] / max(1, found["steps"]) / 1e6,
            "saturated": found["saturated"],
            "verdict": found["verdict"],
        }
    yield {
        "links": links, "c": share, "scheme": ASYNC, "step_s": None, "time_s": async_s,
        "saved_ssgd": None if async_s is None else 1 - async_s / base_s, "saved_asgd": 0.0,
        "sent_mb_step": None, "saturated": None, "verdict": None,
    }  # fmt: skip
