"""Exchanges between processes on shaped links, side by side, and what can befall one of them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from exchange_nodes import Nodes
from exchange_peer import LASTING
from fault_cases import Case
from stranger import Listening, datagrams, throw, visit, visits

from testbed.bench.links.lab import Lab, lab
from testbed.bench.results import Setup
from testbed.links.agent.protocol import LinkSettings
from testbed.links.network.namespaces import inside
from testbed.links.replay.link_player import charge_of
from testbed.links.tc import htb
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import pace
from testbed.scenario.link_state import LinkDirection, LinkState
from testbed.topology import Interface

RATE_BITS, VALUES = 40_000_000, 500_000
"""A message takes 0.4 s."""
BUFFER_BYTES = 1 << 17
"""The most that a node's kernel takes of a message that its peer does not take: phases last as those of long messages."""
SLOW_BITS = RATE_BITS // 20
"""Of a slow link, where a message takes longer than a timeout; and of a victim's while it is on its way into a phase."""
SLOW_S = 0.9 * 32 * VALUES / SLOW_BITS
"""Nobody has such a message sooner."""
TIMEOUT_S, WITHIN_S = 5.0, 13.0
"""How long a peer may be silent; until when everybody has to know it."""
HALT_STEP, STEPS = 3, 5
CARRY_ON = ("ps-async", "ps-backup")
"""Exchanges that go on without a worker; so long that it happens while they do."""
MANY_STEPS, PACE_S = 30, 0.25
NODES = 3
"""Of each exchange."""
START_S, SLOW_END_S, SETTLED_S, COUNTED_S = 60.0, 120.0, 0.2, 10.0
ABRUPT = ("killed", "paused")
"""Faults of a process, which says nothing more."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What everybody said. Times are of the monotonic clock."""

    victim: str
    struck_s: float
    said: dict[str, Line | None]
    """How it ended for those that were to end."""
    ended_s: dict[str, float]
    steps: dict[str, list[Line]]
    counts: dict[str, Line | None]
    lost: list[Line]
    """What a server said of workers that it goes on without."""

    @property
    def survivors(self) -> list[str]:
        return [name for name in self.said if name != self.victim]

    @property
    def histories(self) -> dict[str, list[tuple[int, int]]]:
        """By node: steps that it has done, and the checksum of what it had then."""
        return {
            name: [(line["step"], line["crc"]) for line in lines]
            for name, lines in self.steps.items()
        }

    def after_s(self, name: str) -> float:
        """Since the fault."""
        return self.ended_s[name] - self.struck_s

    def told(self) -> str:
        """In words, for whoever reads a failure."""
        lines = [f"lost after {line['at_s'] - self.struck_s:.1f} s: {line}" for line in self.lost]
        for name, line in self.said.items():
            what = "nothing" if line is None else line.get("message", line["kind"])
            last = max([0, *(line["step"] for line in self.steps[name])])
            lines.append(f"{name} after {self.after_s(name):.2f} s, with {last} steps: {what}")
        return "\n".join(lines)


class Arena:
    """Several exchanges at once, each on nodes of its own of one lab."""

    def __init__(self, lab: Lab, nodes: Nodes, groups: int) -> None:
        self._lab, self.nodes = lab, nodes
        self._free: SimpleQueue[int] = SimpleQueue()
        for group in range(groups):
            self._free.put(group)
        for name in lab.places:
            with inside(lab.netns(name)):
                for sysctl in ("tcp_wmem", "tcp_rmem"):
                    Path("/proc/sys/net/ipv4", sysctl).write_text(f"4096 16384 {BUFFER_BYTES}")
        shape = LinkState(RATE_BITS, RATE_BITS // 8 // 20)
        lab.agent.prepare(
            {name: place.cable for name, place in lab.places.items()},
            {LinkDirection(name, way): shape for name in lab.places for way in ("up", "down")},
            LinkSettings(segments=8, congestion="cubic"),
        )

    @contextmanager
    def group(self) -> Iterator[int]:
        """Nodes for one exchange."""
        group = self._free.get()
        try:
            yield group
        finally:
            self._free.put(group)

    def play(self, case: Case) -> Outcome:
        """Run ``case`` to its end."""
        with self.group() as group:
            return _Play(self, case, group).run()

    def undisturbed(self, exchange: str, **plan: Any) -> Outcome:
        """The outcome of an exchange that nothing befalls. ``plan``: what is not as usual."""
        with self.group() as group:
            playing = Exchange(self, group, exchange, lambda _: plan)
            try:
                playing.begin()
                now_s = time.monotonic()
                return playing.outcome("", now_s, list(playing.processes), SLOW_END_S)
            finally:
                playing.end()

    def address(self, place: str) -> str:
        return self._lab.places[place].data_address

    def netns(self, place: str) -> str:
        return self._lab.netns(place)

    def nic(self, place: str) -> Interface:
        return self._lab.places[place].nic

    @property
    def switch(self) -> str:
        return self._lab.switch

    def rate(self, place: str, bits: int, *, down: bool = False) -> None:
        """Of its uplink, or of its downlink."""
        device = self._lab.places[place].port if down else self._lab.places[place].nic
        with NetlinkChannel(device.netns) as channel:
            channel.send(htb.set_class(device.index, pace(bits)))

    def rates(self, place: str, bits: int) -> None:
        """Of its links in both directions."""
        self.rate(place, bits)
        self.rate(place, bits, down=True)

    def outage(self, place: str, for_s: float) -> None:
        """Let packets wait in both directions, from the next one on for so long; give the links a rate again then."""
        for device in (self._lab.places[place].nic, self._lab.places[place].port):
            with NetlinkChannel(device.netns) as channel:
                channel.send(htb.set_class(device.index, charge_of(int(1e9 * for_s))))

    def cable(self, place: str, state: str) -> None:
        """``down``: pull the plug at the switch."""
        port = self._lab.places[place].port
        command = ["nsenter", f"--net={port.netns}", "ip", "link", "set", port.name, state]
        subprocess.run(command, check=True)


class Exchange:
    """The processes of one exchange. ``plan``: what is not the same for all, over what is usual."""

    def __init__(
        self, arena: Arena, group: int, exchange: str, own_plan: Callable[[str], dict[str, Any]]
    ) -> None:
        self.run = 1000 + group
        servers, names = servers_of(exchange), names_in(exchange)
        self.places = {name: place_name(group, n) for n, name in names.items()}
        usual = {
            "run": self.run, "names": names, "servers": servers, "workers": NODES - servers,
            "exchange": exchange, "options": {}, "way": "threads", "timeout_s": TIMEOUT_S,
            "values": VALUES, "long": HALT_STEP, "steps": STEPS, "pace_s": 0.0,
            "addresses": {n: arena.address(p) for n, p in enumerate(self.places.values())},
            "halt_step": 0, "halt_phase": "",
        }  # fmt: skip
        self.processes = {
            name: arena.nodes.start(
                name, arena.netns(self.places[name]), {**usual, "own": n, **own_plan(name)}
            )
            for n, name in names.items()
        }

    def begin(self) -> None:
        """When all are ready."""
        for process in self.processes.values():
            assert process.until("ready", timeout_s=START_S), process.lines
        for process in self.processes.values():
            process.tell()

    def outcome(
        self, victim: str, struck_s: float, names: Collection[str], patience_s: float
    ) -> Outcome:
        """Once all of ``names`` have ended, or had the time for it."""
        give_up_s = time.monotonic() + patience_s
        said = {
            name: self.processes[name].until(
                "done", "error", timeout_s=max(0.0, give_up_s - time.monotonic())
            )
            for name in names
        }
        now_s = time.monotonic()
        everybody = self.processes.items()
        return Outcome(
            victim,
            struck_s,
            said,
            {name: now_s if line is None else line["at_s"] for name, line in said.items()},
            {name: process.all("step") for name, process in everybody},
            {
                name: process.until("counts", timeout_s=COUNTED_S if name in names else 0.0)
                for name, process in everybody
            },
            [line for _, process in everybody for line in process.all("lost")],
        )

    def end(self) -> None:
        for process in self.processes.values():
            process.end()


class _Play:
    def __init__(self, arena: Arena, case: Case, group: int) -> None:
        self._arena, self._case = arena, case
        number = next(n for n, name in names_in(case.exchange).items() if name == case.victim)
        self._place = place_name(group, number)
        self._listening = Listening(arena.nic(self._place))  # some greet as soon as they are there
        self._exchange = Exchange(arena, group, case.exchange, self._plan)
        self._victim = self._exchange.processes[case.victim]

    def run(self) -> Outcome:
        case, processes = self._case, self._exchange.processes
        try:
            self._exchange.begin()
            self._bring_to_halt()
            struck_s = self._strike()
            ending = [n for n in processes if n != case.victim or case.fault not in ABRUPT]
            return self._exchange.outcome(case.victim, struck_s, ending, self._patience_s())
        finally:
            self._listening.end()
            self._exchange.end()
            if case.fault == "cut off":
                self._arena.cable(self._place, "up")
            self._arena.rates(self._place, RATE_BITS)

    def _plan(self, name: str) -> dict[str, Any]:
        case, on = self._case, self._case.exchange in CARRY_ON
        own = {
            "way": case.way,
            "steps": MANY_STEPS if on else STEPS,
            "pace_s": PACE_S if on else 0.0,
        }
        halt = {"halt_step": HALT_STEP, "halt_phase": case.phase}
        return {**own, **halt} if name == case.victim else own

    def _bring_to_halt(self) -> None:
        """Into the phase, which a slow link has last until the fault is there."""
        victim = self._victim
        if self._case.phase in LASTING:
            assert victim.until("near", timeout_s=START_S), victim.lines
            self._await_step(HALT_STEP - 1)  # what the victim has sent before has arrived
            self._arena.rate(self._place, SLOW_BITS, down=self._case.phase == "receive")
            victim.tell()
        halted = victim.until("halted", timeout_s=START_S)
        assert halted and halted["within"], victim.lines
        if self._case.phase not in LASTING and self._case.exchange not in CARRY_ON:
            self._await_step(last_done(self._case))
            time.sleep(SETTLED_S)  # until what the others have sent has arrived

    def _await_step(self, done: int) -> None:
        """Until all others have done it."""
        for name, process in self._exchange.processes.items():
            assert name == self._case.victim or process.until_step(done, START_S), process.lines

    def _strike(self) -> float:
        """When it was."""
        fault, victim = self._case.fault, self._victim
        assert victim.alive
        struck_s = time.monotonic()
        match fault:
            case "killed":
                victim.signal(signal.SIGKILL)
                assert victim.ends()
            case "paused":
                victim.signal(signal.SIGSTOP)
            case "cut off":
                self._arena.cable(self._place, "down")
            case "visited":
                self._visit()
        if fault != "slow":
            self._arena.rates(self._place, RATE_BITS)
        if fault not in ABRUPT:
            victim.tell()
        return struck_s

    def _visit(self) -> None:
        """A stranger calls at the victim's; the last worker is one that it is not."""
        heard, address = self._listening.end(), self._arena.address(self._place)
        visit(self._arena.switch, address, visits(self._exchange.run, NODES - 1, heard))
        if self._case.exchange == "multicast":
            throw(self._arena.switch, address, datagrams(heard))

    def _patience_s(self) -> float:
        lasting = self._case.fault in ("slow", "visited") or self._case.exchange in CARRY_ON
        return SLOW_END_S if lasting else 2 * WITHIN_S


def last_done(case: Case) -> int:
    """The last step that the others can do while the victim stands still in its phase."""
    return HALT_STEP - (case.phase != "aggregate" or case.victim == "server")


def servers_of(exchange: str) -> int:
    """How many of the nodes are servers."""
    return 1 if exchange.startswith("ps") else 0


def names_in(exchange: str) -> dict[int, str]:
    """Of the nodes, by number."""
    servers = servers_of(exchange)
    return {n: "server" if n < servers else f"worker-{n - servers}" for n in range(NODES)}


def place_name(group: int, number: int) -> str:
    """A lab's node."""
    return f"g{group}n{number}"


@contextmanager
def open_arena(folder: Path, groups: int) -> Iterator[tuple[Arena, ThreadPoolExecutor]]:
    """An arena for ``groups`` exchanges at a time, and threads to play them in."""
    names = [place_name(group, number) for group in range(groups) for number in range(NODES)]
    setup = Setup(folder, list[str]().append)
    with lab(names, setup) as made, ThreadPoolExecutor(groups) as executor:
        nodes = Nodes()
        try:
            yield Arena(made, nodes, groups), executor
        finally:
            executor.shutdown(cancel_futures=True)
            nodes.close()


def asked_cases(request: pytest.FixtureRequest) -> list[Any]:
    """Every case that this session has a test for in the file that asks, once each."""
    cases = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    return list(dict.fromkeys(cases))
