"""Suites about delivered rates: fixed, a square wave, random jumps, and outages of a backlogged
link; and when the kernel took each change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyroute2.netlink import NETLINK_ROUTE
from pyroute2.netlink.rtnl import RTM_NEWQDISC, RTM_NEWTCLASS, RTNLGRP_TC
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.bench import results
from testbed.bench.links import alternatives
from testbed.bench.links.alternatives import (
    IPRouteHtb,
    LinkMethod,
    Ours,
    TcHtb,
    TcTbf,
    Unshaped,
    segments,
)
from testbed.bench.links.lab import (
    OURS,
    PLAIN,
    BenchStream,
    Lab,
    Watcher,
    bulk,
    busy,
    lab,
    lead_s,
    sleep_until,
)
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
    mean,
    median,
    square,
    times,
    uniform,
    within,
)
from testbed.links.tc.netlink import AttributeReader, NetlinkChannel, listener
from testbed.process import become_realtime
from testbed.scenario.link_state import FRAME_BYTES

_BYTES = AttributeReader(tcmsg, "TCA_STATS2.TCA_STATS_BASIC.bytes")
_PRIORITY = 5
"""Below the agent's: looking must not make what is looked at late."""


def counted(answer: bytes) -> int:
    """Bytes sent, out of the answer to either question."""
    (count,) = _BYTES(answer)
    return int(count)


def busy_s() -> float:
    """Processor seconds that this host has worked since it was started, over all processors."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft, _stolen = fields
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


class Observer(Watcher):
    """Looks from ``t0_ns`` to ``stop_ns``, every ``every_s``. ``question`` None: only the processor
    is watched."""

    def __init__(
        self, netns: str, question: bytes | None, t0_ns: int, stop_ns: int, every_s: float
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self.marks: list[Mark] = []
        self.cpu_s = 0.0
        """Processor seconds that the host worked meanwhile, whoever for."""
        self._channel, self._question = NetlinkChannel(netns), question
        self._t0_ns, self._stop_ns, self._every_ns = t0_ns, stop_ns, round(every_s * 1e9)

    def watch(self) -> None:
        """Read the counter until ``stop_ns``."""
        become_realtime(_PRIORITY)
        with self._channel:
            for at_ns in range(self._t0_ns, self._stop_ns + 1, self._every_ns):
                sleep_until(at_ns)
                if at_ns == self._t0_ns:
                    began = busy_s()
                self._look()
            self.cpu_s = busy_s() - began

    def _look(self) -> None:
        if self._question is None:
            return
        before = time.monotonic_ns()
        count = counted(self._channel.ask(self._question))
        between = (before + time.monotonic_ns()) // 2
        self.marks.append(((between - self._t0_ns) / 1e9, count))


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
    method: LinkMethod,
    history: Sequence[Step],
    seconds: float,
    *,
    every_s: float = 0.1,
    loops: int = 0,
) -> Measured:
    """Load the method's link with one TCP flow for ``seconds`` from t0 on, the host with
    ``loops``.

    Raises ExperimentError where it cannot be set up or the flow breaks.
    """
    with (
        method.installed(lab, history) as question,
        bulk(lab, [method.node], seconds) as (flow,),
        busy(loops, lead_s(1) + seconds + 1),
    ):
        t0_ns = time.monotonic_ns() + int(lead_s(1) * 1e9)
        stop_ns = t0_ns + int(seconds * 1e9)
        observer = Observer(lab.netns(method.node), question, t0_ns, stop_ns, every_s)
        observer.start()
        method.start(t0_ns)
        observer.finish()
        says = method.stop()
        wire_bits = flow.wire_bits()
    return Measured(history, seconds, observer.marks, wire_bits, observer.cpu_s, says, t0_ns)


RATES_MBIT = (10, 50, 100, 500, 1_000, 2_000, 5_000, 10_000)
QUICK_MBIT = (10, 500)
JUDGED_TO_MBIT = 5_000
LOW, HIGH = 0.995, 1.005


def run(setup: Setup) -> Suite:
    """Every alternative at every rate, and the bare cable once per repetition."""
    rates = QUICK_MBIT if setup.quick else RATES_MBIT
    with lab([OURS, PLAIN], setup) as links:
        kinds = links.agent.capabilities().kinds
        methods = alternatives.shapers(kinds)
        by_rate = {
            rate: _repeated(links, methods, rate * MBIT, setup, f"{rate} Mbit/s") for rate in rates
        }
        (bare,) = _repeated(links, [Unshaped()], max(rates) * MBIT, setup, "unshaped").values()
    cost = median(run.cpu_per_gb for run in bare)
    rows = [
        _row(rate, method.name, runs, cost)
        for rate, by_method in by_rate.items()
        for method, runs in by_method.items()
    ]
    rows.append(_row("", "unshaped", bare, None))
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
    links: Lab, methods: Sequence[LinkMethod], rate_bits: int, setup: Setup, label: str
) -> dict[LinkMethod, list[Measured]]:
    static = partial(_measured, links, [(0.0, rate_bits)], _seconds(setup))
    return setup.in_turns(f"static: {label}, ", methods, static)


def _measured(
    links: Lab, history: Sequence[Step], seconds: float, method: LinkMethod, _: int
) -> Measured:
    return measure(links, method, history, seconds)


def _row(
    rate_mbit: int | str, name: str, measured: list[Measured], bare_cost: float | None
) -> dict[str, Any]:
    """``delivered/asked`` at the link's counter; ``payload/asked`` the same by what the receiver
    got."""
    requested = float(measured[0].history[0][1])
    shaped = name != Unshaped.name
    wire = median(run.wire_bits for run in measured)
    cost = median(run.cpu_per_gb for run in measured)
    return {
        "rate_mbit": rate_mbit,
        "alternative": name,
        "delivered/asked": median(run.ratio for run in measured),
        "payload/asked": times(wire, requested) if shaped else None,
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
    """Ours against HTB and tbf stepped by ``tc``, and HTB by pyroute2's own calls."""
    seconds = setup.seconds(10.0, 2.0)
    methods: list[LinkMethod] = [Ours(), TcHtb(), IPRouteHtb(), TcTbf()]
    rows = []
    with lab([OURS, PLAIN], setup) as links:
        for changes in LIMITS:
            history = square(SWING_LOW, SWING_HIGH, changes, seconds)
            swung = partial(_measured, links, history, seconds)
            by_method = setup.in_turns(f"swing: {changes}/s, ", methods, swung)
            rows += [
                _square_wave_row(changes, method.name, runs) for method, runs in by_method.items()
            ]
    ours = {row["changes_per_s"]: row for row in rows if row["alternative"] == "narrows"}
    return Suite(
        "Square wave 20-100 Mbit/s: delivered/asked",
        rows,
        [within(f"{n} changes/s", ours[n]["delivered/asked"], *LIMITS[n]) for n in LIMITS],
        {"repeat": setup.repetitions, "seconds": seconds},
    )


def _square_wave_row(changes: int, name: str, measured: list[Measured]) -> dict[str, Any]:
    ratios = [run.ratio for run in measured if run.ratio is not None]
    seconds = [
        mean(bin_errors(run.history, run.marks, [float(n) for n in range(int(run.seconds) + 1)]))
        for run in measured
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
BUNDLED = "narrows-long-bundles"
"""Ours as on a machine that cannot move the rates in shorter bundles."""


def run_replay(setup: Setup) -> Suite:
    """Every alternative, another history in every repetition, the same for all."""
    seconds = setup.seconds(20.0, 2.0)
    with lab([OURS, PLAIN], setup) as links:
        kinds = links.agent.capabilities().kinds

        def replayed(method: LinkMethod, repetition: int) -> Measured:
            history = uniform(LOWEST, HIGHEST, EVERY_S, seconds, seed=repetition + 1)
            return measure(links, method, history, seconds, every_s=LOOK_S)

        methods = [*alternatives.shapers(kinds), Ours(BUNDLED, longest=True)]
        by_method = setup.in_turns("replay: ", methods, replayed)
    rows = [_random_steps_row(method.name, runs) for method, runs in by_method.items()]
    return Suite(
        "Replay, 100 ms steps, 50-500 Mbit/s: error per second and per step",
        rows,
        [check for row in rows for check in _random_steps_checks(row)],
        {"repeat": setup.repetitions, "seconds": seconds, "seeds": setup.repetitions},
        alternatives.absent(kinds),
    )


def _random_steps_row(name: str, measured: list[Measured]) -> dict[str, Any]:
    """Medians over the repetitions; the worst of all of them."""
    seconds = [_errors(run, 1.0) for run in measured]
    steps = [_errors(run, EVERY_S) for run in measured]
    return {
        "alternative": name,
        "gso_max_segs": measured[0].says.get("gso_max_segs"),
        "delivered/asked": median(run.ratio for run in measured),
        "second_mean": median(map(mean, seconds)),
        "second_worst": max(max(errors) for errors in seconds),
        "step_mean": median(map(mean, steps)),
        "step_median": median(map(median, steps)),
        "step_worst": max(max(errors) for errors in steps),
    }


def _random_steps_checks(row: dict[str, Any]) -> Iterable[ResultCheck]:
    """The checks of our own rows: they hold with bundles of either length."""
    with_bundles = {"narrows": "", BUNDLED: ", longest bundles"}.get(row["alternative"])
    if with_bundles is not None:
        yield at_most(f"mean error per 1 s{with_bundles}", row["second_mean"], PER_SECOND)
        yield at_most(f"mean error per step{with_bundles}", row["step_mean"], PER_STEP)


def _errors(run: Measured, width_s: float) -> list[float]:
    edges = [n * width_s for n in range(round(run.seconds / width_s) + 1)]
    return bin_errors(run.history, run.marks, edges)


RATE, LENGTH_S, LEAD_S, AFTER_S = 100 * MBIT, 2.0, 1.0, 3.0
GRACE_S = 5e-3
"""Time in which frames that had left the link, and the one bundle that carries the debt, may still
arrive, s."""
BACK_MS = 20.0
OutageArrivals = dict[str, float | None]


def run_outage(setup: Setup) -> Suite:
    """Ours against a tiny rate set with ``tc`` or by pyroute2, which is how it is done there."""
    length_s = setup.seconds(LENGTH_S, 0.5)
    methods: list[LinkMethod] = [Ours(), TcHtb(), IPRouteHtb(), TcTbf()]
    with lab([OURS, PLAIN], setup) as links:
        by_method = setup.in_turns(
            "outage: ", methods, lambda method, _: _through(links, method, length_s)
        )
    rows = [_outage_row(method.name, outages) for method, outages in by_method.items()]
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


def _through(links: Lab, method: LinkMethod, length_s: float) -> OutageArrivals:
    begin_s, end_s = LEAD_S, LEAD_S + length_s
    with (
        method.installed(links, _history(length_s)),
        closing(BenchStream(links, method.node)) as stream,
    ):
        t0_ns = time.monotonic_ns() + 500_000_000
        method.start(t0_ns)
        sleep_until(t0_ns + round((end_s + AFTER_S) * 1e9))
        method.stop()
    return arrivals([((at - t0_ns) / 1e9, count) for at, count in stream.arrived], begin_s, end_s)


def arrivals(arrived: list[tuple[float, int]], begin_s: float, end_s: float) -> OutageArrivals:
    """Return what came while the link should have been dead, and when the first came after it.
    Pure."""
    within = [(at, count) for at, count in arrived if begin_s <= at < end_s]
    first = next((at for at, _ in arrived if at >= end_s), None)
    return {
        "at_its_beginning": float(sum(n for at, n in within if at < begin_s + GRACE_S)),
        "inside": float(sum(n for at, n in within if at >= begin_s + GRACE_S)),
        "first_byte_ms": None if first is None else (first - end_s) * 1e3,
    }


def _outage_row(name: str, outages: list[OutageArrivals]) -> dict[str, Any]:
    """``inside_bytes``: the most of all repetitions. ``never_back``: outages after which nothing
    came for 3 s."""
    back = [outage["first_byte_ms"] for outage in outages]
    first = [outage["at_its_beginning"] or 0.0 for outage in outages]
    return {
        "alternative": name,
        "inside_bytes": max(outage["inside"] or 0.0 for outage in outages),
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


class Witness(Watcher):
    """Listens from construction on to changes of a device's class, or of its disciplines;
    ``times_ns`` are of the monotonic clock."""

    def __init__(self, netns: str, index: int, of_class: bool) -> None:
        super().__init__(name="witness", daemon=True)
        self.times_ns: list[int] = []
        self._index, self._kind = index, RTM_NEWTCLASS if of_class else RTM_NEWQDISC
        self._socket = listener(netns, [RTNLGRP_TC], _BUFFER_BYTES, NETLINK_ROUTE)
        self._socket.settimeout(0.1)

    def watch(self) -> None:
        """Listen until ``ended``; fails where notices are lost."""
        become_realtime(1)
        with self._socket:
            while not self.ended:
                try:
                    notice = self._socket.recv(_NOTICE_BYTES)
                except TimeoutError:
                    continue
                now_ns = time.monotonic_ns()
                if _HEAD(notice) == (self._kind, self._index):
                    self.times_ns.append(now_ns)


def lateness_s(due_s: Iterable[float], notices_s: Iterable[float]) -> tuple[list[float], int]:
    """How late each change was seen, in order, and how many never were. Pure.

    A change is taken for seen by the first notice that no earlier change has, and that comes no
    more than 6 ms before it is due.
    """
    late, missing = [], 0
    notices = iter(sorted(notices_s))
    for due in sorted(due_s):
        notice = next((at for at in notices if at >= due - _EARLIEST_S), None)
        if notice is None:
            missing += 1
        else:
            late.append(notice - due)
    return late, missing
