"""The shares that netem is told where there is a correlation."""

from __future__ import annotations

from random import Random

import pytest

from testbed.links.tc.parameters import netem_probabilities, threshold
from testbed.scenario.link_state import Impairments


@pytest.mark.parametrize("correlation", [0.05, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
def test_so_many_of_netems_numbers_are_below(share: float, correlation: float) -> None:
    random, x, below, count = Random(1), 0.5, 0, 100_000
    limit = threshold(share, correlation)
    for _ in range(count):
        x = (1 - correlation) * random.random() + correlation * x
        below += x < limit
    scatter = (share * (1 - share) / count * (1 + correlation) / (1 - correlation)) ** 0.5
    assert abs(below / count - share) < 4 * scatter


@pytest.mark.parametrize("correlation", [0.001, 0.3, 0.99])
def test_thresholds_rise_with_shares(correlation: float) -> None:
    shares = [1e-6, 1e-4, 0.01, 0.1, 0.5, 0.99, 0.9999]
    found = [threshold(share, correlation) for share in shares]
    assert found == sorted(set(found))
    assert threshold(0.5, correlation) == pytest.approx(0.5, abs=1e-3)


def test_what_has_no_correlation_stays() -> None:
    plain = Impairments(loss=0.1, reorder=0.2, duplicate=0.3, corrupt=0.4, delay_correlation=0.5)
    assert netem_probabilities(plain) == plain
    assert netem_probabilities(Impairments(corrupt=1.0, corrupt_correlation=0.5)).corrupt == 1
    assert netem_probabilities(Impairments(corrupt_correlation=0.5)).corrupt == 0
    for name in ("reorder", "duplicate", "corrupt"):
        asked = Impairments(**{name: 0.1, f"{name}_correlation": 0.25})  # type: ignore[arg-type]
        assert getattr(netem_probabilities(asked), name) == pytest.approx(0.198, abs=0.001)
