"""The semantics of events one by one."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
from histories import (
    BASE,
    DOWN,
    TRACES,
    UP,
    flap,
    outage,
    partition,
    ramp,
    rates,
    scenario,
    step,
    timeline,
    trace,
)

from testbed.errors import InputError
from testbed.scenario.link_state import LinkDirection, LinkState
from testbed.scenario.timeline import Timeline, build

HISTORIES = [
    ((), [(0, BASE)]),
    ((step(0, 5),), [(0, 5)]),
    ((step(3, 5), step(7, 5), step(8, 6)), [(0, BASE), (3, 5), (8, 6)]),
    ((trace(0, "hold"),), [(0, 30), (1, 60), (2, 90)]),
    ((trace(2, "hold", scale=2),), [(0, BASE), (2, 60), (3, 120), (4, 180)]),
    ((trace(1, "stop"),), [(0, BASE), (1, 30), (2, 60), (3, 90), (5, BASE)]),
    ((trace(0, "stop", offset="1.5 s"),), [(0, 60), (0.5, 90), (2.5, BASE)]),
    ((step(1, 7), trace(2, "stop")), [(0, BASE), (1, 7), (2, 30), (3, 60), (4, 90), (6, BASE)]),
    ((trace(0, "loop"), step(4.5, 7)), [(0, 30), (1, 60), (2, 90), (4, 30), (4.5, 7)]),
    ((step(2, 5), outage(4, 3)), [(0, BASE), (2, 5), (4, 0), (7, 5)]),
    ((outage(4, 3), step(5, 9)), [(0, BASE), (4, 0), (7, 9)]),
    ((outage(4, 3), outage(6, 3)), [(0, BASE), (4, 0), (9, BASE)]),
    ((outage(2, 6), outage(3, 1)), [(0, BASE), (2, 0), (8, BASE)]),
    ((outage(2, 6), outage(3, 1), outage(3.5, 2)), [(0, BASE), (2, 0), (8, BASE)]),
    ((outage(2, 6), outage(2, 1), step(4, 5)), [(0, BASE), (2, 0), (8, 5)]),
    ((outage(2, 6), flap(3, 0.5, 2, 3)), [(0, BASE), (2, 0), (8, BASE)]),
    ((trace(0, "hold"), outage(0.5, 1)), [(0, 30), (0.5, 0), (1.5, 60), (2, 90)]),
    ((outage(0, 1),), [(0, 0), (1, BASE)]),
    ((step(1, 10), ramp(2, 40, 3, 1)), [(0, BASE), (1, 10), (3, 20), (4, 30), (5, 40)]),
    ((step(0, 0), ramp(2, 9, 2.5, 1)), [(0, 0), (2.833333333, 3), (3.666666666, 6), (4.5, 9)]),
    ((ramp(0, 0, 2, 1), step(1.5, 7)), [(0, BASE), (1, BASE // 2), (1.5, 7)]),
    ((trace(0, "loop"), ramp(1.5, 0, 2, 1)), [(0, 30), (1, 60), (2.5, 30), (3.5, 0)]),
    ((trace(0, "hold", repeat=2),), [(0, 30), (1, 60), (2, 90), (4, 30), (5, 60), (6, 90)]),
    (
        (trace(1, "stop", repeat=2, offset="3 s"),),
        [(0, BASE), (1, 90), (2, 30), (3, 60), (4, 90), (6, BASE)],
    ),
    ((trace(0, "hold", repeat=2), step(4.5, 7)), [(0, 30), (1, 60), (2, 90), (4, 30), (4.5, 7)]),
    ((trace(0, "stop", stretch=0.5), step(1, 7), step(3, 9)), [(0, 30), (0.5, 60), (1, 7), (3, 9)]),
    (
        (trace(0, "stop", stretch=2, offset="1 s"),),
        [(0, 60), (2, 90), (6, BASE)],
    ),
    ((trace(0, "stop"), ramp(5, 0, 1, 1)), [(0, 30), (1, 60), (2, 90), (4, BASE), (6, 0)]),
    (
        (trace(0, "stop"), ramp(4, 0, 2, 1)),
        [(0, 30), (1, 60), (2, 90), (4, BASE), (5, BASE // 2), (6, 0)],
    ),
    ((flap(1, 0.5, 2, 2),), [(0, BASE), (1, 0), (1.5, BASE), (3, 0), (3.5, BASE)]),
    ((step(0, 5), flap(1, 1, 2, 2), step(1.5, 6)), [(0, 5), (1, 0), (2, 6), (3, 0), (4, 6)]),
    ((partition(2, 1),), [(0, BASE), (2, 0), (3, BASE)]),
    ((step(1, 5), {**step(2, 6), "rate": None, "delay": "5 ms"}), [(0, BASE), (1, 5), (2, 5)]),
]


@pytest.mark.parametrize(("events", "history"), HISTORIES, ids=range(len(HISTORIES)))
def test_events_do_what_they_say(
    events: tuple[dict[str, Any], ...], history: list[tuple[float, int]]
) -> None:
    assert rates(*events) == history


def test_events_reach_the_links_they_name() -> None:
    def reached(links: list[str], direction: str) -> set[LinkDirection]:
        event = {**step(1, 5), "links": links, "direction": direction}
        return {change.end for change in timeline(event).changes(0, 9)}

    assert reached(["server"], "both") == {UP, DOWN}
    assert reached(["worker"], "down") == {
        LinkDirection("worker-0", "down"),
        LinkDirection("worker-1", "down"),
    }
    assert reached(["worker-1", "worker"], "up") == {
        LinkDirection("worker-0", "up"),
        LinkDirection("worker-1", "up"),
    }
    assert len(reached(["all"], "both")) == 6


def test_packets_are_dropped_in_an_outage_that_says_so() -> None:
    built = timeline(outage(1, 1, "drop"), outage(5, 1))
    assert built.shape_at(UP, 1.5) == LinkState(0, 8000, drop=True)
    assert built.shape_at(UP, 2.0) == LinkState(BASE, 8000)
    assert built.shape_at(UP, 5.5) == LinkState(0, 8000)
    assert built.shape_at(DOWN, 1.5) == LinkState(BASE, 8000)


def test_of_outages_within_each_other_the_latest_says_what_packets_do() -> None:
    built = timeline(outage(1, 6), outage(2, 1, "drop"), outage(4, 2, "drop"), outage(4.5, 1))
    times = [1.5, 2.5, 3.5, 4.25, 5, 5.75, 6.5]
    shapes = [built.shape_at(UP, time) for time in times]
    assert [shape.drop for shape in shapes] == [False, True, False, True, False, True, False]
    assert {shape.rate_bits for shape in shapes} == {0}
    assert built.shape_at(UP, 7) == LinkState(BASE, 8000)


def test_packets_are_dropped_in_the_outages_of_a_flap_that_says_so() -> None:
    lossy = timeline({**flap(1, 1, 3, 2), "packets": "drop"})
    assert [lossy.shape_at(UP, time).drop for time in (0.5, 1.5, 2.5, 4.5)] == [False, True, False, True]  # fmt: skip
    assert not timeline(flap(1, 1, 3, 2)).shape_at(UP, 1.5).drop


def test_changes_are_half_open_and_by_time() -> None:
    built = timeline(trace(0, "loop"), {**step(1, 5), "links": ["worker"]})
    assert [c.time_s for c in built.changes(0, 1)] == []
    assert [str(c.end) for c in built.changes(1, 2)] == ["server up", "worker-0 up", "worker-1 up"]
    whole = list(built.changes(0, 30))
    assert [c.time_s for c in whole] == sorted(c.time_s for c in whole)
    assert [*built.changes(0, 4), *built.changes(4, 9.5), *built.changes(9.5, 30)] == whole


def test_a_looping_trace_is_as_long_as_it_is_looked_at() -> None:
    built = timeline(trace(0, "loop"))
    far = list(islice(built.changes(1e6, math.inf), 3))
    assert [c.time_s - 1e6 for c in far] == [0.0, 1.0, 2.0]


def test_what_is_asked_of_it_at_once() -> None:
    built = timeline(trace(0, "loop"), step(1000.5, 10), outage(2000, 1.5))
    assert built.lowest_rate() == 10
    assert built.shortest_step_s() == 0.5
    assert built.longest_outage_s() == (1.5, UP)
    assert timeline().shortest_step_s() is None
    assert timeline().longest_outage_s() == (0.0, None)
    assert timeline().lowest_rate() == BASE


@pytest.mark.parametrize(
    ("events", "longest"),
    [
        ((step(1, 0), step(5, 1)), 4.0),
        ((step(1, 0), outage(3, 9), step(5, 1)), 11.0),
        ((step(1, 0),), math.inf),
        ((ramp(0, 0, 2, 1),), math.inf),
        ((trace(0, "loop", file="dead"),), 2.0),
        ((trace(0, "loop", file="dead"), outage(300, 1)), 5.0),
        ((trace(0, "hold", file="dead"),), math.inf),
        ((trace(0, "stop", file="dead"),), 2.0),
        ((trace(0, "loop", file="dead"), outage(100_000_000, 7.5)), 8.0),
        ((trace(0, "loop"), outage(5, 30)), 30.0),  # much longer than the trace
        ((trace(0, "hold", file="dead", repeat=3),), math.inf),
        ((trace(0, "stop", file="dead", repeat=10**9),), 2.0),
        ((flap(1, 0.5, 2, 1000), trace(3, "loop")), 0.5),
        ((flap(1, 0.5, 2, 4), outage(2, 1.25)), 1.5),
        ((outage(2, 6), outage(3, 1)), 6.0),
    ],
)
def test_the_longest_outage(events: tuple[dict[str, Any], ...], longest: float) -> None:
    assert timeline(*events).longest_outage_s()[0] == longest


def test_a_queue_is_fixed_at_the_base_rate() -> None:
    def held(queue: str) -> int:
        end = {"rate": "10 Mbit/s", "queue": queue}
        asked = scenario(step(0, 5), links={"default": {"up": end, "down": end}})
        return build(asked, {}).initial[UP].queue_bytes

    assert [held(queue) for queue in ("50 ms", "64 kB", "100 packets")] == [62_500, 64_000, 151_400]
    with pytest.raises(InputError, match="fewer than two packets"):
        held("3027 B")
    assert held("3028 B") == 3028


def impaired(*events: dict[str, Any], **base: Any) -> Timeline:
    end = {"rate": "1 Mbit/s", "queue": "64 kB", **base}
    links = {"default": {"up": end, "down": {"rate": "1 Mbit/s", "queue": "64 kB"}}}
    return build(scenario(*events, links=links), TRACES)


def test_what_is_asked_of_packets_is_known_beforehand() -> None:
    later = {"kind": "step", "at": "5 s", "delay": "30 ms"}
    built = impaired(later)
    assert (built.impaired(UP), built.impaired(DOWN)) == (True, False)
    assert not built.per_packet()
    assert built.delays(UP, 0, 4) == (0.0, 0.0)
    assert built.delays(UP, 0, 5) == (0.0, 0.0)
    assert built.delays(UP, 4, 6) == (0.0, 0.03)
    assert built.delays(UP, 6, math.inf) == (0.03, 0.03)
    assert built.longest_delays_s()[UP] == 0.03
    slots = impaired(delay="20 ms", jitter="5 ms", slot={"shortest": "1 ms", "longest": "40 ms"})
    assert slots.longest_delays_s()[UP] == pytest.approx(0.065)
    assert impaired(overhead="24 B").per_packet()
    assert not impaired(overhead="24 B").impaired(UP)
    assert impaired({"kind": "step", "at": "5 s", "loss": 0.1}).per_packet()
    assert not impaired().impaired(UP)


def test_each_step_of_a_delay_holds_up_to_the_next() -> None:
    steps = [{"kind": "step", "at": f"{at} s", "delay": f"{at} ms"} for at in (1, 3, 6)]
    built = impaired(*steps)
    held = [built.shape_at(UP, time).impairments.delay_ns for time in (0, 1, 2.9, 3, 5.9, 6, 99)]
    assert held == [0, 1_000_000, 1_000_000, 3_000_000, 3_000_000, 6_000_000, 6_000_000]
    assert built.delays(UP, 1, 3) == (0.001, 0.001)
    assert built.delays(UP, 2, 7) == (0.001, 0.006)


def test_a_queue_in_a_step_is_meant_at_its_own_rate_or_the_base_rate() -> None:
    def held(**step: str) -> int:
        event = {"kind": "step", "at": "1 s", **step}
        return impaired(event, queue="100 ms").shape_at(UP, 1).queue_bytes

    assert held(rate="2 Mbit/s") == 12_500
    assert held(queue="50 ms") == 6_250
    assert held(queue="50 ms", rate="2 Mbit/s") == 12_500


def test_events_name_racks_and_all_means_nodes() -> None:
    end = {"rate": "1 Mbit/s", "queue": "64 kB"}
    racks = {"rack": {"members": ["worker"], "up": end, "down": end}}

    def reached(links: list[str]) -> set[LinkDirection]:
        built = build(scenario({**step(1, 5), "links": links}, racks=racks), TRACES)
        return {change.end for change in built.changes(0, 9)}

    assert reached(["rack"]) == {LinkDirection("rack", "up")}
    assert len(reached(["all"])) == 3
    cut = {"kind": "partition", "links": ["rack"], "at": "1 s", "for": "2 s", "direction": None}
    built = build(scenario(cut, racks=racks), TRACES)
    shapes = [built.shape_at(LinkDirection("rack", way), 2) for way in ("up", "down")]
    assert [(shape.rate_bits, shape.drop) for shape in shapes] == [(0, True), (0, True)]
    assert built.rate_at(LinkDirection("worker-0", "up"), 2) == BASE
