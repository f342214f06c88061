"""Faults to be injected into sessions, and the plan of which session gets which. The plan is pure."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from testbed.bench.figures import MBIT, Step, queue_bytes, radio, rate_at
from testbed.bench.lab import Lab
from testbed.errors import ExperimentError
from testbed.links.plan import CLASS_MINOR, LEAVES, QUANTUM_BYTES, ROOT, burst_bytes
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.shape import End

LinkFault = Literal["rate", "dropped", "queue"]
HostFault = Literal["busy", "late"]
LINK_FAULTS: tuple[LinkFault, ...] = ("rate", "dropped", "queue")
HOST_FAULTS: tuple[HostFault, ...] = ("busy", "late")
RATES = (5 * MBIT, 20 * MBIT)
"""Of a session's links: from the lowest up to, not including, the highest."""
EVERY_S = 0.25
LEAST_CHANGE = 3 * MBIT
RATE_OFF = 1.03
RADIO = (0.0, 1.0, 4.0, 10.0, 20.0)
"""Of a radio link, Mbit/s, a step every 100 ms: every other session with faults on links, or none, is on such."""
_RADIO_LASTING_S, _RADIO_LEAST = 0.2, 4 * MBIT
"""Of a step of a radio link that has a fault: so long that looks see it, and not so slow that it is set anew meanwhile."""
_BEFORE_CHANGE_S, _AFTER_CHANGE_S = 20e-3, 4e-3


@dataclass(frozen=True, slots=True)
class Case:
    """One link direction in one session: its history, and what is done to it when (None: nothing)."""

    end: End
    history: tuple[Step, ...]
    fault: LinkFault | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """All cases of one session. ``fault`` concerns the whole of it; ``stop_s``: how long the agent stands still."""

    cases: tuple[Case, ...]
    fault: HostFault | None = None
    at_s: float = 0.0
    stop_s: float = 0.0


def plan(faults: int, nodes: Sequence[str], seconds: float, seed: int) -> list[Session]:
    """Sessions with ``faults`` faults in all, every kind alike often.

    In sessions with faulty links every other link direction is clean; for every three sessions with
    faults there is one without any.
    """
    random = Random(seed)
    kinds = [(*LINK_FAULTS, *HOST_FAULTS)[n % 5] for n in range(faults)]
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
) -> Session:
    case = _radio_case if on_radio else _case
    ends = [End(node, way) for node in nodes for way in DIRECTIONS]
    random.shuffle(ends)
    padded: list[LinkFault | None] = [*kinds, *[None] * (len(ends) - len(kinds))]
    return Session(
        tuple(case(random, end, seconds, kind) for end, kind in zip(ends, padded, strict=True))
    )


def _on_host(random: Random, nodes: Sequence[str], seconds: float, kind: HostFault) -> Session:
    """Every link changes at the same times, and just before one of them begins what is wrong."""
    cases = tuple(
        Case(End(node, way), _changing(random, seconds)) for node in nodes for way in DIRECTIONS
    )
    change = random.randrange(2, round((seconds - 1) / EVERY_S)) * EVERY_S
    return Session(cases, kind, change - _BEFORE_CHANGE_S, round(random.uniform(0.1, 0.5), 3))


def _case(random: Random, end: End, seconds: float, fault: LinkFault | None) -> Case:
    """Rates that are off and wrong queues are put on links that never change, or the next change mends them."""
    if fault == "dropped" or (fault is None and random.random() < 0.5):
        history = _changing(random, seconds)
        return Case(end, history, fault, history[random.randrange(2, len(history) - 4)][0])
    history = ((0.0, random.randrange(*RATES, MBIT)),)
    return Case(end, history, fault, round(random.uniform(0.3, 1.0), 3))


def _radio_case(random: Random, end: End, seconds: float, fault: LinkFault | None) -> Case:
    """On a radio link. The end of an outage mends a wrong queue: such a link has none."""
    levels = RADIO[1:] if fault == "queue" else RADIO
    while True:
        history = tuple(radio(levels, seconds, seed=random.randrange(1 << 30)))
        if fault is None:
            return Case(end, history)
        if fault == "queue":
            return Case(end, history, fault, round(random.uniform(0.3, 1.0), 3))
        if found := [at for at in _steps_for(history, seconds) if fault == "dropped" or at > 0.3]:
            at_s = random.choice(found)
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


def _changing(random: Random, seconds: float) -> tuple[Step, ...]:
    history: list[Step] = []
    for n in range(round(seconds / EVERY_S)):
        before = history[-1][1] if history else 0
        rates = [rate for rate in range(*RATES, MBIT) if abs(rate - before) >= LEAST_CHANGE]
        history.append((n * EVERY_S, random.choice(rates)))
    return tuple(history)


def inject(lab: Lab, planned: Session, t0_ns: int) -> None:
    """Do to links what their cases say, in order of time, while their session goes on."""
    if planned.fault == "late":
        _stand_still(lab, t0_ns, planned.at_s, planned.stop_s)
    for case in sorted(planned.cases, key=lambda case: case.at_s):
        if case.fault is not None:
            after = _AFTER_CHANGE_S if case.fault == "dropped" else 0.0
            _sleep_until(t0_ns, case.at_s + after)
            _tamper(lab, case)


def _stand_still(lab: Lab, t0_ns: int, at_s: float, for_s: float) -> None:
    _sleep_until(t0_ns, at_s)
    os.kill(lab.agent.pid, signal.SIGSTOP)
    try:
        time.sleep(for_s)
    finally:
        os.kill(lab.agent.pid, signal.SIGCONT)


def _tamper(lab: Lab, case: Case) -> None:
    cable = lab.places[case.end.link].cable
    device = cable.nic if case.end.direction == "up" else cable.port
    command = ["nsenter", f"--net={device.netns}", "tc", *tc_arguments(case, device.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExperimentError(f"a fault could not be injected: {done.stderr.strip()}")


def tc_arguments(case: Case, device: str) -> list[str]:
    """What somebody else's ``tc`` is told behind the agent's back. Pure."""
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


def _sleep_until(t0_ns: int, time_s: float) -> None:
    time.sleep(max(0.0, (t0_ns - time.monotonic_ns()) / 1e9 + time_s))
