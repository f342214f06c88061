"""Which endpoint a node takes: by its peers, and by what is known of its messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from virtual_setup import job

from testbed.compatibility import resolve
from testbed.runner.experiment import expected_bytes, most_bytes
from testbed.training.job import PayloadSizes
from testbed.training.models.base import parameter_count
from testbed.transport import CROSSOVER_TABLE, ENDPOINTS, endpoint_for
from testbed.transport.frame import MAX_BODY

PARAMETERS = parameter_count("mlp", "digits", 1.0)


@pytest.mark.parametrize(
    ("peers", "size", "way"),
    [
        (1, 1e3, "loop"),
        (4, 1e5, "loop"),
        (4, 5e6, "threads"),
        (8, 44e6, "threads"),
        (16, 1e3, "loop"),
        (16, 2e6, "loop"),
        (1000, 44e6, "threads"),
    ],
)
def test_small_messages_go_through_a_loop(peers: int, size: float, way: str) -> None:
    assert endpoint_for(peers, size) == way
    assert way in ENDPOINTS


def test_the_crossings_are_in_order_and_cover_every_number_of_peers() -> None:
    assert [row.peers for row in CROSSOVER_TABLE] == sorted(row.peers for row in CROSSOVER_TABLE)
    assert CROSSOVER_TABLE[-1].peers == float("inf")


def test_a_dense_gradient_is_expected_where_nothing_else_is_known() -> None:
    for name in ("none", "adatopk"):
        assert expected_bytes(job(0, 4, name)) == 4 * PARAMETERS


def test_a_fixed_density_says_how_long_the_mean_is() -> None:
    fixed = replace(job(0, 4, "none"), algorithm=resolve("topk-0.01", where="here"))
    assert expected_bytes(fixed) == pytest.approx(8 * 0.01 * 4 * PARAMETERS)
    many = replace(fixed, workers=1000)
    assert expected_bytes(many) == 4 * PARAMETERS


def test_without_gradients_it_is_known() -> None:
    known = replace(job(0, 4, "none"), sizes=((PayloadSizes(100, 3000, 25, 25, 25, 1.0),),) * 2)
    assert expected_bytes(known) == 3000
    assert 3000 < most_bytes(known) < 2 << 20


def test_no_message_of_a_job_exceeds_what_peers_may_send() -> None:
    given = job(0, 4, "none")
    assert 10 * expected_bytes(given) < most_bytes(given) <= MAX_BODY
