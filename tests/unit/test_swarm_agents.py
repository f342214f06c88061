"""Agents of a swarm's hosts, behind one client: each hears of its own links, in the time of its own clock."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest

from testbed.errors import ExperimentError
from testbed.fabric.swarm import agents as module
from testbed.fabric.swarm.agents import ClockReading, HostAgent, HostAgents
from testbed.fabric.swarm.stack_file import SwarmHost
from testbed.links.agent.protocol import LinkSettings
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState

S = 1_000_000_000
AHEAD_NS = {"a": 0, "b": 1000 * S, "c": -77 * S}
"""By how much the clocks of hosts are ahead of this one."""
NODES = {"server": "a", "worker-0": "b", "worker-1": "c", "worker-2": "b"}
T0_NS = 1 << 61
"""Far away: nothing of a history is due."""


class HostEnd:
    """The other end of an agent's connection: a clock, and all that it was asked."""

    def __init__(self, connected: socket.socket, ahead_ns: int) -> None:
        self.ahead_ns, self.asked = ahead_ns, list[dict[str, Any]]()
        self._connected = connected
        threading.Thread(target=self._answer, daemon=True).start()

    def told(self, operation: str) -> list[dict[str, Any]]:
        return [request for request in self.asked if request["op"] == operation]

    def _answer(self) -> None:
        with self._connected, self._connected.makefile() as requests:
            for line in requests:
                request = json.loads(line)
                self.asked.append(request)
                answers = {
                    "clock": [time.monotonic_ns() + self.ahead_ns, time.time_ns()],
                    "prepare": {"links": []},
                    "stop": [],
                }
                answer = {"id": request["id"], "ok": answers.get(request["op"])}
                with suppress(BrokenPipeError):  # who asked may have gone
                    self._connected.sendall(json.dumps(answer).encode() + b"\n")


@contextmanager
def three_hosts() -> Iterator[tuple[HostAgents, dict[str, HostEnd]]]:
    agents, ends = [], {}
    for name, ahead_ns in AHEAD_NS.items():
        ours, theirs = socket.socketpair()
        ends[name] = HostEnd(theirs, ahead_ns)
        agents.append(HostAgent(SwarmHost(name, name, processors=2), ours))
        agents[-1].reading = ClockReading(ahead_ns, 0, 0)
    made = HostAgents(agents, NODES)
    try:
        yield made, ends
    finally:
        made.close()


def change(time_s: float, link: str) -> LinkChange:
    return LinkChange(time_s, LinkDirection(link, "up"), LinkState(1000, 9000))


def test_t0_is_told_in_the_time_of_each_hosts_clock_with_the_changes_of_its_links() -> None:
    history = [change(1.0, "server"), *(change(2.0 + n, f"worker-{n}") for n in (0, 1, 2))]
    with three_hosts() as (agents, ends):
        agents.start(T0_NS, iter(history))
        for name, end in ends.items():
            (start,) = end.told("start")
            assert start["t0_ns"] == T0_NS + AHEAD_NS[name]
            own = [each for each in history if NODES[each.end.link] == name]
            assert [(time_s, link) for time_s, link, *_ in start["changes"]] == [
                (each.time_s, each.end.link) for each in own
            ]
        assert {node: agents.ahead_ns(node) for node in NODES} == {
            node: AHEAD_NS[host] for node, host in NODES.items()
        }


@pytest.fixture
def any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late a busy machine answers, a clock is known well enough."""
    monkeypatch.setattr(module, "MOST_ERROR_NS", 100 * S)


@pytest.mark.usefixtures("any_clock")
def test_the_clocks_are_read_when_links_are_prepared() -> None:
    with three_hosts() as (agents, ends):
        for end in ends.values():
            end.ahead_ns += 5 * S
        agents.prepare({}, {}, LinkSettings(1))
        for name, host in zip(ends, agents.hosts(), strict=True):
            clock = host["clock"]
            assert abs(clock["ahead_ns"] - AHEAD_NS[name] - 5 * S) <= clock["error_ns"]


@pytest.mark.usefixtures("any_clock")
@pytest.mark.parametrize("moved_s", [0, -1000, 1000])
def test_a_run_in_which_a_clock_moved_fails_with_the_name_of_its_host(moved_s: int) -> None:
    moved = pytest.raises(ExperimentError, match=r"the clock of host b moved by 1[0-9]{6}")
    with three_hosts() as (agents, ends):
        agents.start(T0_NS, iter([]))
        ends["b"].ahead_ns += moved_s * S
        with moved if moved_s else nullcontext():
            agents.stop()
        assert all(end.told("stop") for end in ends.values())


def test_a_greeting_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often something of it comes."""
    monkeypatch.setattr(module, "GREETING_S", 0.5)
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def dribble() -> None:
        while not over.wait(0.05):
            theirs.send(b"x")

    thread = threading.Thread(target=dribble)
    thread.start()
    begun_s = time.monotonic()
    with ours, theirs:
        with pytest.raises(TimeoutError):
            module._line(ours)
        over.set()
        thread.join()
    assert time.monotonic() - begun_s >= 0.5
