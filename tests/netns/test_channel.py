"""The agent's channels to the kernel: one thread at a time, and nothing that piles up."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

import pytest
from netns_rig import MBIT, Rig, rate_of

from testbed.links.agent import client
from testbed.links.agent.client import AgentClient
from testbed.links.agent.protocol import LinkSettings, change_to_json
from testbed.links.agent.server import AgentServer
from testbed.links.capabilities import probe
from testbed.links.network.devices import find, link
from testbed.links.tc.netlink import KernelRefused, NetlinkChannel
from testbed.scenario.link_state import NONE, Impairments, LinkChange, LinkDirection, LinkState

CHANGES, EVERY_S, SETTLED_S = 10_000, 1e-3, 5.0
FLAT_BYTES = 1 << 20
FOLDS_EARLY = """
from testbed.links.agent.server import main
from testbed.links.replay import sampler
sampler.FOLD_S = 2.0
main()
"""


def most_resident(pid: int, until_ns: int) -> int:
    """The most memory that a process has in the half second before then."""
    most = 0
    while (left_s := (until_ns - time.monotonic_ns()) / 1e9) > 0:
        if left_s < 0.5:
            fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
            most = max(most, int(fields[0]) * 1024)
        time.sleep(min(left_s, 0.02))
    return most


SHAPES = (
    LinkState(40 * MBIT, 200_000), LinkState(0, 200_000), LinkState(30 * MBIT, 200_000),
    LinkState(MBIT, 200_000), LinkState(25 * MBIT, 150_000), LinkState(0, 150_000, drop=True),
    LinkState(MBIT // 2, 150_000), LinkState(60 * MBIT, 150_000, overhead_bytes=24),
)  # fmt: skip
"""Outages of both kinds, low rates, another queue, another overhead."""


def endless(ends: list[LinkDirection]) -> Iterator[LinkChange]:
    for n in count(1):
        shape = SHAPES[n // len(ends) % len(SHAPES)]
        rate = shape.rate_bits + n % 61 if shape.rate_bits else 0
        yield LinkChange(n * EVERY_S, ends[n % len(ends)], replace(shape, rate_bits=rate))


def test_many_changes_leave_nothing_in_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the middle of a long run: as many changes come as are made, and what is old is folded.

    An agent folds what is a minute old. This one's minute has two seconds, and it is told two ahead.
    """
    monkeypatch.setattr(client, "AHEAD_S", 2.0)
    monkeypatch.setattr(client, "EVERY_S", 0.25)
    ends = rig.ends("worker-0")
    cables = {"worker-0": rig.places["worker-0"].cable}
    agent = AgentClient([sys.executable, "-c", FOLDS_EARLY])
    try:
        agent.prepare(cables, dict.fromkeys(ends, SHAPES[0]), LinkSettings(1, congestion="cubic"))
        t0 = time.monotonic_ns() + 200_000_000
        agent.start(t0, endless(ends))
        before = most_resident(agent.pid, t0 + int(1e9 * SETTLED_S))
        grown = most_resident(agent.pid, t0 + int(1e9 * (SETTLED_S + CHANGES * EVERY_S))) - before
        links = agent.stop().links
    finally:
        agent.close()
    assert [link.failure for link in links] == [None, None]
    made = sum(link.changes for link in links)
    assert made > CHANGES and min(link.outages for link in links) > CHANGES // 16
    assert grown < FLAT_BYTES, f"{grown} B in {CHANGES} changes"


def test_a_channel_is_touched_by_one_thread_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is replayed a link's is the replay's alone; before and afterwards it is its owner's.

    Meanwhile the owner feeds the replay and follows connections. A first replay is stopped, a second one undone as it runs.
    """
    touched: dict[NetlinkChannel, list[str]] = defaultdict(list)
    for name in ("ask", "dump_raw"):
        real = getattr(NetlinkChannel, name)

        def seen(self: NetlinkChannel, *arguments: object, real: object = real) -> object:
            touched[self].append(threading.current_thread().name)
            return real(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(NetlinkChannel, name, seen)
    said: list[object] = []
    agent = AgentServer(said.append)
    ends = rig.ends("worker-0")
    lines = ends if "netem" in probe() else []
    cables = {name: asdict(place.cable) for name, place in rig.places.items()}
    nodes = {name: place.nic.netns for name, place in rig.places.items()}
    delayed = Impairments(delay_ns=1_000_000) if lines else NONE
    shapes = [(end, rate_of(20 * MBIT).to_json()) for end in ends]
    settings = asdict(LinkSettings(segments=1, congestion="cubic"))
    request = {"cables": cables, "shapes": shapes, "impaired": lines, "settings": settings}
    changes = [
        LinkChange(0.05 * n, end, LinkState(rate, 100_000, impairments=delayed))
        for n, rate in enumerate((10 * MBIT, 0, 30 * MBIT, MBIT // 10, 40 * MBIT), 1)
        for end in ends
    ]

    def asked(operation: str, **fields: object) -> Any:
        answer = agent.answer({"id": 1, "op": operation, **fields})
        assert "ok" in answer, answer
        return answer["ok"]

    def told(some: list[LinkChange], known_to_s: float | None) -> dict[str, Any]:
        return {"changes": list(map(change_to_json, some)), "known_to_s": known_to_s}

    def begin() -> None:
        asked("prepare", **request)
        t0_ns = time.monotonic_ns() + 100_000_000
        asked("start", t0_ns=t0_ns, **told(changes[:4], 0.12))

    try:
        begin()
        time.sleep(0.15)
        asked("feed", **told(changes[4:], None))
        asked("watch", nodes=nodes)
        asked("watched")
        time.sleep(0.3)
        ended = asked("stop")
        assert [link.failure for link in ended] == [None] * len(ends)
        assert [link.changes for link in ended] == [5] * len(ends)
        replayed = [end._channel for end in agent._shaper.ends.values()]
        replayed += [line._channel for line in agent._shaper.lines.values()]
        assert len(replayed) == len(ends) + len(lines)
        begin()
        time.sleep(0.2)
    finally:
        assert agent.undo() == []
    turns = {channel: [name for name, _ in groupby(names)] for channel, names in touched.items()}
    for channel in replayed:
        assert turns.pop(channel) == ["MainThread", "replay", "MainThread", "replay", "MainThread"]
    assert len(turns) > 4 and all(len(names) == 1 for names in turns.values())


def policies(pid: int) -> set[int]:
    """Those by which a process's threads are scheduled."""
    held = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            held.add(os.sched_getscheduler(int(task.name)) & ~os.SCHED_RESET_ON_FORK)
    return held


def reached(pid: int, expected: set[int]) -> bool:
    """Whether the threads of a process are scheduled so within five seconds: some begin, and some end."""
    give_up = time.monotonic() + 5.0
    while policies(pid) != expected and time.monotonic() < give_up:
        time.sleep(0.01)
    return policies(pid) == expected


def test_an_agent_is_real_time_only_while_it_replays(rig: Rig) -> None:
    """It computes for up to a second before and after: nothing may stand still for that."""
    agent, nodes = rig.agent, {"worker-0": str(rig.places["worker-0"].nic.netns)}
    if not agent.capabilities().realtime:
        pytest.skip("real-time scheduling is refused to this user")
    rig.prepare(dict.fromkeys(rig.ends("worker-0"), LinkState(MBIT, 100_000)))
    agent.watch(nodes)
    assert policies(agent.pid) == {os.SCHED_OTHER}
    rig.start([], lead_s=0.1)
    assert reached(agent.pid, {os.SCHED_FIFO})
    agent.watched()
    agent.watch(nodes)  # by a thread that begins while links are replayed
    assert reached(agent.pid, {os.SCHED_FIFO})
    agent.stop()
    assert reached(agent.pid, {os.SCHED_OTHER})


def test_the_kernels_own_words(rig: Rig) -> None:
    with NetlinkChannel(rig.networks.switch_netns) as channel:
        with pytest.raises(KernelRefused, match="Unknown device type"):
            channel.request(
                link(("IFLA_IFNAME", "x"), ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "no-such")]})), 16, 0x600
            )  # fmt: skip
        assert find(channel, "x") is None
        with pytest.raises(KernelRefused) as refusal:
            channel.request(link(index=4711), 17)
        assert refusal.value.errno == 19
