"""What delay lines do to packets: every impairment by what arrives, within what chance allows."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from statistics import fmean

import pytest
from chance import by_chance, expect, expect_share, farther_below, furthest
from lines_rig import (
    BUNDLE,
    DOWN,
    MS,
    UP,
    Lines,
    arrivals,
    flood,
    least_ms,
    numbers,
    send_stamped,
    shape,
)

from testbed.links.tc import parameters
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkChange,
    LinkDirection,
)
from testbed.transport.frame_reader import ask_for_stamps


@pytest.mark.parametrize(("end", "at"), [(UP, "nic"), (UP, "network"), (DOWN, "nic")])
def test_the_least_round_trip_is_the_delay(lines: Lines, end: LinkDirection, at: str) -> None:
    with lines.echo() as near:
        for delay_ms in (1, 20, 100):
            held = lines.impair(Impairments(delay_ns=delay_ms * MS), end, at={"a": at})
            assert held["line"]["impairments"] == {"delay_ns": delay_ms * MS}
            assert held["line"]["device"] != held["device"]
            assert delay_ms <= least_ms(near, 1.02 * delay_ms + 1) <= 1.02 * delay_ms + 1


# every day test_netem_encoder.py holds all tables to those of tc
@pytest.mark.parametrize(
    "distribution",
    [
        "uniform",
        pytest.param("normal", marks=pytest.mark.nightly),
        pytest.param("pareto", marks=pytest.mark.nightly),
        "paretonormal",
    ],
)
def test_jitter_spreads_delays_as_its_table_says(
    lines: Lines, distribution: parameters.Distribution
) -> None:
    """Nothing comes early but by chance, and what is held for long only a little late: of three tries in one, on a busy machine."""
    delay_ms, jitter_ms, count = 400, 100, 2000
    asked = [
        delay_ms + jitter_ms * entry / parameters.DELAY_UNIT
        for entry in parameters.entries(distribution)
    ]
    chosen = Impairments(
        delay_ns=delay_ms * MS,
        jitter_ns=jitter_ms * MS,
        distribution=distribution,
        ordered=False,
    )
    lines.impair(chosen)
    doubt = furthest(count)
    for tries_left in (2, 1, 0):
        with lines.receiver() as far, lines.sender() as near:
            ask_for_stamps(far)
            send_stamped(near, range(count), 0.001)
            took = [arrival.took_ms for arrival in arrivals(far)]
        assert len(took) == count
        assert farther_below(took, asked) < doubt
        late = farther_below(asked, [ms - jitter_ms / 10 for ms in took])
        if late < doubt + 0.02 or not tries_left:
            break
    assert late < doubt + 0.02


def test_random_loss(lines: Lines) -> None:
    def trial(seed: int | None) -> None:
        lines.impair(Impairments(loss=0.01, seed=seed))
        came = lines.counted(200_000)
        (link,) = lines.report().links
        assert link.line_packets is not None
        assert link.line_lost is not None
        assert (link.line_packets, link.line_lost) == (200_000, 200_000 - came)
        assert (link.drops, link.line_limit, link.failure) == (0, 0, None)
        expect_share(200_000 - came, 0.01, 200_000)

    by_chance(lines, trial)


@pytest.mark.parametrize(
    ("place", "count", "bundle"), [("nic", 30_000, 60), ("network", 10_000, 1)]
)
def test_loss_in_bursts(lines: Lines, place: str, count: int, bundle: int) -> None:
    """``at: network`` the line comes first, where bundles of one socket have not been taken apart yet."""
    model = GilbertElliott(0.01, 0.25)
    p, r, share = model.p, model.r, model.mean_loss

    def trial(seed: int | None) -> None:
        came, bursts = came_and_bursts(lines, model, seed, count, place, bundle)
        spread = sqrt(share * (1 - share) / count * (2 - p - r) / (p + r))
        expect((count - came) / count, share, spread)
        expect(fmean(bursts), model.mean_burst, sqrt((1 - r) / len(bursts)) / r)
        expect(len(bursts), share * r * count, sqrt(share * r * count), 1)

    by_chance(lines, trial)


def came_and_bursts(
    lines: Lines,
    model: GilbertElliott | FourState,
    seed: int | None,
    count: int,
    place: str = "nic",
    bundle: int = BUNDLE,
) -> tuple[int, list[int]]:
    """How many of so many packets came, and the lengths of the gaps between them."""
    lines.impair(Impairments(loss=model, seed=seed), at={"a": place})
    with lines.receiver() as far, lines.sender() as near:
        flood(near, count, bundle=bundle)
        came = numbers(far)
    gaps = [after - before - 1 for before, after in pairwise([-1, *came]) if after > before + 1]
    return len(came), gaps


def test_loss_in_four_states(lines: Lines) -> None:
    """Single losses between bursts, and bursts that are not lost altogether."""
    model, count = FourState(p13=0.02, p31=0.2, p32=0.3, p23=0.5, p14=0.03), 30_000
    share, spread = four_states(model)

    def trial(seed: int | None) -> None:
        came, gaps = came_and_bursts(lines, model, seed, count)
        expect(count - came, share * count, spread * sqrt(count), 1)
        assert len(gaps) < count - came < count / 2
        assert max(gaps) > 1

    by_chance(lines, trial)


def four_states(model: FourState) -> tuple[float, float]:
    """Share of packets lost, and the deviation of their number over the root of how many there are.

    States as the kernel numbers them: 1 and 2 let pass, 3 (in a burst) and 4 (alone) lose. By the chain's stationary
    distribution and the covariances of losses so many packets apart.
    """
    chain = [
        [1 - model.p13 - model.p14, 0.0, model.p13, model.p14],
        [0.0, 1 - model.p23, model.p23, 0.0],
        [model.p31, model.p32, 1 - model.p31 - model.p32, 0.0],
        [1.0, 0.0, 0.0, 0.0],
    ]

    def on(state: list[float]) -> list[float]:
        return [sum(state[i] * chain[i][j] for i in range(4)) for j in range(4)]

    states = [0.25] * 4
    for _ in range(2000):
        states = on(states)
    share = states[2] + states[3]
    later, variance = [0.0, 0.0, states[2], states[3]], share * (1 - share)
    for _ in range(500):
        later = on(later)
        variance += 2 * (later[2] + later[3] - share**2)
    return share, sqrt(variance)


def test_duplicates_with_a_correlation_are_as_many_as_was_asked(lines: Lines) -> None:
    """Told 10 %, netem would duplicate 1.7 %; what is correlated scatters more."""

    def trial(seed: int | None) -> None:
        lines.impair(Impairments(duplicate=0.1, duplicate_correlation=0.25, seed=seed))
        twice = lines.counted(60_000) - 60_000
        expect(twice, 6000, sqrt(60_000 * 0.1 * 0.9 * 1.25 / 0.75))

    by_chance(lines, trial)


def test_a_share_of_packets_overtakes(lines: Lines) -> None:
    """What overtakes comes at once, and so before half of the others' time, however busy the machine is."""
    count = 2000

    def trial(seed: int | None) -> None:
        lines.impair(Impairments(delay_ns=1500 * MS, reorder=0.1, seed=seed))
        with lines.receiver() as far, lines.sender() as near:
            ask_for_stamps(far)
            send_stamped(near, range(count), 0.0)
            came = arrivals(far, quiet_s=2.0)
        assert len(came) == count
        late = [arrival.number for arrival in came if arrival.took_ms >= 750]
        assert late == sorted(late)
        expect_share(count - len(late), 0.1, count)

    by_chance(lines, trial)


def test_a_share_of_packets_comes_twice(lines: Lines) -> None:
    def trial(seed: int | None) -> None:
        lines.impair(Impairments(duplicate=0.05, seed=seed))
        with lines.receiver() as far, lines.sender() as near:
            flood(near, 20_000)
            came = numbers(far)
        assert set(came) == set(range(20_000))
        expect_share(len(came) - 20_000, 0.05, 20_000)

    by_chance(lines, trial)


def test_a_share_of_packets_is_corrupt(lines: Lines) -> None:
    """One bit of at least the 42 bytes of headers is turned: in 6 of them, the sender's, nobody minds."""

    def trial(seed: int | None) -> None:
        lines.impair(Impairments(corrupt=0.05, seed=seed))
        lost = 20_000 - lines.counted(20_000)
        (link,) = lines.report().links
        assert link.line_lost == 0
        expect_share(max(1000, lost), 0.05, 20_000)
        expect_share(min(857, lost), 0.05 * 36 / 42, 20_000)

    by_chance(lines, trial)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_delay_that_falls_reorders_only_when_asked(lines: Lines, ordered: bool) -> None:
    """What is sent after the change overtakes what was sent before it."""
    slow, fast = (Impairments(delay_ns=delay * MS, ordered=ordered) for delay in (2000, 10))
    lines.impair(slow)
    with lines.receiver() as far, lines.sender() as near:
        send_stamped(near, range(20), 0.0)
        lines.start([LinkChange(0.0, UP, shape(fast))])
        count = 20
        while not lines.changes():
            send_stamped(near, range(count, count + 20), 0.002)
            count += 20
        send_stamped(near, range(count, count + 20), 0.0)
        came = numbers(far, quiet_s=3.0)
        report = lines.agent.stop()
    assert sorted(came) == list(range(count + 20))
    assert (came == sorted(came)) == ordered
    assert report.links[0].changes == 1
    (change,) = lines.changes()
    assert Impairments.from_json(change["impairments"]) == fast


def test_jitter_keeps_the_order_unless_asked(lines: Lines) -> None:
    for ordered in (True, False):
        lines.impair(Impairments(delay_ns=20 * MS, jitter_ns=10 * MS, ordered=ordered))
        with lines.receiver() as far, lines.sender() as near:
            flood(near, 500)
            came = numbers(far)
        assert sorted(came) == list(range(500))
        assert (came == sorted(came)) == ordered
