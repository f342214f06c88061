"""The benchmark's own eyes: a class's or discipline's byte counter, read at fixed times.

All alternatives are looked at in this one way, none by what it says of itself. The counters are those that
``tc -s`` shows: bytes at the link layer, Ethernet headers of every packet of a bundle counted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Thread

from pyroute2.netlink import NLM_F_ECHO
from pyroute2.netlink.rtnl import RTM_GETQDISC, RTM_GETTCLASS
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.bench.figures import Mark
from testbed.links.channel import Channel
from testbed.links.htb import AT_ROOT, traffic_control
from testbed.links.messages import Reader, encode
from testbed.process import become_realtime

_BYTES = Reader(tcmsg, "TCA_STATS2.TCA_STATS_BASIC.bytes")
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
    """Looks from ``t0_ns`` to ``stop_ns``, every ``every_s``. ``question`` None: only the processor is watched."""

    def __init__(
        self, netns: str, question: bytes | None, t0_ns: int, stop_ns: int, every_s: float
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self.marks: list[Mark] = []
        self.cpu_s = 0.0
        """Processor seconds that the host worked meanwhile, whoever for."""
        self.failure: OSError | None = None
        self._channel, self._question = Channel(netns), question
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
