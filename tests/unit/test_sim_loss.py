"""What links lose in virtual time: who decides it."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.fabric.sim.link_state import LinkArrays
from testbed.fabric.sim.tcp_model import LinkLosses, Windows, mean_loss
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


def test_a_window_that_loses_below_its_last_peak_takes_less_for_the_next() -> None:
    """RFC 9438: what it falls to is 0.7 of it in any case; fast convergence is 0.85 of it."""
    windows = Windows(4)
    windows.window[:] = [80, 100, 120, 2]
    windows.origin[:] = [100, 100, 100, 0]
    windows.cut(np.arange(3), 7.0)
    assert windows.origin.tolist() == pytest.approx([68, 100, 120, 0])
    assert windows.window.tolist() == pytest.approx([56, 70, 84, 2])
    assert windows.threshold.tolist() == pytest.approx([56, 70, 84, 0])
    assert windows.epoch_s.tolist() == windows.cut_s.tolist() == [7, 7, 7, 0]
    windows.cut(np.array([3]), 8.0)
    assert (windows.window[3], windows.origin[3]) == (2, 2)
