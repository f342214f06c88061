"""Suites about delivered rates: fixed, a square wave, random jumps, and outages of a backlogged
link; and when the kernel took each change.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from pyroute2.netlink.rtnl import RTM_NEWQDISC, RTM_NEWTCLASS, RTNLGRP_TC
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.bench import results
from testbed.bench.links import alternatives
from testbed.bench.links.alternatives import (
    Alternative,
    Observer,
    Ours,
    TcHtb,
    TcTbf,
    Unshaped,
    segments,
)
from testbed.bench.links.lab import OURS, PLAIN, Lab, bulk, busy, lab, lead_s, stream
from testbed.bench.results import (
    MBIT,
    Mark,
    ResultCheck,
    Row,
    Setup,
    Step,
    Suite,
    at_most,
    bin_errors,
    interleaved,
    mean,
    median,
    square,
    times,
    uniform,
    within,
)
from testbed.links.tc.netlink import ROUTE, AttributeReader, listener
from testbed.process import become_realtime
from testbed.scenario.link_state import FRAME_BYTES


@dataclass(frozen=True, slots=True)
class Measured:
    """``marks`` is empty where nothing on the way counts; ``says`` is the alternative's word on
    itself."""

    history: Sequence[Step]
    seconds: float
    marks: list[Mark]
    wire_bits: float | None
    """bit/s by the payload that the receiver got."""
    cpu_s: float
    says: dict[str, Any]
    t0_ns: int

    @property
    def ratio(self) -> float | None:
        """Delivered over asked at the link's own counter."""
        return results.ratio(self.history, self.marks) if self.marks else None

    @property
    def cpu_per_gb(self) -> float | None:
        """Processor seconds of the whole host per 10⁹ bytes carried."""
        if self.marks:
            carried = float(self.marks[-1][1] - self.marks[0][1])
        else:
            carried = (self.wire_bits or 0.0) / 8 * self.seconds
        return results.times(self.cpu_s, carried / 1e9)


def measure(
    lab: Lab,
    alternative: Alternative,
    history: Sequence[Step],
    seconds: float,
    *,
    every_s: float = 0.1,
    loops: int = 0,
) -> Measured:
    """Load the alternative's link with one TCP flow for ``seconds`` from t0 on, the host with
    ``loops``.

    Raises ExperimentError where it cannot be set up or the flow breaks.
    """
    question = alternative.install(lab, history)
    try:
        with (
            bulk(lab, [alternative.node], seconds) as (flow,),
            busy(loops, lead_s(1) + seconds + 1),
        ):
            t0_ns = time.monotonic_ns() + int(lead_s(1) * 1e9)
            stop_ns = t0_ns + int(seconds * 1e9)
            observer = Observer(lab.netns(alternative.node), question, t0_ns, stop_ns, every_s)
            observer.start()
            alternative.start(t0_ns)
            marks = observer.result()
            says = alternative.stop()
            wire_bits = flow.wire_bits()
    finally:
        alternative.remove()
    return Measured(history, seconds, marks, wire_bits, observer.cpu_s, says, t0_ns)


RATES_MBIT = (10, 50, 100, 500, 1_000, 2_000, 5_000, 10_000)
QUICK_MBIT = (10, 500)
JUDGED_TO_MBIT = 5_000
LOW, HIGH = 0.995, 1.005


def run(setup: Setup) -> Suite:
    """Every alternative at every rate, and the bare cable once per repetition."""
    rates = QUICK_MBIT if setup.quick else RATES_MBIT
    with lab([OURS, PLAIN], setup) as made:
        kinds = made.agent.capabilities().kinds
        others = alternatives.shapers(kinds)
        found = {
            rate: _repeated(made, others, rate * MBIT, setup, f"{rate} Mbit/s") for rate in rates
        }
        bare = _repeated(made, [Unshaped()], max(rates) * MBIT, setup, "unshaped")["unshaped"]
    rows = [*_rows(found, bare), _row("", "unshaped", bare, None)]
    return Suite(
        f"Fixed rates: delivered/asked and cost, {LOW:g} to {HIGH:g} up to {JUDGED_TO_MBIT} Mbit/s",
        rows,
        list(_checks(rows)),
        {"repeat": setup.repetitions, "seconds": _seconds(setup), "flow": "one TCP flow, cubic"},
        alternatives.absent(kinds),
    )


def _seconds(setup: Setup) -> float:
    return setup.seconds(5.0, 1.0)


def _repeated(
    made: Lab, others: list[Alternative], rate_bits: int, setup: Setup, label: str
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {other.name: [] for other in others}
    for repetition, other in interleaved(others, setup.repetitions):
        setup.say(f"static: {label}, {other.name}, {repetition + 1} of {setup.repetitions}")
        found[other.name].append(measure(made, other, [(0.0, rate_bits)], _seconds(setup)))
    return found


def _rows(
    found: dict[int, dict[str, list[Measured]]], bare: list[Measured]
) -> Iterable[dict[str, Any]]:
    cost = median(one.cpu_per_gb for one in bare)
    for rate, by_name in found.items():
        for name, measured in by_name.items():
            yield _row(rate, name, measured, cost)


def _row(
    rate_mbit: int | str, name: str, measured: list[Measured], bare_cost: float | None
) -> dict[str, Any]:
    """``delivered/asked`` at the link's counter; ``payload/asked`` the same by what the receiver
    got."""
    asked = float(measured[0].history[0][1])
    shaped = name != Unshaped.name
    wire = median(one.wire_bits for one in measured)
    cost = median(one.cpu_per_gb for one in measured)
    return {
        "rate_mbit": rate_mbit,
        "alternative": name,
        "delivered/asked": median(one.ratio for one in measured),
        "payload/asked": times(wire, asked) if shaped else None,
        "gbit_s": None if wire is None else wire / 1e9,
        "cpu_s_per_gb": cost,
        "cost/unshaped": times(cost, bare_cost) if shaped else None,
        "gso_max_segs": measured[0].says.get("gso_max_segs"),
    }


def _checks(rows: Iterable[dict[str, Any]]) -> Iterable[ResultCheck]:
    for row in rows:
        if row["alternative"] == "narrows" and row["rate_mbit"] <= JUDGED_TO_MBIT:
            yield within(f"{row['rate_mbit']} Mbit/s", row["delivered/asked"], LOW, HIGH)


SWING_LOW, SWING_HIGH = 20 * MBIT, 100 * MBIT
LIMITS = {10: (0.99, 1.01), 100: (0.97, 1.03)}
"""Limits of delivered over asked, by changes a second."""


def run_swing(setup: Setup) -> Suite:
    """Ours against HTB and tbf stepped by ``tc``."""
    seconds = setup.seconds(10.0, 2.0)
    others: list[Alternative] = [Ours(), TcHtb(), TcTbf()]
    found: dict[tuple[int, str], list[Measured]] = {}
    with lab([OURS, PLAIN], setup) as made:
        for changes in LIMITS:
            history = square(SWING_LOW, SWING_HIGH, changes, seconds)
            for repetition, other in interleaved(others, setup.repetitions):
                setup.say(f"swing: {changes}/s, {other.name}, {repetition + 1}")
                measured = measure(made, other, history, seconds)
                found.setdefault((changes, other.name), []).append(measured)
    rows = [
        _square_wave_row(changes, name, measured) for (changes, name), measured in found.items()
    ]
    ours = {row["changes_per_s"]: row for row in rows if row["alternative"] == "narrows"}
    return Suite(
        "Square wave 20-100 Mbit/s: delivered/asked",
        rows,
        [within(f"{n} changes/s", ours[n]["delivered/asked"], *LIMITS[n]) for n in LIMITS],
        {"repeat": setup.repetitions, "seconds": seconds},
    )


def _square_wave_row(changes: int, name: str, measured: list[Measured]) -> dict[str, Any]:
    ratios = [one.ratio for one in measured if one.ratio is not None]
    seconds = [
        mean(bin_errors(one.history, one.marks, [float(n) for n in range(int(one.seconds) + 1)]))
        for one in measured
    ]
    return {
        "changes_per_s": changes,
        "alternative": name,
        "delivered/asked": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "second_mean": median(seconds),
    }


EVERY_S, LOWEST, HIGHEST = 0.1, 50 * MBIT, 500 * MBIT
LOOK_S = 0.01
PER_SECOND, PER_STEP = 0.005, 0.03


def run_replay(setup: Setup) -> Suite:
    """Every alternative, another history in every repetition, the same for all."""
    seconds = setup.seconds(20.0, 2.0)
    with lab([OURS, PLAIN], setup) as made:
        kinds = made.agent.capabilities().kinds
        others = alternatives.shapers(kinds)
        found: dict[str, list[Measured]] = {other.name: [] for other in others}
        for repetition, other in interleaved(others, setup.repetitions):
            setup.say(f"replay: {other.name}, {repetition + 1} of {setup.repetitions}")
            history = uniform(LOWEST, HIGHEST, EVERY_S, seconds, seed=repetition + 1)
            measured = measure(made, other, history, seconds, every_s=LOOK_S)
            found[other.name].append(measured)
    rows = [_random_steps_row(name, measured) for name, measured in found.items()]
    ours = next(row for row in rows if row["alternative"] == "narrows")
    return Suite(
        "Replay, 100 ms steps, 50-500 Mbit/s: error per second and per step",
        rows,
        [
            at_most("mean error per 1 s", ours["second_mean"], PER_SECOND),
            at_most("mean error per step", ours["step_mean"], PER_STEP),
        ],
        {"repeat": setup.repetitions, "seconds": seconds, "seeds": setup.repetitions},
        alternatives.absent(kinds),
    )


def _random_steps_row(name: str, measured: list[Measured]) -> dict[str, Any]:
    """Medians over the repetitions; the worst of all of them."""
    seconds = [_errors(one, 1.0) for one in measured]
    steps = [_errors(one, EVERY_S) for one in measured]
    return {
        "alternative": name,
        "delivered/asked": median(one.ratio for one in measured),
        "second_mean": median(map(mean, seconds)),
        "second_worst": max(max(errors) for errors in seconds),
        "step_mean": median(map(mean, steps)),
        "step_median": median(map(median, steps)),
        "step_worst": max(max(errors) for errors in steps),
    }


def _errors(one: Measured, width_s: float) -> list[float]:
    edges = [n * width_s for n in range(round(one.seconds / width_s) + 1)]
    return bin_errors(one.history, one.marks, edges)


RATE, LENGTH_S, LEAD_S, AFTER_S = 100 * MBIT, 2.0, 1.0, 3.0
GRACE_S = 5e-3
"""Time in which frames that had left the link, and the one bundle that carries the debt, may still
arrive, s."""
BACK_MS = 20.0
Seen = dict[str, float | None]


def run_outage(setup: Setup) -> Suite:
    """Ours against a tiny rate set with ``tc``, which is how it is done there."""
    length_s = setup.seconds(LENGTH_S, 0.5)
    others: list[Alternative] = [Ours(), TcHtb(), TcTbf()]
    found: dict[str, list[Seen]] = {other.name: [] for other in others}
    with lab([OURS, PLAIN], setup) as made:
        for repetition, other in interleaved(others, setup.repetitions):
            setup.say(f"outage: {other.name}, {repetition + 1} of {setup.repetitions}")
            found[other.name].append(_through(made, other, length_s))
    rows = [_outage_row(name, seen) for name, seen in found.items()]
    ours = next(row for row in rows if row["alternative"] == "narrows")
    return Suite(
        f"An outage of {length_s:g} s at 100 Mbit/s",
        rows,
        checks(ours, segments([_history(length_s)])),
        {"repeat": setup.repetitions, "grace_ms": GRACE_S * 1e3, "waited_s": AFTER_S},
    )


def checks(ours: Row, bundle: int) -> list[ResultCheck]:
    """Return the checks of our own row; ``bundle``: frames of an offload bundle. Pure."""
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
    """Return what came while the link should have been dead, and when the first came after it.
    Pure."""
    within = [(at, count) for at, count in came if begin_s <= at < end_s]
    first = next((at for at, _ in came if at >= end_s), None)
    return {
        "at_its_beginning": float(sum(n for at, n in within if at < begin_s + GRACE_S)),
        "inside": float(sum(n for at, n in within if at >= begin_s + GRACE_S)),
        "first_byte_ms": None if first is None else (first - end_s) * 1e3,
    }


def _outage_row(name: str, seen: list[Seen]) -> dict[str, Any]:
    """``inside_bytes``: the most of all repetitions. ``never_back``: outages after which nothing
    came for 3 s."""
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


_BUFFER_BYTES, _NOTICE_BYTES = 1 << 21, 1 << 16
_HEAD = AttributeReader(tcmsg, "header.type", "index")
_EARLIEST_S = 6e-3
"""A change may be made this much before it is due."""


class Witness(Thread):
    """Listens from construction to ``end``; ``times_ns`` are of the monotonic clock."""

    def __init__(self, netns: str, index: int, kind: int) -> None:
        super().__init__(name="witness", daemon=True)
        self.times_ns: list[int] = []
        self._index, self._kind, self._ended = index, kind, False
        self._failure: OSError | None = None
        self._socket = listener(netns, [RTNLGRP_TC], _BUFFER_BYTES, ROUTE)
        self._socket.settimeout(0.1)

    def run(self) -> None:
        """The thread's work."""
        become_realtime(1)
        try:
            self._listen()
        except OSError as error:  # notices were lost, for example
            self._failure = error

    def _listen(self) -> None:
        with self._socket:
            while not self._ended:
                try:
                    notice = self._socket.recv(_NOTICE_BYTES)
                except TimeoutError:
                    continue
                now_ns = time.monotonic_ns()
                if _HEAD(notice) == (self._kind, self._index):
                    self.times_ns.append(now_ns)

    def end(self) -> None:
        """Listen no more. Raises OSError where listening ended before."""
        self._ended = True
        self.join()
        if self._failure is not None:
            raise self._failure


@contextmanager
def witness(netns: str, index: int, of_class: bool) -> Iterator[Witness]:
    """Listen for the length of a ``with`` block to changes of a device's class, or of its
    disciplines."""
    listening = Witness(netns, index, RTM_NEWTCLASS if of_class else RTM_NEWQDISC)
    listening.start()
    try:
        yield listening
    finally:
        listening.end()


def lateness_s(due_s: Iterable[float], seen_s: Iterable[float]) -> tuple[list[float], int]:
    """How late each change was seen, in order, and how many never were. Pure.

    A change is taken for seen by the first notice that no earlier change has, and that comes no
    more than 6 ms before it is due.
    """
    late, missing = [], 0
    notices = iter(sorted(seen_s))
    for due in sorted(due_s):
        seen = next((at for at in notices if at >= due - _EARLIEST_S), None)
        if seen is None:
            missing += 1
        else:
            late.append(seen - due)
    return late, missing
