"""Ways to make a link that are compared: ours through the agent, the usual ones through the ``tc``
program or pyroute2's own calls, and none. All are looked at by the same byte counters.

All alternatives are looked at in this one way, none by what it says of itself. The counters are
those that ``tc -s`` shows: bytes at the link layer, Ethernet headers of every packet of a bundle
counted.

An explicit queue in bytes, the same for all, a burst that neither stalls nor floods, and one ``tc
-batch`` process kept open, so that a change costs no start of a program. pyroute2's HTB plugin is
ours, without the rate tables: that makes its messages shorter than those of pyroute2 alone.
"""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from threading import Thread
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_ECHO
from pyroute2.netlink.rtnl import RTM_GETQDISC, RTM_GETTCLASS
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_htb

from testbed.bench.links.lab import CONGESTION, OURS, PLAIN, Lab
from testbed.bench.results import Step, queue_bytes
from testbed.errors import ExperimentError
from testbed.links.agent.client import LinkReport
from testbed.links.agent.protocol import LinkSettings
from testbed.links.network.namespaces import inside
from testbed.links.tc import htb
from testbed.links.tc.htb import AT_ROOT, ETHERNET, traffic_control
from testbed.links.tc.netlink import encode
from testbed.links.tc.parameters import LONGEST_BUNDLE_S, TICK_NS, bundle_segments
from testbed.scenario.link_state import FRAME_BYTES, LinkChange, LinkDirection, LinkState


def class_question(index: int, handle: int, parent: int) -> bytes:
    """Asks for a class; handles as numbers, ``1:10`` is 0x10010."""
    return encode(traffic_control(index, handle, parent), RTM_GETTCLASS, NLM_F_ECHO)


def root_question(index: int, handle: int) -> bytes:
    """Asks for a device's root discipline."""
    return encode(traffic_control(index, handle, AT_ROOT), RTM_GETQDISC, NLM_F_ECHO)


DEAD_BITS = 1000
"""Rate that a ``tc`` user sets for an outage, bit/s: a rate of 0 is refused."""


class LinkMethod(ABC):
    """A way to make a link, made for one measurement."""

    name: str
    node = PLAIN
    """Whose uplink it shapes."""
    needs = ""
    """The kind of discipline that the kernel must have."""

    @abstractmethod
    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Bring the link to its state at t0; returns the question that its counter answers."""

    @abstractmethod
    def start(self, t0_ns: int) -> None:
        """Follow the history from ``t0_ns`` on."""

    @abstractmethod
    def stop(self) -> dict[str, Any]:
        """The history is over; returns what it says of itself. Raises ExperimentError where a
        change failed."""

    @abstractmethod
    def remove(self) -> None:
        """Undo ``install``."""

    @contextmanager
    def installed(self, lab: Lab, history: Sequence[Step]) -> Iterator[bytes | None]:
        """Install it for the length of a ``with`` block."""
        question = self.install(lab, history)
        try:
            yield question
        finally:
            self.remove()


class SteppedLink(LinkMethod):
    """The link of the plain node, whose rate a thread sets anew whenever that is due."""

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Set the discipline up with the first rate."""
        self._netns, self._index = lab.netns(self.node), lab.places[self.node].nic.index
        self._history, self._limit = history, queue_bytes(history)
        self._steps: Thread | None = None
        self._failure: ExperimentError | None = None
        self.set_up(history[0][1] or DEAD_BITS)
        return self.question(self._index)

    def start(self, t0_ns: int) -> None:
        """Begin to step."""
        self._t0_ns, self._ended = t0_ns, False
        if len(self._history) > 1:
            self._steps = Thread(target=self._step, name=self.name, daemon=True)
            self._steps.start()

    def stop(self) -> dict[str, Any]:
        """End stepping."""
        self._ended = True
        if self._steps is not None:
            self._steps.join()
        if self._failure is not None:
            raise self._failure
        return {}

    def remove(self) -> None:
        """Take the discipline away."""
        self._ended = True
        if self._steps is not None:
            self._steps.join()
        self.tear_down()

    @abstractmethod
    def set_up(self, rate_bits: int) -> None:
        """Install the discipline."""

    @abstractmethod
    def tear_down(self) -> None:
        """Remove the discipline."""

    @abstractmethod
    def question(self, index: int) -> bytes:
        """Return the question that asks for the counter of a device so set up."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return the function that sets a rate, for the length of a ``with`` block."""

    def _step(self) -> None:
        try:
            with self.changing() as change:
                for rate in due_rates(self._history, self._t0_ns, lambda: self._ended):
                    change(rate or DEAD_BITS)
        except ExperimentError as error:
            self._failure = error
        except Exception as error:  # for whoever stops it
            self._failure = ExperimentError(f"a change was refused: {error}")


class TcLink(SteppedLink):
    """A link of the ``tc`` program."""

    @abstractmethod
    def commands(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """Commands that set it up, without the leading ``tc``."""

    def change(self, rate_bits: int, limit_bytes: int) -> str:
        """The command that changes its rate: the one that installs it, with another rate."""
        return self.commands(rate_bits, limit_bytes)[0].replace(" add ", " change ", 1)

    def question(self, index: int) -> bytes:
        """The root counts."""
        return root_question(index, 0x10000)

    def set_up(self, rate_bits: int) -> None:
        """Run the commands."""
        _tc(self._netns, self.commands(rate_bits, self._limit))

    def tear_down(self) -> None:
        """Delete the root."""
        _tc(self._netns, ["qdisc del dev data root"])

    @contextmanager
    def changing(self) -> Iterator[Callable[[int], None]]:
        """One process, which is given a line a change."""
        program = _batch(self._netns)
        assert program.stdin is not None

        def change(rate_bits: int) -> None:
            assert program.stdin is not None
            program.stdin.write(self.change(rate_bits, self._limit) + "\n")
            program.stdin.flush()

        try:
            with suppress(BrokenPipeError):  # the program ends at the first change it refuses
                yield change
            _finish(program, "a change")
        finally:
            if program.poll() is None:
                program.kill()
                program.communicate()


class TcHtb(TcLink):
    """One HTB class with a byte queue. ``burst_s`` None: the program's own burst."""

    def __init__(self, name: str = "tc-htb", burst_s: float | None = None) -> None:
        self.name, self._burst_s = name, burst_s

    def commands(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """Root, class, leaf."""
        return [
            "qdisc add dev data root handle 1: htb default 10",
            f"class add {self._class(rate_bits)}",
            f"qdisc add dev data parent 1:10 handle 10: bfifo limit {limit_bytes}",
        ]

    def change(self, rate_bits: int, limit_bytes: int) -> str:  # noqa: ARG002
        """The class alone."""
        return f"class change {self._class(rate_bits)}"

    def question(self, index: int) -> bytes:
        """The class counts."""
        return class_question(index, 0x10010, 0x10000)

    def _class(self, rate_bits: int) -> str:
        rate = f"dev data parent 1: classid 1:10 htb rate {rate_bits}bit ceil {rate_bits}bit"
        if self._burst_s is None:
            return f"{rate} quantum 60000"
        burst = max(1600, round(rate_bits / 8 * self._burst_s))
        return f"{rate} burst {burst} cburst {burst} quantum 60000"


class TcTbf(TcLink):
    """A token bucket of 1 ms, and at least ``largest_bytes``, one offload bundle, so that it never
    stalls."""

    name = "tc-tbf"

    def __init__(self, largest_bytes: int = 70_000) -> None:
        self._largest_bytes = largest_bytes

    def commands(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """The root alone."""
        burst = max(self._largest_bytes, round(rate_bits / 8 * 1e-3))
        limit = max(limit_bytes, burst)
        return [
            f"qdisc add dev data root handle 1: tbf rate {rate_bits}bit burst {burst} limit {limit}"
        ]


class TcNetem(TcLink):
    """netem's own ``rate``. Its queue is counted in packets, a bundle as one."""

    name, needs = "tc-netem-rate", "netem"

    def commands(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """The root alone."""
        packets = max(20, limit_bytes // FRAME_BYTES)
        return [f"qdisc add dev data root handle 1: netem rate {rate_bits}bit limit {packets}"]


_ROOT, _CLASS, _LEAF = 0x10000, 0x10010, 0x100000


def _class_parameters(requested: dict[str, Any]) -> dict[str, Any]:
    """Return pyroute2's own options of a class, without tables, bursts exact."""
    built = sched_htb.get_class_parameters(requested)
    (_, parameters), *others = built["attrs"]
    for which, burst, size in (("rate", "buffer", "burst"), ("ceil", "cbuffer", "cburst")):
        parameters |= {f"{which}___reserved": ETHERNET, f"{which}_cell_align": -1}
        parameters[burst] = round(requested[size] * 1e9 / parameters[which] / TICK_NS)
    tables = {"TCA_HTB_RTAB", "TCA_HTB_CTAB"}
    return {"attrs": [built["attrs"][0], *(each for each in others if each[0] not in tables)]}


plugins["htb"].get_class_parameters = _class_parameters


class IPRouteHtb(SteppedLink):
    """One HTB class of 1 ms' burst, by pyroute2's own calls; its queue is in packets, since
    pyroute2 has none in bytes."""

    name = "pyroute2-htb"

    def set_up(self, rate_bits: int) -> None:
        """Root, class, leaf."""
        with self._route() as route:
            route.tc("add", "htb", self._index, _ROOT, default=_CLASS & 0xFFFF)
            self._class(route, "add-class", rate_bits)
            packets = max(20, self._limit // FRAME_BYTES)
            route.tc("add", "pfifo", self._index, _LEAF, parent=_CLASS, limit=packets)

    def tear_down(self) -> None:
        """Delete the root."""
        with self._route() as route:
            route.tc("del", index=self._index, handle=_ROOT, root=True)

    def question(self, index: int) -> bytes:
        """The class counts."""
        return class_question(index, _CLASS, _ROOT)

    @contextmanager
    def changing(self) -> Iterator[Callable[[int], None]]:
        """One socket for all changes."""
        with self._route() as route:
            yield lambda rate_bits: self._class(route, "change-class", rate_bits)

    @contextmanager
    def _route(self) -> Iterator[IPRoute]:
        """Opens its socket when it is first used, in whatever namespace the thread is then."""
        with inside(self._netns), IPRoute() as route:
            yield route

    def _class(self, route: IPRoute, command: str, rate_bits: int) -> None:
        rate = rate_bits // 8
        burst = max(1600, rate // 1000)
        options = {
            "parent": _ROOT,
            "rate": rate,
            "burst": burst,
            "cburst": burst,
            "quantum": 60_000,
        }
        route.tc(command, "htb", self._index, _CLASS, **options)


def due_rates(history: Sequence[Step], t0_ns: int, ended: Callable[[], bool]) -> Iterator[int]:
    """The rates of a history after the first, each when it is due, until ``ended``."""
    for at_s, rate in history[1:]:
        due_ns = t0_ns + round(at_s * 1e9)
        while not ended() and (left := due_ns - time.monotonic_ns()) > 0:
            time.sleep(min(left, 100_000_000) / 1e9)
        if ended():
            return
        yield rate


def _batch(netns: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["nsenter", f"--net={netns}", "tc", "-batch", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _tc(netns: str, commands: Sequence[str]) -> None:
    _finish(_batch(netns), str(commands), "".join(f"{line}\n" for line in commands))


def _finish(program: subprocess.Popen[str], what: str, lines: str | None = None) -> None:
    """Give ``tc`` the last lines, and await its end. Raises ExperimentError where it refused
    ``what``."""
    _, complaint = program.communicate(lines, timeout=10)
    if program.returncode:
        raise ExperimentError(f"tc refused {what}: {complaint.strip()}")


class Ours(LinkMethod):
    """The project's own links. ``longest``: with the longest bundles that their histories allow."""

    node = OURS

    def __init__(self, name: str = "narrows", *, longest: bool = False) -> None:
        self.name, self._longest = name, longest

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Through the agent, as a run does it."""
        self._lab, self._history, self._end = lab, history, LinkDirection(OURS, "up")
        self._running = False
        cable = lab.places[OURS].cable
        shape(lab, {self._end: history}, longest=self._longest)
        return class_question(cable.nic.index, htb.CLASS, htb.ROOT_HANDLE)

    def start(self, t0_ns: int) -> None:
        """Hand the history to the agent."""
        self._lab.agent.start(t0_ns, iter(changes_of({self._end: self._history})))
        self._running = True

    def stop(self) -> dict[str, Any]:
        """The agent's report of this link."""
        self._running = False
        report: LinkReport = self._lab.agent.stop()
        (link,) = report.links
        if link.failure:
            raise ExperimentError(f"the link failed: {link.failure}")
        return {"lateness_ms": link.lateness_ms, "gso_max_segs": link.gso_max_segs}

    def remove(self) -> None:
        """Nothing but an unfinished replay: the next run takes the link over in place."""
        if self._running:
            self.stop()


Histories = Mapping[LinkDirection, Sequence[Step]]


def shape(lab: Lab, histories: Histories, *, longest: bool = False) -> dict[str, Any]:
    """Have the agent bring links to their states at t0, as runs do it; what it has read back."""
    bundle = segments(histories.values(), longest=longest)
    return lab.agent.prepare(
        {end.link: lab.places[end.link].cable for end in histories},
        initial_states(histories),
        LinkSettings(segments=bundle, congestion=CONGESTION),
    )


def initial_states(histories: Histories) -> dict[LinkDirection, LinkState]:
    """Return the states at t0."""
    return {
        end: LinkState(history[0][1], queue_bytes(history)) for end, history in histories.items()
    }


def changes_of(histories: Histories) -> list[LinkChange]:
    """Return all changes after t0, in order of time."""
    changes = [
        LinkChange(at, end, LinkState(rate, queue_bytes(history)))
        for end, history in histories.items()
        for at, rate in history[1:]
    ]
    return sorted(changes, key=lambda change: change.time_s)


def segments(histories: Collection[Sequence[Step]], *, longest: bool = False) -> int:
    """Frames per offload bundle, as runs choose it from their histories; ``longest``: on a machine
    that cannot move shorter ones."""
    lengths = [
        later - earlier for history in histories for (earlier, _), (later, _) in pairwise(history)
    ]
    lowest = min((rate for history in histories for _, rate in history if rate), default=0)
    step = min(lengths, default=None)
    if longest:
        return bundle_segments(lowest, step, lasting_s=LONGEST_BUNDLE_S)
    return bundle_segments(lowest, step)


class Unshaped(LinkMethod):
    """The bare cable."""

    name = "unshaped"

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:  # noqa: ARG002
        """Nothing to do, and nothing that counts."""
        return None

    def start(self, t0_ns: int) -> None:
        """Nothing to do."""

    def stop(self) -> dict[str, Any]:
        """It says nothing."""
        return {}

    def remove(self) -> None:
        """Nothing to do."""


def shapers(kinds: frozenset[str]) -> list[LinkMethod]:
    """Ours and every other that a kernel with these kinds can do, ours first."""
    methods = [Ours(), TcHtb(), TcHtb("tc-htb-1ms", 1e-3), IPRouteHtb(), TcTbf(), TcNetem()]
    return [method for method in methods if not method.needs or method.needs in kinds]


def absent(kinds: frozenset[str]) -> list[str]:
    """Return the alternatives that were left out, in words."""
    if "netem" in kinds:
        return []
    return [f"{TcNetem.name}: this kernel has no netem"]
