"""The agent's channels to the kernel: one thread at a time, and nothing that piles up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import pytest
from netns_rig import MBIT, Rig, rate_of

from testbed.links.agent.protocol import LinkSettings, change_to_json
from testbed.links.agent.server import AgentServer
from testbed.links.network.devices import find, link
from testbed.links.tc.netlink import KernelRefused, NetlinkChannel
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState

CHANGES, EVERY_S = 10_000, 1e-3
FLAT_BYTES = 1 << 20


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) * 1024


def test_many_changes_leave_nothing_in_memory(rig: Rig) -> None:
    end = LinkDirection("worker-0", "up")
    rig.prepare({end: rate_of(50 * MBIT)})
    rates = [(20 + n % 61) * MBIT for n in range(CHANGES)]
    t0 = rig.start(
        (LinkChange(n * EVERY_S, end, LinkState(rate, 625_000)) for n, rate in enumerate(rates, 1)),
        lead_s=1.0,
    )
    rig.wait(t0 + int(0.25e9 * CHANGES * EVERY_S))
    before = resident_bytes(rig.agent.pid)
    rig.wait(t0 + int(1e9 * CHANGES * EVERY_S))
    grown = resident_bytes(rig.agent.pid) - before
    (report,) = rig.stop().links
    assert report.failure is None and report.changes >= CHANGES - 1
    assert grown < FLAT_BYTES, f"{grown} B in {0.75 * CHANGES:.0f} changes"


def test_a_channel_is_touched_by_one_thread_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is replayed a link's is the replay's alone; before and afterwards it is its owner's."""
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
    cables = {name: asdict(place.cable) for name, place in rig.places.items()}
    shapes = {str(end): rate_of(20 * MBIT).to_json() for end in ends}
    settings = asdict(LinkSettings(segments=1, congestion="cubic"))
    request = {"cables": cables, "shapes": shapes, "impaired": [], "settings": settings}
    try:
        answer = agent.answer({"id": 1, "op": "prepare", **request})
        assert "ok" in answer, answer
        changes = [
            LinkChange(0.05 * n, end, LinkState(rate, 100_000))
            for n, rate in enumerate((10 * MBIT, 0, 30 * MBIT, MBIT // 10, 40 * MBIT), 1)
            for end in ends
        ]
        t0_ns = time.monotonic_ns() + 100_000_000
        history = {"changes": list(map(change_to_json, changes)), "known_to_s": None}
        assert "ok" in agent.answer({"id": 2, "op": "start", "t0_ns": t0_ns, **history})
        time.sleep(0.6)
        answer = agent.answer({"id": 3, "op": "stop"})
        assert [link.failure for link in answer["ok"]] == [None, None]
    finally:
        assert agent.undo() == []
    turns = [[name for name, _ in groupby(names)] for names in touched.values()]
    assert sorted(turns) == sorted(
        [["MainThread"]] * (len(turns) - len(ends))
        + [["MainThread", "replay", "MainThread"]] * len(ends)
    )


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
