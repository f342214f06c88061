"""Links by the ``tc`` program, as somebody sets them up who knows it.

An explicit queue in bytes, the same for all, a burst that neither stalls nor floods, and one ``tc -batch``
process kept open, so that a change costs no start of a program.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Any

from testbed.bench.figures import Step, queue_bytes
from testbed.bench.lab import PLAIN, Lab
from testbed.bench.observer import class_question, root_question
from testbed.errors import ExperimentError
from testbed.scenario.shape import FRAME_BYTES

DEAD_BITS = 1000
"""What a ``tc`` user sets for an outage: a rate of 0 is refused."""


class WithTc:
    """What the set-ups with ``tc`` share. Subclasses say what is installed, and what a change is."""

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
    """A token bucket of 1 ms, and at least ``largest_bytes``, one offload bundle, so that it never stalls."""

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
