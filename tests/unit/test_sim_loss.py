"""What links lose in virtual time: who decides it."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.fabric.sim.link_state import PACKET_BITS, LinkArrays, Route
from testbed.fabric.sim.tcp_model import LinkLosses, SimFlow, Windows, allowed_bits, mean_loss
from testbed.scenario.link_state import SEGMENT_BYTES, Impairments, LinkDirection, LinkState


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


def test_packets_that_are_lost_within_a_round_trip_cut_a_window_once() -> None:
    windows = Windows(2)
    windows.window[:], windows.cut_s[:] = 50, [6.95, 6.85]
    all_lost, trips_s = 100.0, np.full(2, 0.1)
    hit = windows.hit(np.arange(2), all_lost, 7.0, trips_s, np.full(2, 0.5))
    assert hit.tolist() == [1]


def test_after_a_cut_a_window_grows_along_the_cubic_or_as_reno_if_that_is_more() -> None:
    """RFC 9438: 0.4 (t - K)³ + 100, K = cbrt(30 / 0.4); 9/17 of a packet a round trip."""
    windows, rows = Windows(4), np.arange(4)
    windows.window[:], windows.origin[:], windows.threshold[:] = [70, 70, 95, 40], 100, 70
    trips_s = np.array([0.5, 0.02, 0.5, 0.5])
    curve = 0.4 * (1.5 - 75 ** (1 / 3)) ** 3 + 100
    found = windows._cubic(rows, 1.0, trips_s).tolist()
    assert found == pytest.approx([curve, 70 + 9 / 17 * 1.02 / 0.02, 95, 60])


def test_a_flow_paces_itself_twice_as_fast_below_half_of_its_threshold() -> None:
    windows = Windows(4)
    windows.window[:], windows.threshold[:] = [49, 51, 200, 49], 100
    windows.smooth_s[:], windows.least_s[:] = [0.1, 0.1, 0.1, 0], 0.05
    assert windows.pace(slice(None)).tolist() == pytest.approx([980, 612, 2400, 1960])


def test_a_host_takes_two_bundles_or_what_lasts_a_1024th_of_a_second() -> None:
    of_one = (SEGMENT_BYTES + 768) * 1024 / SEGMENT_BYTES
    """Packets a second of which that is one bundle."""
    found = allowed_bits(np.array([0.0, 1.5, 2.5]) * of_one, 1) / PACKET_BITS
    assert found.tolist() == [2, 2, 3]
    assert allowed_bits(np.zeros(1), 8).tolist() == [16 * PACKET_BITS]


@pytest.mark.parametrize(("loss", "trips"), [(0.0, 0), (1.0, 3)])
def test_a_lost_end_of_a_message_takes_a_probe(loss: float, trips: int) -> None:
    board = LinkArrays({LinkDirection("worker-0", "up"): LinkState(10_000_000, 100_000)}, {})
    board.impaired[0] = Impairments(loss=loss)
    flow = SimFlow(Route((0,), (0,)), 100 * PACKET_BITS, lambda _: None)
    assert LinkLosses(board, 1).at_end(flow, 10) == trips
