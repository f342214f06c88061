"""What links lose in virtual time: who decides it."""

from __future__ import annotations

import pytest

from testbed.fabric.sim.link_state import LinkArrays
from testbed.fabric.sim.tcp_model import LinkLosses, mean_loss
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState


def lost(of_run: int, of_link: int | None) -> list[int]:
    """Return how many of 1000 packets are lost, twenty times."""
    board = LinkArrays({LinkDirection("worker-0", "up"): LinkState(10_000_000, 100_000)}, {})
    board.impaired[0] = Impairments(loss=0.1, seed=of_link)
    losses = LinkLosses(board, of_run)
    return [losses.on_link(0, 1000) for _ in range(20)]


def test_a_links_own_seed_decides_in_every_run() -> None:
    assert lost(1, 5) == lost(2, 5) != lost(1, 6)


def test_without_one_it_is_the_runs() -> None:
    assert lost(1, None) == lost(1, None) != lost(2, None)


def test_what_arrives_damaged_is_lost_too() -> None:
    both, alone = Impairments(loss=0.1, corrupt=0.2), Impairments(corrupt=0.2)
    assert mean_loss(both) == pytest.approx(0.28) and mean_loss(alone) == pytest.approx(0.2)
    board = LinkArrays({LinkDirection("worker-0", "up"): LinkState(10_000_000, 100_000)}, {})
    board.impaired[0] = alone
    assert 150 < LinkLosses(board, 1).on_link(0, 1000) < 250
