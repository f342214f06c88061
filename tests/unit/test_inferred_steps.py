"""Steps that nobody marked, from what links carried; and the honesty to say where there are none."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from random import Random
from statistics import median

import pytest
from link_pauses import (
    Links,
    Rate,
    apart,
    even,
    halves,
    irregular,
    ring,
    swinging,
    synchronous,
)

from testbed.records import inferred_steps
from testbed.records.inferred_steps import (
    LEAST_CONFIDENCE,
    LEAST_OF_FEW,
    LEAST_STEPS,
    Inferred,
    infer,
)
from testbed.records.link_log import LinkTraffic

COUNT = 40
Rates = tuple[float, float]


def inferred(links: Links, look_s: float | None = None) -> Inferred:
    return infer(LinkTraffic(links.samples(look_s=look_s)))


def step_mb(found: Inferred) -> float:
    """Megabytes of one step over all links, as the reason says them."""
    (said,) = re.findall(r"carry (\S+) MB", found.reason)
    return float(said)


def off_s(found: Inferred, ends: list[float]) -> list[float]:
    """How far each end that was found is from the nearest true one."""
    return [min(abs(at - end) for end in ends) for at in found.ends_s]


@pytest.mark.parametrize("look_s", [None, 0.02])
@pytest.mark.parametrize("rate", [even, swinging])
def test_steps_are_found_whatever_the_rate(rate: Rate, look_s: float | None) -> None:
    links, ends = synchronous(rate, [0.3] * COUNT, 2.0)
    found = inferred(links, look_s)
    assert found.confidence == 1.0
    assert COUNT - 3 <= len(found.ends_s) - 1 <= COUNT
    assert step_mb(found) == pytest.approx(4 * 2.0, rel=0.01)
    assert median(off_s(found, ends)) < 0.02
    assert max(off_s(found, ends)) < 0.1


@pytest.mark.parametrize("rate", [even, swinging])
def test_of_a_long_run_the_middle_tells_the_bytes_of_a_step(
    rate: Rate, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, _ = synchronous(rate, [0.3] * 3 * COUNT, 2.0)
    whole = inferred(links)
    monkeypatch.setattr(inferred_steps, "_MOST_SAMPLES", len(LinkTraffic(links.samples())) // 3)
    found = inferred(links)
    assert step_mb(found) == step_mb(whole)
    assert len(found.ends_s) == pytest.approx(len(whole.ends_s), abs=2)


def test_no_step_is_counted_twice_where_they_last_from_half_a_second_to_two() -> None:
    rng = Random(1)
    links, ends = synchronous(swinging, [rng.lognormvariate(-1, 0.4) for _ in range(COUNT)], 2.0)
    found = inferred(links)
    nearest = [min(range(len(ends)), key=lambda k: abs(ends[k] - at)) for at in found.ends_s]
    assert nearest == list(range(nearest[0], nearest[0] + len(nearest)))
    lengths = [after - before for before, after in pairwise(ends)]
    assert max(lengths) > 3 * min(lengths)


def test_a_long_pause_is_a_long_step() -> None:
    links, ends = synchronous(even, [0.3] * 15 + [6.0] + [0.3] * 15, 2.0)
    found = inferred(links)
    assert found.confidence == 1.0
    assert max(off_s(found, ends)) < 0.1
    lengths = [after - before for before, after in pairwise(found.ends_s)]
    assert sum(length > 5 for length in lengths) == 1


def test_bytes_may_vary_a_little_and_confidence_says_so() -> None:
    links, rng, ends = Links(swinging), Random(4), [0.0]
    for _ in range(COUNT):
        links.compute(0.3)
        links.send(2.0 * rng.uniform(0.94, 1.06))
        ends.append(links.now_s)
    links.compute(1.0)
    found = inferred(links)
    assert found.confidence is not None
    assert LEAST_CONFIDENCE <= found.confidence < 1
    assert len(found.ends_s) - 1 in range(COUNT - 2, COUNT + 1)
    assert max(off_s(found, ends)) < 0.1


def test_two_messages_in_a_step_are_one_step() -> None:
    links = Links(swinging)
    for _ in range(COUNT):
        links.compute(0.2)
        links.send(1.0)
        links.compute(0.4)
        links.send(1.6)
    links.compute(1.0)
    found = inferred(links)
    assert COUNT - 2 <= len(found.ends_s) - 1 <= COUNT
    assert step_mb(found) == pytest.approx(4 * 2.6, rel=0.01)


@pytest.mark.parametrize("look_s", [None, 0.02])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [20, 80])
def test_irregular_traffic_has_no_steps(count: int, seed: int, look_s: float | None) -> None:
    found = inferred(irregular(swinging, count, Random(seed)), look_s)
    assert found.ends_s == ()
    assert found.confidence is None or found.confidence < LEAST_OF_FEW
    assert found.reason.startswith("Steps were not found: ")


@pytest.mark.parametrize("seed", range(4))
def test_irregular_traffic_of_every_link_has_no_steps(seed: int) -> None:
    assert infer(LinkTraffic(apart(swinging, 60, Random(seed)))).ends_s == ()


def beside_a_slow_link(rest: float) -> tuple[Inferred, list[float]]:
    """Steps of links that pause while worker-1's works off what it has; in its computations it
    carries ``rest`` of what it carries else."""
    links, ends = synchronous(even, [0.1] * COUNT, 2.0)
    records = links.samples(look_s=0.02)
    pace = 8e6 * 2.0 * (COUNT + 1.7) / (ends[-1] + 1.0)
    for record in records:
        if record["link"] == "worker-1":
            looks = [0, *(bits for _, bits in record["looks"]), record["delivered_bits"]]
            paces = [0.02 * pace * (1.0 if after > before else rest) for before, after in pairwise(looks)]  # fmt: skip
            carried = list(accumulate(paces))
            times = [at_s for at_s, _ in record["looks"]]
            record.update(
                asked_bits=round(0.1 * pace),
                delivered_bits=round(carried[-1]),
                looks=tuple(zip(times, map(round, carried), strict=False)),
            )
    return infer(LinkTraffic(records)), ends


def test_a_slow_link_that_hardly_pauses_hides_no_steps() -> None:
    """Worker-1's link works off what it has while the others pause."""
    found, ends = beside_a_slow_link(0.7)
    assert COUNT - 2 <= len(found.ends_s) - 1 <= COUNT + 1, found.reason
    assert sorted(off_s(found, ends))[-2] < 0.05  # what follows the last step is one, too


def test_pauses_of_others_beside_a_link_that_never_pauses_tell_nothing() -> None:
    found, _ = beside_a_slow_link(1.0)
    assert found.ends_s == ()
    assert "the busiest link does not pause" in found.reason


def test_half_an_all_reduce_is_no_step() -> None:
    """A real job's links, of which the busiest never pauses."""
    found = infer(LinkTraffic(halves()))
    assert found.ends_s == ()
    assert "the busiest link does not pause" in found.reason


@pytest.mark.parametrize(("nodes", "slow", "compute_s"), [(3, (4, 4), 0.15), (4, (4, 4), 0.003)])
def test_rounds_of_a_ring_are_no_steps(nodes: int, slow: Rates, compute_s: float) -> None:
    records, _ = ring(0.3, [(20, 20), slow, *[(20, 20)] * (nodes - 2)], compute_s)
    assert infer(LinkTraffic(records)).ends_s == ()


def test_a_pause_that_a_message_takes_there_and_back_may_be_a_round_of_an_exchange() -> None:
    links, _ = synchronous(even, [0.1] * COUNT, 0.5)
    traffic = LinkTraffic(links.samples(look_s=0.02))
    assert len(infer(traffic, 0.05).ends_s) - 1 >= COUNT - 2
    found = infer(traffic, 0.15)
    assert found.ends_s == ()
    assert "no longer than a message takes" in found.reason


def test_steps_of_a_ring_that_pauses_are_found() -> None:
    records, ends = ring(0.3, [(20, 20)] * 3, 0.1)
    found = infer(LinkTraffic(records))
    assert COUNT - 2 <= len(found.ends_s) - 1 <= COUNT
    assert median(off_s(found, ends)) < 0.02


def test_one_transfer_has_no_steps() -> None:
    links = Links(swinging)
    links.compute(1.0)
    links.send(60.0)
    links.compute(1.0)
    assert inferred(links).ends_s == ()


def test_links_that_never_pause_tell_nothing() -> None:
    links = Links(swinging)
    links.send(60.0)
    assert inferred(links).reason == "Steps were not found: the links never paused."


def test_an_even_stream_has_no_steps() -> None:
    links, rng = Links(even), Random(2)
    for _ in range(4000):
        links.send(even(0) / 8 * 0.001 * rng.uniform(0.8, 1.2))
        links.compute(0.001)
    assert inferred(links).ends_s == ()


def test_nothing_has_no_steps() -> None:
    assert infer(LinkTraffic([])).ends_s == ()
    links = Links(even)
    links.compute(5.0)
    assert inferred(links).ends_s == ()


def test_few_steps_are_not_enough() -> None:
    links, _ = synchronous(even, [0.5] * (LEAST_STEPS - 2), 2.0)
    assert inferred(links).ends_s == ()


@pytest.mark.parametrize(
    ("compute_s", "megabytes"), [(0.066, 0.4), (0.114, 0.1), (0.078, 0.45), (0.125, 0.78)]
)
def test_steps_shorter_than_a_few_samples_are_not_taken_for_longer_ones(
    compute_s: float, megabytes: float
) -> None:
    links, ends = synchronous(even, [compute_s] * 200, megabytes)
    assert inferred(links).ends_s == ()
    found = inferred(links, look_s=0.02)  # looks in between tell them
    assert 197 <= len(found.ends_s) - 1 <= 200
    assert median(off_s(found, ends)) < 0.01
