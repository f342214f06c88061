"""Suites about the certificate: does it notice faults that are injected into sessions, and keep
silent where there are none?
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Literal

from testbed.bench.links.alternatives import Histories, changes_of, initial_states, shape
from testbed.bench.links.lab import Lab, bulk, busy, lab, lead_s, sleep_until
from testbed.bench.results import (
    MBIT,
    Setup,
    Step,
    Suite,
    at_least,
    at_most,
    queue_bytes,
    radio,
    rate_at,
)
from testbed.errors import ExperimentError
from testbed.fidelity.evidence import CheckResult, gather
from testbed.fidelity.link_checks import all_findings
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.verdict import Verdict, judge_filled
from testbed.links.agent.client import LinkReport
from testbed.links.tc import htb
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import (
    CLASS_MINOR,
    LEAVES,
    QUANTUM_BYTES,
    ROOT,
    burst_bytes,
    pace,
)
from testbed.process import PRIORITY, become_realtime
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.manifest import THRESHOLDS
from testbed.runner.node_events import HostWatch
from testbed.runner.session import backlog_drops
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.link_state import FRAME_BYTES, LinkDirection
from testbed.topology import Interface

LinkFault = Literal["rate", "dropped", "queue", "opened"]
HostFault = Literal["busy", "late"]
LINK_FAULTS: tuple[LinkFault, ...] = ("rate", "dropped", "queue", "opened")
HOST_FAULTS: tuple[HostFault, ...] = ("busy", "late")
RATES = (5 * MBIT, 20 * MBIT)
"""Rates of a session's links: from the lowest up to, not including, the highest."""
EVERY_S = 0.25
LEAST_CHANGE = 3 * MBIT
RATE_OFF = 1.03
RADIO = (0.0, 1.0, 4.0, 10.0, 20.0)
"""Rates of a radio link, Mbit/s, a step every 100 ms; every other session with faults on links, or
none, has such."""
_RADIO_LASTING_S, _RADIO_LEAST = 0.2, 4 * MBIT
"""Least time and rate of a radio link's step with a fault: looks see it, and it is not set anew
meanwhile."""
_BEFORE_CHANGE_S, _AFTER_CHANGE_S = 20e-3, 4e-3
_OPEN_BITS, _OPEN_S = 100 * MBIT, 15e-3
"""A class is held open in an outage at this rate, for so long."""


@dataclass(frozen=True, slots=True)
class Case:
    """One link direction in one session: its history, and what is done to it when (None:
    nothing)."""

    end: LinkDirection
    history: tuple[Step, ...]
    fault: LinkFault | None = None
    at_s: float = 0.0
    outages: tuple[float, ...] = ()
    """When outages begin in which the class may be opened; the first at ``at_s``."""


@dataclass(frozen=True, slots=True)
class FaultSession:
    """All cases of one session. ``fault`` concerns the whole of it; ``stop_s``: how long the agent
    stands still."""

    cases: tuple[Case, ...]
    fault: HostFault | None = None
    at_s: float = 0.0
    stop_s: float = 0.0


def plan(faults: int, nodes: Sequence[str], seconds: float, seed: int) -> list[FaultSession]:
    """Sessions with ``faults`` faults in all, every kind alike often.

    In sessions with faulty links every other link direction is clean; for every three sessions with
    faults there is one without any.
    """
    random = Random(seed)
    every = (*LINK_FAULTS, *HOST_FAULTS)
    kinds = [every[n % len(every)] for n in range(faults)]
    on_links = [kind for kind in kinds if kind in LINK_FAULTS]
    per_session = len(nodes)
    sessions = [
        _on_links(random, nodes, seconds, on_links[at : at + per_session], on_radio=n % 2 == 1)
        for n, at in enumerate(range(0, len(on_links), per_session))
    ]
    sessions += [_on_host(random, nodes, seconds, kind) for kind in kinds if kind in HOST_FAULTS]
    sessions += [
        _on_links(random, nodes, seconds, [], on_radio=n % 2 == 1)
        for n in range(-(-len(sessions) // 3))
    ]
    random.shuffle(sessions)
    return sessions


def _on_links(
    random: Random,
    nodes: Sequence[str],
    seconds: float,
    kinds: Sequence[LinkFault],
    *,
    on_radio: bool,
) -> FaultSession:
    case = _radio_case if on_radio else _case
    ends = [LinkDirection(node, direction) for node in nodes for direction in DIRECTIONS]
    random.shuffle(ends)
    padded: list[LinkFault | None] = [*kinds, *[None] * (len(ends) - len(kinds))]
    return FaultSession(
        tuple(case(random, end, seconds, kind) for end, kind in zip(ends, padded, strict=True))
    )


def _on_host(random: Random, nodes: Sequence[str], seconds: float, kind: HostFault) -> FaultSession:
    """Every link changes at the same times, and just before one of them begins what is wrong."""
    cases = tuple(
        Case(LinkDirection(node, direction), _changing(random, seconds))
        for node in nodes
        for direction in DIRECTIONS
    )
    change = random.randrange(2, round((seconds - 1) / EVERY_S)) * EVERY_S
    return FaultSession(cases, kind, change - _BEFORE_CHANGE_S, round(random.uniform(0.1, 0.5), 3))


def _case(random: Random, end: LinkDirection, seconds: float, fault: LinkFault | None) -> Case:
    """Rates that are off and wrong queues are put on links that never change, or the next change
    mends them; only radio links have outages."""
    if fault == "opened":
        return _radio_case(random, end, seconds, fault)
    if fault == "dropped" or (fault is None and random.random() < 0.5):
        history = _changing(random, seconds)
        return Case(end, history, fault, history[random.randrange(2, len(history) - 4)][0])
    history = ((0.0, random.randrange(*RATES, MBIT)),)
    return Case(end, history, fault, round(random.uniform(0.3, 1.0), 3))


def _radio_case(
    random: Random, end: LinkDirection, seconds: float, fault: LinkFault | None
) -> Case:
    """On a radio link. The end of an outage mends a wrong queue: such a link has none."""
    levels = RADIO[1:] if fault == "queue" else RADIO
    while True:
        history = tuple(radio(levels, seconds, seed=random.randrange(1 << 30)))
        if fault is None:
            return Case(end, history)
        if fault == "queue":
            return Case(end, history, fault, round(random.uniform(0.3, 1.0), 3))
        if fault == "opened":
            if len(outages := _outages_for(history, seconds)) > 1:
                return Case(end, history, fault, outages[0], tuple(outages))
            continue
        if steps := [at for at in _steps_for(history, seconds) if fault == "dropped" or at > 0.3]:
            at_s = random.choice(steps)
            return Case(end, history, fault, at_s if fault == "dropped" else round(at_s + 0.02, 3))


def _steps_for(history: Sequence[Step], seconds: float) -> list[float]:
    """When rates change from one to another that is fast, long enough and long before the end."""
    return [
        at
        for (_, before), (at, rate), (until, _) in zip(
            history, history[1:], history[2:], strict=False
        )
        if before and rate >= _RADIO_LEAST and abs(rate - before) >= LEAST_CHANGE
        if until - at >= _RADIO_LASTING_S - 1e-9 and at < seconds - 1
    ]


def _outages_for(history: Sequence[Step], seconds: float) -> list[float]:
    """When outages begin that last, with milliseconds between two packets before each."""
    return [
        at
        for (_, before), (at, rate), (until, _) in zip(
            history, history[1:], history[2:], strict=False
        )
        if not rate and 4 * MBIT <= before <= 10 * MBIT
        if until - at >= _RADIO_LASTING_S - 1e-9 and 0.3 < at < seconds - 1
    ]


def _changing(random: Random, seconds: float) -> tuple[Step, ...]:
    history: list[Step] = []
    for n in range(round(seconds / EVERY_S)):
        before = history[-1][1] if history else 0
        rates = [rate for rate in range(*RATES, MBIT) if abs(rate - before) >= LEAST_CHANGE]
        history.append((n * EVERY_S, random.choice(rates)))
    return tuple(history)


def inject(lab: Lab, planned: FaultSession, t0_ns: int) -> None:
    """Do to links what their cases say, in order of time, while their session goes on."""
    if planned.fault == "late":
        _stand_still(lab, t0_ns, planned.at_s, planned.stop_s)
    opened = [case for case in planned.cases if case.fault == "opened"]
    others = [case for case in planned.cases if case.fault not in (None, "opened")]
    with ThreadPoolExecutor(max(1, len(opened))) as beside:
        tasks = [beside.submit(_open, lab, case, t0_ns) for case in opened]
        for case in sorted(others, key=lambda case: case.at_s):
            after = _AFTER_CHANGE_S if case.fault == "dropped" else 0.0
            sleep_until(t0_ns + round((case.at_s + after) * 1e9))
            _tamper(lab, case)
    for task in tasks:
        task.result()


def _open(lab: Lab, case: Case, t0_ns: int) -> None:
    """Hold a class wide open as an outage begins, until more has left than an outage may have.

    Any packet that the agent's charge has met keeps the link dead, whatever the class is set to
    later: so it is set again and again, and where a packet was charged in between, the next outage
    is tried. A link that could be opened in none counts as a fault that was not caught.
    """
    become_realtime(PRIORITY - 1)
    device = _device(lab, case)
    opening = htb.set_class(device.index, pace(_OPEN_BITS))
    question = htb.read_class(device.index)
    with NetlinkChannel(device.netns) as channel:
        for at_s in case.outages:
            frame_s = 8 * FRAME_BYTES / rate_at(case.history, at_s - 1e-3)
            sleep_until(t0_ns + round((at_s - frame_s) * 1e9))
            before = htb.decode_counters(channel.ask(question))
            while time.monotonic_ns() < t0_ns + round((at_s + _OPEN_S) * 1e9):
                channel.send(opening)
            after = htb.decode_counters(channel.ask(question))
            if after.bytes - before.bytes > 8 * FRAME_BYTES:
                return


def _device(lab: Lab, case: Case) -> Interface:
    cable = lab.places[case.end.link].cable
    return cable.nic if case.end.direction == "up" else cable.port


def _stand_still(lab: Lab, t0_ns: int, at_s: float, for_s: float) -> None:
    sleep_until(t0_ns + round(at_s * 1e9))
    os.kill(lab.agent.pid, signal.SIGSTOP)
    try:
        time.sleep(for_s)
    finally:
        os.kill(lab.agent.pid, signal.SIGCONT)


def _tamper(lab: Lab, case: Case) -> None:
    device = _device(lab, case)
    command = ["nsenter", f"--net={device.netns}", "tc", *tc_arguments(case, device.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExperimentError(f"a fault could not be injected: {done.stderr.strip()}")


def tc_arguments(case: Case, device: str) -> list[str]:
    """Return the arguments that somebody else gives ``tc`` behind the agent's back. Pure."""
    if case.fault == "queue":
        half = queue_bytes(case.history) // 2
        words = f"qdisc change dev {device} parent {ROOT:x}:{CLASS_MINOR:x} handle {LEAVES[0]:x}:"
        return [*words.split(), "bfifo", "limit", str(half)]
    rate = rate_at(case.history, case.at_s)
    if case.fault == "rate":
        rate = round(rate * RATE_OFF)
    else:
        # The change at this very time is undone: what held just before it holds on.
        rate = rate_at(case.history, case.at_s - 1e-3)
    burst = burst_bytes(rate)
    words = (
        f"class change dev {device} parent {ROOT:x}: classid {ROOT:x}:{CLASS_MINOR:x} htb "
        f"rate {rate}bit ceil {rate}bit burst {burst} cburst {burst} quantum {QUANTUM_BYTES}"
    )
    return words.split()


Meanwhile = Callable[[int], None]
"""Called with t0 (monotonic ns) when it has been set; what it does must end before the session
does."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The findings of one session; ``alarms`` are those that are not valid. ``verdict``: what a
    replay would be given for them."""

    report: LinkReport
    findings: Sequence[CheckResult]
    verdict: Verdict | None = None

    @property
    def alarms(self) -> list[CheckResult]:
        """Return the findings that keep the session from being valid; all links are filled, so each
        must be judged."""
        return [
            result
            for result in self.findings
            if result.state(THRESHOLDS.degraded_factor) != "valid"
            or (result.measure == "link_ratio" and result.deviation is None)
        ]

    @property
    def valid(self) -> bool:
        """Return whether all measures are valid."""
        return not self.alarms

    def of(self, end: LinkDirection) -> list[CheckResult]:
        """Alarms at one link direction."""
        return [alarm for alarm in self.alarms if alarm.subject == str(end)]

    def elsewhere(self, ends: Sequence[LinkDirection]) -> list[CheckResult]:
        """Alarms at none of these: of the host, or of the session as a whole."""
        places = set(map(str, ends))
        return [alarm for alarm in self.alarms if alarm.subject not in places]


def _nothing(_t0_ns: int) -> None:
    pass


def session(
    lab: Lab,
    histories: Histories,
    seconds: float,
    *,
    loops: int = 0,
    meanwhile: Meanwhile = _nothing,
) -> Judged:
    """Have every end follow its history for ``seconds`` under load, then judge it as runs are
    judged."""
    nodes = sorted({end.link for end in histories})
    changes = changes_of(histories)
    records: list[dict[str, Any]] = []
    lab.agent.on_sample = records.extend
    prepared = shape(lab, histories)
    with (
        bulk(lab, nodes, seconds, "both"),
        busy(loops, lead_s(len(nodes)) + seconds + 1),
    ):
        t0_ns = time.monotonic_ns() + int(lead_s(len(nodes)) * 1e9)
        lab.agent.start(t0_ns, iter(changes))
        try:
            dropped = _meanwhile(t0_ns, seconds, records, meanwhile)
        finally:
            report = lab.agent.stop()
    requested = RequestedLinks(
        initial_states(histories), [change for change in changes if change.time_s < seconds]
    )
    evidence = gather(
        report.to_json()["links"],
        LinkLog(records),
        requested,
        seconds=seconds,
        processors=os.cpu_count() or 1,
        under_way=IntervalSet([(0.0, seconds)]),
        initial=prepared["links"],
    )
    evidence = replace(evidence, foreign_drops={"the host's receive backlog": dropped})
    return Judged(report, all_findings(evidence, THRESHOLDS), judge_filled(evidence))


def _meanwhile(t0_ns: int, seconds: float, records: list[dict[str, Any]], what: Meanwhile) -> int:
    """From t0 to the end, the host watched; returns the packets that it dropped itself."""
    sleep_until(t0_ns)
    dropped = backlog_drops()
    watch = HostWatch(t0_ns, records.append)
    try:
        what(t0_ns)
        sleep_until(t0_ns + round(seconds * 1e9))
    finally:
        watch.stop()
    return backlog_drops() - dropped


FAULTS, QUICK_FAULTS = 300, 6
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
    with lab(nodes, setup) as links:
        for number, planned in enumerate(sessions, 1):
            setup.say(f"certificate: session {number} of {len(sessions)}, {describe(planned)}")
            judge(tally, planned, _carry_out(links, planned, seconds))
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


def judge(tally: Tally, planned: FaultSession, judged: Judged) -> None:
    """Count every case of a session. Pure.

    A faulty link must be pointed at itself; a fault of the host is a single case, and any alarm
    catches it but that of stolen time, which is somebody else's. On a clean link an alarm of the
    host is as false as one of its own, unless the host has a fault: one that was put in, or a
    hypervisor that gave its processors to others. Then the link is not clean.
    """
    ends = [case.end for case in planned.cases]
    clean = _DISTURBED if any(alarm.measure == STOLEN for alarm in judged.alarms) else _CLEAN
    if planned.fault is not None:
        caught = any(alarm.measure != STOLEN for alarm in judged.alarms)
        tally.add(planned.fault, caught, {"stop_s": planned.stop_s})
        return
    elsewhere = judged.elsewhere(ends)
    for case in planned.cases:
        alarms = judged.of(case.end)
        said = [alarm.sentence for alarm in (alarms if case.fault else [*alarms, *elsewhere])]
        about = {"link": str(case.end), "at_s": case.at_s, "alarms": said}
        tally.add(case.fault or clean, bool(said), about)


def describe(planned: FaultSession) -> str:
    """A session's faults in a few words."""
    if planned.fault is not None:
        return f"host fault: {planned.fault}"
    faulty = sum(case.fault is not None for case in planned.cases)
    return f"{faulty} of {len(planned.cases)} links with a fault"


def _carry_out(links: Lab, planned: FaultSession, seconds: float) -> Judged:
    return session(
        links,
        {case.end: case.history for case in planned.cases},
        seconds,
        loops=BUSY_LOOPS if planned.fault == "busy" else 0,
        meanwhile=partial(inject, links, planned),
    )


def _row(tally: Tally, kind: str) -> dict[str, Any]:
    return {
        "fault": kind,
        "cases": tally.cases[kind],
        "alarms": tally.alarms[kind],
        "share": tally.share(kind),
    }
