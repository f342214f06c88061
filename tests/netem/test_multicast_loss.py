"""Multicasts over lossy links: everything comes through, and little is sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from multicast_rig import casters

from testbed.bench.links.lab import Wires
from testbed.fabric.base import RunContext
from testbed.links.agent.protocol import LinkSettings
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState
from testbed.topology import NodePlacement

N, STEPS = 10, 2
BODY = bytes(range(256)) * 300
RATE = 10_000_000


@pytest.fixture
def lossy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, NodePlacement]]:
    """Ten nodes whose links lose 1 % of all packets in either direction."""
    monkeypatch.setenv("NARROWS_STATE", str(tmp_path / "state"))
    fabric = Wires(RunContext("multicast-loss", tmp_path, "no-secret", quiet=True))
    try:
        _, places = fabric.lay([f"worker-{number}" for number in range(N)])
        shape = LinkState(RATE, RATE // 8 // 10, impairments=Impairments(loss=0.01))
        ends = {LinkDirection(name, way): shape for name in places for way in ("up", "down")}
        cables = {name: place.cable for name, place in places.items()}
        fabric.agent.prepare(cables, ends, LinkSettings(segments=1, congestion=None))
        yield places
    finally:
        fabric.destroy()


def test_everybody_decodes_everything_under_loss(lossy: dict[str, NodePlacement]) -> None:
    with casters(lossy) as nodes:
        nodes.form([frozenset(range(N))])
        nodes.exchange(STEPS, BODY)
        nodes.settle()
        data, repairs = nodes.total("data"), nodes.total("repairs")
        assert data == STEPS * N * 53
        # Of ten packets' way up and nine ways down every one loses 1 %: a tenth is missed by somebody.
        assert 0.02 * data < repairs < 0.4 * data
        assert not any(node.counters().strangers for node in nodes.nodes.values())
