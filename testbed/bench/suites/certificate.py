"""The certificate itself: does it notice faults that are put in, and keep silent where there are none?"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from testbed.bench.faults import HOST_FAULTS, LINK_FAULTS, Session, inject, plan
from testbed.bench.judged import Judged, session
from testbed.bench.lab import Lab, lab
from testbed.bench.result import Suite, at_least, at_most
from testbed.bench.setup import Setup

FAULTS, QUICK_FAULTS = 300, 5
CAUGHT, FALSE = 0.99, 0.01
BUSY_LOOPS = 4
_CLEAN, _DISTURBED = "none", "none, but time was stolen"
STOLEN = "stolen_share"
"""The one fault that nobody here puts in, and that the kernel counts itself."""


class Tally:
    """Cases and alarms by kind of fault; ``notes`` describe what went wrong."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.alarms: Counter[str] = Counter()
        self.notes: list[dict[str, Any]] = []

    def add(self, kind: str, alarmed: bool, about: dict[str, Any]) -> None:
        """One case of a kind, and whether it raised an alarm."""
        self.cases[kind] += 1
        self.alarms[kind] += alarmed
        if alarmed == (kind == _CLEAN):
            self.notes.append({"fault": kind, **about})

    def share(self, *kinds: str) -> float | None:
        """Alarms over cases of these kinds."""
        cases = sum(self.cases[kind] for kind in kinds)
        return sum(self.alarms[kind] for kind in kinds) / cases if cases else None


def run(setup: Setup) -> Suite:
    """Sessions with and without faults in random order; what is found on each link direction."""
    nodes = [f"node{n}" for n in range(2 if setup.quick else 8)]
    seconds, faults = setup.seconds(6.0, 3.0), QUICK_FAULTS if setup.quick else FAULTS
    sessions, tally = plan(faults, nodes, seconds, seed=1), Tally()
    with lab(nodes, setup) as made:
        for number, planned in enumerate(sessions, 1):
            setup.say(f"certificate: session {number} of {len(sessions)}, {describe(planned)}")
            judge(tally, planned, _carry_out(made, planned, seconds))
    kinds = (*LINK_FAULTS, *HOST_FAULTS)
    rows = [_row(tally, kind) for kind in (*kinds, _CLEAN, _DISTURBED)]
    return Suite(
        f"The certificate: {sum(tally.cases[kind] for kind in kinds)} faults",
        rows,
        [
            at_least("faults caught", tally.share(*kinds), CAUGHT),
            at_most("false alarms on clean links", tally.share(_CLEAN), FALSE),
        ],
        {
            "sessions": len(sessions),
            "seconds": seconds,
            "links": 2 * len(nodes),
            "wrong": tally.notes,
        },
    )


def judge(tally: Tally, planned: Session, judged: Judged) -> None:
    """Count every case of a session. Pure.

    A faulty link must be pointed at itself; a fault of the host is a single case, and any alarm catches
    it but that of stolen time, which is somebody else's. On a clean link an alarm of the host is as false as one of its own, unless the host has a fault: one
    that was put in, or a hypervisor that gave its processors to others. Then the link is not clean.
    """
    ends = [case.end for case in planned.cases]
    clean = _DISTURBED if any(one.measure == STOLEN for one in judged.alarms) else _CLEAN
    if planned.fault is not None:
        caught = any(one.measure != STOLEN for one in judged.alarms)
        tally.add(planned.fault, caught, {"stop_s": planned.stop_s})
        return
    elsewhere = judged.elsewhere(ends)
    for case in planned.cases:
        alarms = judged.of(case.end)
        said = [alarm.sentence for alarm in (alarms if case.fault else [*alarms, *elsewhere])]
        about = {"link": str(case.end), "at_s": case.at_s, "alarms": said}
        tally.add(case.fault or clean, bool(said), about)


def describe(planned: Session) -> str:
    """A session's faults in a few words."""
    if planned.fault is not None:
        return f"host fault: {planned.fault}"
    faulty = sum(case.fault is not None for case in planned.cases)
    return f"{faulty} of {len(planned.cases)} links with a fault"


def _carry_out(made: Lab, planned: Session, seconds: float) -> Judged:
    return session(
        made,
        {case.end: case.history for case in planned.cases},
        seconds,
        loops=BUSY_LOOPS if planned.fault == "busy" else 0,
        meanwhile=partial(inject, made, planned),
    )


def _row(tally: Tally, kind: str) -> dict[str, Any]:
    return {
        "fault": kind,
        "cases": tally.cases[kind],
        "alarms": tally.alarms[kind],
        "share": tally.share(kind),
    }
