"""Ways to make a link that are compared: ours through the agent, the usual ones through the ``tc``
program, and none. All are looked at by the same byte counters.

All alternatives are looked at in this one way, none by what it says of itself. The counters are
those that ``tc -s`` shows: bytes at the link layer, Ethernet headers of every packet of a bundle
counted.

An explicit queue in bytes, the same for all, a burst that neither stalls nor floods, and one ``tc
-batch`` process kept open, so that a change costs no start of a program.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from pyroute2.netlink import NLM_F_ECHO
from pyroute2.netlink.rtnl import RTM_GETQDISC, RTM_GETTCLASS
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.bench.links.lab import CONGESTION, OURS, PLAIN, Lab
from testbed.bench.results import Mark, Step, queue_bytes
from testbed.errors import ExperimentError
from testbed.links.agent.client import LinkReport
from testbed.links.agent.protocol import LinkSettings
from testbed.links.tc import htb
from testbed.links.tc.htb import AT_ROOT, traffic_control
from testbed.links.tc.netlink import AttributeReader, NetlinkChannel, encode
from testbed.links.tc.parameters import bundle_segments
from testbed.process import become_realtime
from testbed.scenario.link_state import FRAME_BYTES, LinkChange, LinkDirection, LinkState

_BYTES = AttributeReader(tcmsg, "TCA_STATS2.TCA_STATS_BASIC.bytes")
_PRIORITY = 5
"""Below the agent's: looking must not make what is looked at late."""


def class_question(index: int, handle: int, parent: int) -> bytes:
    """Asks for a class; handles as numbers, ``1:10`` is 0x10010."""
    return encode(traffic_control(index, handle, parent), RTM_GETTCLASS, NLM_F_ECHO)


def root_question(index: int, handle: int) -> bytes:
    """Asks for a device's root discipline."""
    return encode(traffic_control(index, handle, AT_ROOT), RTM_GETQDISC, NLM_F_ECHO)


def counted(answer: bytes) -> int:
    """Bytes sent, out of the answer to either question."""
    (count,) = _BYTES(answer)
    return int(count)


def busy_s() -> float:
    """Processor seconds that this host has worked since it was started, over all processors."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft, _stolen = fields
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


class Observer(Thread):
    """Looks from ``t0_ns`` to ``stop_ns``, every ``every_s``. ``question`` None: only the processor
    is watched."""

    def __init__(
        self, netns: str, question: bytes | None, t0_ns: int, stop_ns: int, every_s: float
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self.marks: list[Mark] = []
        self.cpu_s = 0.0
        """Processor seconds that the host worked meanwhile, whoever for."""
        self.failure: OSError | None = None
        self._channel, self._question = NetlinkChannel(netns), question
        self._t0_ns, self._stop_ns, self._every_ns = t0_ns, stop_ns, round(every_s * 1e9)

    def run(self) -> None:
        """The thread's work."""
        become_realtime(_PRIORITY)
        with self._channel:
            try:
                self._watch()
            except OSError as error:
                self.failure = error

    def result(self) -> list[Mark]:
        """Wait for the last look. Raises OSError where the counter could not be read."""
        self.join()
        if self.failure is not None:
            raise self.failure
        return self.marks

    def _watch(self) -> None:
        for at_ns in range(self._t0_ns, self._stop_ns + 1, self._every_ns):
            time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
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


DEAD_BITS = 1000
"""Rate that a ``tc`` user sets for an outage, bit/s: a rate of 0 is refused."""


class WithTc:
    """Common part of the set-ups with ``tc``. Subclasses say what is installed, and what a change
    is."""

    name, node, needs = "tc", PLAIN, ""

    def installed(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """Commands that set it up, without the leading ``tc``."""
        raise NotImplementedError

    def changed(self, rate_bits: int, limit_bytes: int) -> str:
        """The command that changes its rate."""
        raise NotImplementedError

    def question(self, index: int) -> bytes | None:
        """Asks for the counter of a device so set up."""
        return root_question(index, 0x10000)

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Run the commands."""
        self._netns, nic = lab.netns(PLAIN), lab.places[PLAIN].nic
        self._history, self._limit, self._t0_ns = history, queue_bytes(history), 0
        self._steps: Thread | None = None
        self._late_s: list[float] = []
        self._program: subprocess.Popen[str] | None = None
        _tc(self._netns, self.installed(history[0][1] or DEAD_BITS, self._limit))
        return self.question(nic.index)

    def start(self, t0_ns: int) -> None:
        """Begin to step."""
        self._t0_ns, self._ended = t0_ns, False
        if len(self._history) < 2:
            return
        self._program = _batch(self._netns)
        self._steps = Thread(target=self._step, name="tc", daemon=True)
        self._steps.start()

    def stop(self) -> dict[str, Any]:
        """End stepping; raises ExperimentError where ``tc`` refused something."""
        self._ended = True
        if self._steps is not None and self._program is not None:
            self._steps.join()
            _, complaint = self._program.communicate(timeout=10)
            if self._program.returncode:
                raise ExperimentError(f"tc refused a change: {complaint.strip()}")
        return {}

    def remove(self) -> None:
        """Take the discipline away."""
        if self._program is not None and self._program.poll() is None:
            self._program.kill()
            self._program.communicate()
        _tc(self._netns, ["qdisc del dev data root"])

    def _step(self) -> None:
        assert self._program is not None
        assert self._program.stdin is not None
        for rate in due_rates(self._history, self._t0_ns, lambda: self._ended):
            self._program.stdin.write(self.changed(rate or DEAD_BITS, self._limit) + "\n")
            self._program.stdin.flush()


class TcHtb(WithTc):
    """One HTB class with a byte queue. ``burst_s`` None: the program's own burst."""

    def __init__(self, name: str = "tc-htb", burst_s: float | None = None) -> None:
        self.name, self._burst_s = name, burst_s

    def installed(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """Root, class, leaf."""
        return [
            "qdisc add dev data root handle 1: htb default 10",
            f"class add {self._class(rate_bits)}",
            f"qdisc add dev data parent 1:10 handle 10: bfifo limit {limit_bytes}",
        ]

    def changed(self, rate_bits: int, limit_bytes: int) -> str:  # noqa: ARG002
        """The class alone."""
        return f"class change {self._class(rate_bits)}"

    def question(self, index: int) -> bytes | None:
        """The class counts."""
        return class_question(index, 0x10010, 0x10000)

    def _class(self, rate_bits: int) -> str:
        rate = f"dev data parent 1: classid 1:10 htb rate {rate_bits}bit ceil {rate_bits}bit"
        if self._burst_s is None:
            return f"{rate} quantum 60000"
        burst = max(1600, round(rate_bits / 8 * self._burst_s))
        return f"{rate} burst {burst} cburst {burst} quantum 60000"


class TcTbf(WithTc):
    """A token bucket of 1 ms, and at least ``largest_bytes``, one offload bundle, so that it never
    stalls."""

    name = "tc-tbf"

    def __init__(self, largest_bytes: int = 70_000) -> None:
        self._largest_bytes = largest_bytes

    def installed(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """The root alone."""
        return [f"qdisc add {self._root(rate_bits, limit_bytes)}"]

    def changed(self, rate_bits: int, limit_bytes: int) -> str:
        """The same with another rate."""
        return f"qdisc change {self._root(rate_bits, limit_bytes)}"

    def _root(self, rate_bits: int, limit_bytes: int) -> str:
        burst = max(self._largest_bytes, round(rate_bits / 8 * 1e-3))
        return (
            f"dev data root handle 1: tbf rate {rate_bits}bit burst {burst} "
            f"limit {max(limit_bytes, burst)}"
        )


class TcNetem(WithTc):
    """netem's own ``rate``. Its queue is counted in packets, a bundle as one."""

    name, needs = "tc-netem-rate", "netem"

    def installed(self, rate_bits: int, limit_bytes: int) -> list[str]:
        """The root alone."""
        return [f"qdisc add {self._root(rate_bits, limit_bytes)}"]

    def changed(self, rate_bits: int, limit_bytes: int) -> str:
        """The same with another rate."""
        return f"qdisc change {self._root(rate_bits, limit_bytes)}"

    def _root(self, rate_bits: int, limit_bytes: int) -> str:
        packets = max(20, limit_bytes // FRAME_BYTES)
        return f"dev data root handle 1: netem rate {rate_bits}bit limit {packets}"


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
    program = _batch(netns)
    _, complaint = program.communicate("".join(f"{line}\n" for line in commands), timeout=10)
    if program.returncode:
        raise ExperimentError(f"tc refused {commands}: {complaint.strip()}")


class Alternative(Protocol):
    """Made for one measurement. Calls: install, start, stop, remove (always, and last)."""

    name: str
    node: str
    """Whose uplink it shapes."""

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Bring the link to its state at t0; returns the question that its counter answers."""

    def start(self, t0_ns: int) -> None:
        """Follow the history from ``t0_ns`` on."""

    def stop(self) -> dict[str, Any]:
        """The history is over; returns what it says of itself."""

    def remove(self) -> None:
        """Undo ``install``."""


class Ours:
    """The project's own links."""

    name, node = "narrows", OURS

    def install(self, lab: Lab, history: Sequence[Step]) -> bytes | None:
        """Through the agent, as a run does it."""
        self._lab, self._history, self._end = lab, history, LinkDirection(OURS, "up")
        self._running = False
        cable = lab.places[OURS].cable
        lab.agent.prepare(
            {OURS: cable},
            {self._end: self._shape(history[0][1])},
            LinkSettings(segments=segments([history]), congestion=CONGESTION),
        )
        return class_question(cable.nic.index, htb.CLASS, htb.ROOT_HANDLE)

    def start(self, t0_ns: int) -> None:
        """Hand the history to the agent."""
        changes = [LinkChange(at, self._end, self._shape(rate)) for at, rate in self._history[1:]]
        self._lab.agent.start(t0_ns, iter(changes))
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

    def _shape(self, rate_bits: int) -> LinkState:
        return LinkState(rate_bits, queue_bytes(self._history))


def segments(histories: Collection[Sequence[Step]]) -> int:
    """Frames per offload bundle, as runs choose it from their histories."""
    lengths = [
        later - earlier for history in histories for (earlier, _), (later, _) in pairwise(history)
    ]
    lowest = min((rate for history in histories for _, rate in history if rate), default=0)
    return bundle_segments(lowest, min(lengths, default=None))


class Unshaped:
    """The bare cable."""

    name, node = "unshaped", PLAIN

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


def shapers(kinds: frozenset[str]) -> list[Alternative]:
    """Ours and every set-up with ``tc`` that a kernel with these kinds can do, ours first."""
    with_tc = [TcHtb(), TcHtb("tc-htb-1ms", 1e-3), TcTbf(), TcNetem()]
    return [Ours(), *(other for other in with_tc if not other.needs or other.needs in kinds)]


def absent(kinds: frozenset[str]) -> list[str]:
    """Return the alternatives that were left out, in words."""
    if "netem" in kinds:
        return []
    return [f"{TcNetem.name}: this kernel has no netem"]
