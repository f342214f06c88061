"""Exchanges between processes on shaped links, side by side, and what can befall one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from stranger import Listening, datagrams, throw, visit, visits

from testbed.bench.lab import Lab
from testbed.fabric.base import Interface
from testbed.links import htb
from testbed.links.client import LinkSettings
from testbed.links.netlink import Netlink
from testbed.scenario.shape import End, Shape

RATE_BITS, VALUES = 40_000_000, 2_000_000
"""A message takes 1.6 s."""
TIMEOUT_S, WITHIN_S = 5.0, 10.0
"""How long a peer may be silent; until when everybody has to know it."""
HALT_STEP, STEPS = 3, 5
CARRY_ON = ("ps-async", "ps-backup")
"""Exchanges that go on without a worker; so long that it happens while they do."""
MANY_STEPS, PACE_S = 36, 0.3
NODES = 3
"""Of each exchange."""
_START_S, _SLOW_S = 90.0, 120.0
_PROGRAM = str(Path(__file__).with_name("exchange_peer.py"))


class Case(NamedTuple):
    """One fault in one exchange."""

    exchange: str
    victim: str
    phase: str
    fault: str
    way: str = "threads"

    def __str__(self) -> str:
        return "-".join(self)


@dataclass
class Process:
    """One node, and what it has said."""

    name: str
    popen: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def said(self, *kinds: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["kind"] in kinds), None)

    def until(self, *kinds: str, timeout_s: float) -> dict[str, Any] | None:
        """The first line of one of ``kinds``; None when it does not come."""
        with self._changed:
            self._changed.wait_for(lambda: self.said(*kinds) or self._ended, timeout_s)
        return self.said(*kinds)

    def tell(self) -> None:
        """Let it go on."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdin is not None and self.popen.stdout is not None
        with self._changed:
            self._changed.wait_for(lambda: self._ended, 5.0)
        self.popen.stdout.close()
        with suppress(BrokenPipeError):
            self.popen.stdin.close()


@dataclass(frozen=True)
class Outcome:
    """What everybody said, and how long after the fault."""

    victim: str
    said: dict[str, dict[str, Any] | None]
    after_s: dict[str, float]
    steps: dict[str, int]
    counts: dict[str, dict[str, Any] | None]
    lost: list[dict[str, Any]]
    """What a server said of workers that it goes on without; ``at_s`` after the fault."""

    @property
    def survivors(self) -> list[str]:
        return [name for name in self.said if name != self.victim]

    def told(self) -> str:
        """In words, for whoever reads a failure."""
        lines = [f"lost after {line['at_s']:.1f} s: {line}" for line in self.lost]
        for name, line in self.said.items():
            what = "nothing" if line is None else line.get("message", line["kind"])
            lines.append(f"{name} after {self.after_s[name]:.1f} s: {what}")
        return "\n".join(lines)


class Arena:
    """Several exchanges at once, each on nodes of its own of one lab."""

    def __init__(self, lab: Lab, groups: int) -> None:
        self._lab = lab
        self._free: SimpleQueue[int] = SimpleQueue()
        for group in range(groups):
            self._free.put(group)
        shape = Shape(RATE_BITS, RATE_BITS // 8 // 20)
        lab.agent.prepare(
            {name: place.cable for name, place in lab.places.items()},
            {End(name, way): shape for name in lab.places for way in ("up", "down")},
            LinkSettings(segments=8, congestion="cubic"),
        )

    def play(self, case: Case) -> Outcome:
        """Run ``case`` to its end."""
        group = self._free.get()
        try:
            return _Play(self, case, group).run()
        finally:
            self._free.put(group)

    def place(self, group: int, number: int) -> str:
        return place_name(group, number)

    def address(self, place: str) -> str:
        return self._lab.places[place].data_address

    def netns(self, place: str) -> str:
        return self._lab.netns(place)

    def nic(self, place: str) -> Interface:
        return self._lab.places[place].nic

    @property
    def switch(self) -> str:
        return self._lab.switch

    def rate(self, place: str, bits: int) -> None:
        """Of its uplink."""
        nic = self._lab.places[place].nic
        with Netlink(nic.netns) as netlink:
            netlink.send(htb.change_class(nic.index, htb.pace(bits)))

    def cable(self, place: str, state: str) -> None:
        """``down``: pull the plug at the switch."""
        port = self._lab.places[place].port
        command = ["nsenter", f"--net={port.netns}", "ip", "link", "set", port.name, state]
        subprocess.run(command, check=True)


class _Play:
    def __init__(self, arena: Arena, case: Case, group: int) -> None:
        self._arena, self._case, self._run = arena, case, 1000 + group
        servers = 1 if case.exchange.startswith("ps") else 0
        self._names = {
            n: "server" if n < servers else f"worker-{n - servers}" for n in range(NODES)
        }
        self._places = {name: arena.place(group, n) for n, name in self._names.items()}
        self._listening = Listening(arena.nic(self._places[case.victim]))
        self._processes = {name: self._start(n, name, servers) for n, name in self._names.items()}

    def run(self) -> Outcome:
        place = self._places[self._case.victim]
        try:
            for process in self._processes.values():
                assert process.until("ready", timeout_s=_START_S), process.lines
            for process in self._processes.values():
                process.tell()
            victim = self._processes[self._case.victim]
            assert victim.until("halted", timeout_s=_START_S), victim.lines
            self._strike(victim, place)
            return self._outcome(time.monotonic())
        finally:
            self._listening.end()
            for process in self._processes.values():
                process.end()
            if self._case.fault == "cut off":
                self._arena.cable(place, "up")
            self._arena.rate(place, RATE_BITS)

    def _start(self, number: int, name: str, servers: int) -> Process:
        case, place = self._case, self._places[name]
        plan = {
            "own": number, "run": self._run, "names": self._names, "servers": servers,
            "workers": NODES - servers, "exchange": case.exchange, "options": {}, "way": case.way,
            "timeout_s": TIMEOUT_S, "values": VALUES, "long": HALT_STEP,
            "steps": MANY_STEPS if case.exchange in CARRY_ON else STEPS,
            "pace_s": PACE_S if case.exchange in CARRY_ON else 0.0,
            "addresses": {n: self._arena.address(p) for n, p in enumerate(self._places.values())},
            "halt_step": HALT_STEP, "halt_phase": case.phase if name == case.victim else "",
        }  # fmt: skip
        program = [sys.executable, _PROGRAM, json.dumps(plan)]
        popen = subprocess.Popen(
            ["nsenter", f"--net={self._arena.netns(place)}", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return Process(name, popen)

    def _strike(self, victim: Process, place: str) -> None:
        strikes: dict[str, Callable[[], None]] = {
            "killed": lambda: os.kill(victim.popen.pid, signal.SIGKILL),
            "paused": lambda: os.kill(victim.popen.pid, signal.SIGSTOP),
            "cut off": lambda: self._arena.cable(place, "down"),
            "slow": lambda: self._arena.rate(place, RATE_BITS // 10),
            "visited": lambda: self._visit(place),
        }
        strikes[self._case.fault]()
        if self._case.fault not in ("killed", "paused"):
            victim.tell()

    def _visit(self, place: str) -> None:
        """A stranger calls at the victim's; the last worker is one that it is not."""
        heard, address = self._listening.end(), self._arena.address(place)
        visit(self._arena.switch, address, visits(self._run, NODES - 1, heard))
        if self._case.exchange == "multicast":
            throw(self._arena.switch, address, datagrams(heard))

    def _outcome(self, struck_s: float) -> Outcome:
        lasting = self._case.fault in ("slow", "visited") or self._case.exchange in CARRY_ON
        patience_s = _SLOW_S if lasting else 2 * WITHIN_S
        said: dict[str, dict[str, Any] | None] = {}
        for name, process in self._processes.items():
            if name != self._case.victim or self._case.fault not in ("killed", "paused"):
                left_s = struck_s + patience_s - time.monotonic()
                said[name] = process.until("done", "error", timeout_s=max(0.0, left_s))
        now_s = time.monotonic()
        ended = {name: now_s if line is None else line["at_s"] for name, line in said.items()}
        return Outcome(
            self._case.victim,
            said,
            {name: at_s - struck_s for name, at_s in ended.items()},
            {
                name: max([0, *(line["step"] for line in p.lines if line["kind"] == "step")])
                for name, p in self._processes.items()
            },
            {name: p.until("counts", timeout_s=1.0) for name, p in self._processes.items()},
            [
                {**line, "at_s": line["at_s"] - struck_s}
                for process in self._processes.values()
                for line in process.lines
                if line["kind"] == "lost"
            ],
        )


def place_name(group: int, number: int) -> str:
    """A lab's node."""
    return f"g{group}n{number}"
