"""Suites about lateness: of changes on an idle and on a busy host, against links changed by
pyroute2's own calls, and how many nodes this host carries with a valid certificate.

Its HTB plugin is ours, which leaves out the rate tables: that makes these messages shorter than
those of pyroute2 alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

from pyroute2 import IPRoute

from testbed.bench.links.alternatives import (
    DEAD_BITS,
    Alternative,
    Ours,
    TcHtb,
    class_question,
    due_rates,
)
from testbed.bench.links.certificate import session
from testbed.bench.links.lab import OURS, PLAIN, Lab, lab
from testbed.bench.links.rates import lateness_s, measure, witness
from testbed.bench.results import (
    MBIT,
    ResultCheck,
    Setup,
    Step,
    Suite,
    at_least,
    at_most,
    interleaved,
    median,
    percentile,
    queue_bytes,
    square,
    uniform,
)
from testbed.errors import ExperimentError
from testbed.links.network.namespaces import inside
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.link_state import FRAME_BYTES, LinkDirection

_ROOT, _CLASS, _LEAF = 0x10000, 0x10010, 0x100000


class IPRouteHtb:
    """One HTB class of 1 ms' burst, with a queue in packets: pyroute2 has none in bytes."""

    name, node = "pyroute2-htb", PLAIN

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Root, class, leaf."""
        self._netns, self._index = lab.netns(PLAIN), lab.places[PLAIN].nic.index
        self._history = history
        self._steps: Thread | None = None
        self._failure: Exception | None = None
        with self._route() as route:
            route.tc("add", "htb", self._index, _ROOT, default=_CLASS & 0xFFFF)
            self._tell(route, "add-class", history[0][1])
            packets = max(20, queue_bytes(history) // FRAME_BYTES)
            route.tc("add", "pfifo", self._index, _LEAF, parent=_CLASS, limit=packets)
        return class_question(self._index, _CLASS, _ROOT)

    def start(self, t0_ns: int) -> None:
        """Begin to step."""
        self._t0_ns, self._ended = t0_ns, False
        self._steps = Thread(target=self._step, name="pyroute2", daemon=True)
        self._steps.start()

    def stop(self) -> dict[str, Any]:
        """End stepping; raises ExperimentError where the kernel refused something."""
        self._ended = True
        if self._steps is not None:
            self._steps.join()
        if self._failure is not None:
            raise ExperimentError(f"a change was refused: {self._failure}")
        return {}

    def remove(self) -> None:
        """Take the discipline away."""
        self._ended = True
        with self._route() as route:
            route.tc("del", index=self._index, handle=_ROOT, root=True)

    @contextmanager
    def _route(self) -> Iterator[IPRoute]:
        """Opens its socket when it is first used, in whatever namespace the thread is then."""
        with inside(self._netns), IPRoute() as route:
            yield route

    def _step(self) -> None:
        try:
            with self._route() as route:
                for rate in due_rates(self._history, self._t0_ns, lambda: self._ended):
                    self._tell(route, "change-class", rate)
        except Exception as error:  # for whoever stops it
            self._failure = error

    def _tell(self, route: IPRoute, command: str, rate_bits: int) -> None:
        rate = (rate_bits or DEAD_BITS) // 8
        burst = max(1600, rate // 1000)
        options = {
            "parent": _ROOT,
            "rate": rate,
            "burst": burst,
            "cburst": burst,
            "quantum": 60_000,
        }
        route.tc(command, "htb", self._index, _CLASS, **options)


LOOPS = {0: 1.0, 4: 5.0}
"""Busy processes, and how late the 99th percentile may be, ms."""
CHANGES_PER_S, QUICK_CHANGES_PER_S = (10, 100), (100,)
LOW, HIGH = 20 * MBIT, 100 * MBIT
Late = dict[str, float | None]


def run(setup: Setup) -> Suite:
    """Ours against changes made by ``tc`` and by pyroute2's ``IPRoute.tc``; the later of the
    kernel's notices and the agent's own word."""
    others: list[Alternative] = [Ours(), TcHtb(), IPRouteHtb()]
    found: dict[tuple[int, int, str], list[Late]] = {}
    with lab([OURS, PLAIN], setup) as made:
        for loops in LOOPS:
            for changes in QUICK_CHANGES_PER_S if setup.quick else CHANGES_PER_S:
                for repetition, other in interleaved(others, setup.repetitions):
                    setup.say(
                        f"lateness: {loops} loops, {changes}/s, {other.name}, {repetition + 1}"
                    )
                    late = _late(made, other, changes, loops, setup.seconds(10.0, 1.0))
                    found.setdefault((loops, changes, other.name), []).append(late)
    rows = [_row(*key, late) for key, late in found.items()]
    ours = [row for row in rows if row["alternative"] == "narrows"]
    return Suite(
        "Lateness of changes, ms",
        rows,
        [check for row in ours for check in checks(row)],
        {"repeat": setup.repetitions, "seconds": setup.seconds(10.0, 1.0)},
    )


def checks(row: dict[str, Any]) -> list[ResultCheck]:
    """How late changes were, and whether the kernel announced every one of them. Pure."""
    which = f"{row['loops']} loops, {row['changes_per_s']}/s"
    return [
        at_most(f"p99, {which}", row["p99_ms"], LOOPS[row["loops"]]),
        at_most(f"changes never announced, {which}", row["not_seen"], 0),
    ]


def _late(made: Lab, other: Alternative, changes: int, loops: int, seconds: float) -> Late:
    history = square(LOW, HIGH, changes, seconds)
    nic = made.places[other.node].nic
    with witness(made.netns(other.node), nic.index, of_class=True) as seen:
        measured = measure(made, other, history, seconds, loops=loops)
    notices = [(at - measured.t0_ns) / 1e9 for at in seen.times_ns]
    late, missing = lateness_s([at for at, _ in history[1:]], notices)
    own = measured.says.get("lateness_ms") or {}
    return {
        **{name: _ms(percentile(late, share)) for name, share in _SHARES.items()},
        "own_p99": own.get("p99"),
        "own_max": own.get("max"),
        "missing": float(missing),
    }


_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _row(loops: int, changes: int, name: str, late: list[Late]) -> dict[str, Any]:
    """``p99_ms`` is judged: the later of what the kernel announced and what the agent says."""
    seen, own = (median(one[key] for one in late) for key in ("p99", "own_p99"))
    worst = None if seen is None else max(seen, own or 0.0)
    return {
        "loops": loops,
        "changes_per_s": changes,
        "alternative": name,
        "p50_ms": median(one["p50"] for one in late),
        "p99_ms": worst,
        "max_ms": max((one["max"] for one in late if one["max"] is not None), default=None),
        "own_p99_ms": own,
        "not_seen": sum(int(one["missing"] or 0) for one in late),
    }


EVERY_S, LOWEST, HIGHEST = 0.1, 15 * MBIT, 25 * MBIT
FIRST, MOST, LEAST = 4, 128, 5
"""Tried first, tried at most, and what the demonstration needs."""


def run_nodes(setup: Setup) -> Suite:
    """The largest number that is valid, found by doubling and then halving the difference."""
    most = 4 if setup.quick else MOST
    rows: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    found = [
        largest_valid(lambda nodes: _valid(setup, nodes, rows, verdicts), FIRST, most)
        for _ in range(setup.repetitions)
    ]
    largest = median(found)
    cores = os.cpu_count() or 1
    return Suite(
        "Nodes with both directions at 20 Mbit/s, a change every 100 ms",
        rows,
        [at_least("nodes", largest, min(LEAST, most))],
        {
            "repeat": setup.repetitions,
            "nodes": largest,
            "nodes_per_core": None if largest is None else largest / cores,
            "tried_at_most": most,
            "found": found,
            "judged": verdicts,
        },
    )


def largest_valid(valid: Callable[[int], bool], first: int, most: int) -> int:
    """The largest number up to ``most`` that is valid, if what is above an invalid one is invalid.

    Known to an eighth. Pure as far as ``valid`` is.
    """
    good, tried = 0, first
    while valid(tried):
        good = tried
        if good == most:
            return good
        tried = min(most, 2 * tried)
    bad = tried
    while bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if valid(middle) else (good, middle)
    return good


def _valid(
    setup: Setup, nodes: int, rows: list[dict[str, Any]], verdicts: list[dict[str, Any]]
) -> bool:
    setup.say(f"nodes: {nodes}")
    seconds, names = setup.seconds(10.0, 2.0), [f"node{n}" for n in range(nodes)]
    histories = {
        LinkDirection(name, way): uniform(
            LOWEST, HIGHEST, EVERY_S, seconds, seed=2 * n + (way == "up")
        )
        for n, name in enumerate(names)
        for way in DIRECTIONS
    }
    with lab(names, setup) as made:
        judged = session(made, histories, seconds)
    late = [(link.lateness_ms or {}).get("p99") for link in judged.report.links]
    ratios = [link.ratio for link in judged.report.links if link.ratio is not None]
    rows.append(
        {
            "nodes": nodes,
            "valid": judged.valid,
            "lowest_ratio": min(ratios, default=None),
            "highest_ratio": max(ratios, default=None),
            "late_p99_ms": max((at for at in late if at is not None), default=None),
            "first_reason": judged.alarms[0].measure if judged.alarms else "",
        }
    )
    if judged.verdict is not None:
        verdicts.append({"nodes": nodes, **judged.verdict.to_json()})
    return judged.valid
