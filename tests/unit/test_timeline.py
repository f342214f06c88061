"""The timeline against a plain model of it, and the semantics of events one by one."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.scenario.model import Scenario
from testbed.scenario.shape import End, Shape
from testbed.scenario.timeline import Timeline, build
from testbed.traces import RateTrace

UP, DOWN = End("server", "up"), End("server", "down")
SAW = RateTrace((0.0, 1.0, 2.0), (30, 60, 90), 4.0)
DEAD = RateTrace((0.0, 1.0), (50, 0), 3.0)
TRACES = {"saw": SAW, "dead": DEAD}
BASE = 100_000


def scenario(*events: dict[str, Any], **more: Any) -> Scenario:
    end = {"rate": f"{BASE} bit/s", "queue": "8 kB"}
    return Scenario.model_validate(
        {
            "name": "t",
            "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 2}},
            "links": {"default": {"up": end, "down": end}},
            "events": [_whole(event) for event in events],
            **more,
        }
    )


def _whole(event: dict[str, Any]) -> dict[str, Any]:
    whole = {"links": ["server"], "direction": "up", **event}
    return {key: value for key, value in whole.items() if value is not None}


def timeline(*events: dict[str, Any]) -> Timeline:
    return build(scenario(*events), TRACES)


def rates(*events: dict[str, Any], stop: float = 20) -> list[tuple[float, int]]:
    """Time and rate of every change of the server's uplink, t0 first."""
    built = timeline(*events)
    changes = [(c.time_s, c.shape.rate_bits) for c in built.changes(0, stop) if c.end == UP]
    return [(0, built.initial[UP].rate_bits), *changes]


def step(at: float, rate: int) -> dict[str, Any]:
    return {"kind": "step", "at": f"{at} s", "rate": f"{rate} bit/s"}


def trace(at: float, at_end: str, **more: Any) -> dict[str, Any]:
    return {"kind": "trace", "at": f"{at} s", "file": "saw", "at_end": at_end, **more}


def outage(at: float, length: float, packets: str = "wait") -> dict[str, Any]:
    return {"kind": "outage", "at": f"{at} s", "for": f"{length} s", "packets": packets}


def flap(at: float, length: float, every: float, times: int) -> dict[str, Any]:
    return {**outage(at, length), "kind": "flap", "every": f"{every} s", "times": times}


def partition(at: float, length: float) -> dict[str, Any]:
    return {"kind": "partition", "at": f"{at} s", "for": f"{length} s", "direction": None}


def ramp(at: float, rate: int, over: float, every: float) -> dict[str, Any]:
    moves = {"rate": f"{rate} bit/s", "over": f"{over} s", "every": f"{every} s"}
    return {"kind": "ramp", "at": f"{at} s", **moves}


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
    def reached(links: list[str], direction: str) -> set[End]:
        event = {**step(1, 5), "links": links, "direction": direction}
        return {change.end for change in timeline(event).changes(0, 9)}

    assert reached(["server"], "both") == {UP, DOWN}
    assert reached(["worker"], "down") == {End("worker-0", "down"), End("worker-1", "down")}
    assert reached(["worker-1", "worker"], "up") == {End("worker-0", "up"), End("worker-1", "up")}
    assert len(reached(["all"], "both")) == 6


def test_packets_are_dropped_in_an_outage_that_says_so() -> None:
    built = timeline(outage(1, 1, "drop"), outage(5, 1))
    assert built.shape_at(UP, 1.5) == Shape(0, 8000, drop=True)
    assert built.shape_at(UP, 2.0) == Shape(BASE, 8000)
    assert built.shape_at(UP, 5.5) == Shape(0, 8000)
    assert built.shape_at(DOWN, 1.5) == Shape(BASE, 8000)


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


times = st.integers(0, 40).map(lambda quarter: quarter / 4)
values = st.integers(0, 3).map(lambda i: 10 * i)
events = st.one_of(
    st.builds(step, times, values),
    st.builds(outage, times, st.integers(1, 12).map(lambda quarter: quarter / 4)),
    st.builds(trace, times, st.just("loop"), offset=st.just("1.5 s")),
    st.builds(
        trace,
        times,
        st.sampled_from(["hold", "stop"]),
        offset=st.just("1.5 s"),
        repeat=st.integers(1, 3),
        stretch=st.sampled_from([0.5, 1, 2]),
    ),
    st.builds(flap, times, st.just(0.5), st.sampled_from([0.75, 2.0]), st.integers(1, 5)),
    st.builds(partition, times, st.just(1.25)),
    st.builds(ramp, times, values, st.sampled_from([1.0, 2.0]), st.sampled_from([0.25, 0.5])),
)


def plain(listed: list[dict[str, Any]], time: float) -> int:
    """The rate at ``time``, straight from what the documentation says of events."""
    begun = [e for e in sorted(listed, key=_at) if _at(e) <= time]
    if any(_is_out(event, time - _at(event)) for event in begun):
        return 0
    ruling = [e for e in begun if "for" not in e]
    return _ruled(ruling, time)


def _is_out(event: dict[str, Any], since: float) -> bool:
    if "for" not in event:
        return False
    length = float(event["for"][:-2])
    if event["kind"] != "flap":
        return since < length
    every = float(event["every"][:-2])
    return since // every < event["times"] and since % every < length


def _ruled(ruling: list[dict[str, Any]], time: float) -> int:
    if not ruling:
        return BASE
    event, since = ruling[-1], time - _at(ruling[-1])
    if event["kind"] == "step":
        return int(event["rate"][:-6])
    if event["kind"] == "ramp":
        over, every = float(event["over"][:-2]), float(event["every"][:-2])
        start, stop = _ruled(ruling[:-1], time - since), int(event["rate"][:-6])
        return start + round((stop - start) * min(over, since // every * every) / over)
    position = since / event.get("stretch", 1) + 1.5
    if position >= 4.0 * event.get("repeat", 1) and event["at_end"] != "loop":
        return 90 if event["at_end"] == "hold" else BASE
    return SAW.rate_at(position % 4.0)


def _at(event: dict[str, Any]) -> float:
    return float(event["at"][:-2])


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=5), st.integers(0, 60), st.integers(1, 60))
def test_it_agrees_with_a_plain_model(
    listed: list[dict[str, Any]], first: int, length: int
) -> None:
    built = timeline(*listed)
    quarters = [i / 4 for i in range(first, first + length)]  # nothing changes in between
    expected = [plain(listed, time) for time in quarters]
    assert [built.rate_at(UP, time) for time in quarters] == expected
    stop = (first + length) / 4
    assert built.bits(UP, first / 4, stop) == sum(expected) / 4
    played, rate = [], plain(listed, max(0.0, first / 4 - 0.25)) if first else expected[0]
    changes = {c.time_s: c.shape.rate_bits for c in built.changes(first / 4, stop) if c.end == UP}
    for time in quarters:
        rate = changes.get(time, rate)
        played.append(rate)
    assert played == expected
    seen = [shape.rate_bits for _, shape in built._of[UP].condensed()]
    horizon = [plain(listed, i / 4) for i in range(200)]
    assert set(seen) == set(horizon)


SETTINGS: dict[str, list[Any]] = {
    "rate": ["10 bit/s", "0 bit/s"],
    "queue": ["8 kB", "100 packets"],
    "delay": ["20 ms", "40 ms"],
    "jitter": ["0 s", "5 ms"],
    "loss": [0, 0.1, {"model": "gilbert-elliott", "p": 0.1, "r": 0.5}],
    "overhead": ["0 B", "24 B"],
}
anything = st.dictionaries(st.sampled_from(list(SETTINGS)), st.integers(0, 2), min_size=1).map(
    lambda chosen: {key: SETTINGS[key][i % len(SETTINGS[key])] for key, i in chosen.items()}
)
changes_of_anything = st.builds(
    lambda at, set_: {"kind": "step", "at": f"{at} s", **set_}, times, anything
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(changes_of_anything, events), max_size=6))
def test_what_no_step_says_stays_as_it_was(listed: list[dict[str, Any]]) -> None:
    start = {"delay": "10 ms", "loss": 0.5}
    end = {"rate": f"{BASE} bit/s", "queue": "64 kB", **start}
    built = build(scenario(*listed, links={"default": {"up": end, "down": end}}), TRACES)
    for time in [i / 2 for i in range(30)]:
        held = {**end}
        for event in sorted(listed, key=_at):
            if event["kind"] == "step" and _at(event) <= time:
                held |= {key: value for key, value in event.items() if key in SETTINGS}
        alone = build(
            scenario(links={"default": {"up": {**held, "rate": "1 Mbit/s"}, "down": end}}), {}
        )
        want, found = alone.initial[UP], built.shape_at(UP, time)
        assert (found.queue_bytes, found.overhead_bytes) == (want.queue_bytes, want.overhead_bytes)
        assert found.impairments == want.impairments
        ruling = [e for e in listed if e["kind"] != "step" or "rate" in e]
        assert found.rate_bits == plain(ruling, time)
    changes = [c for c in built.changes(0, 30) if c.end == UP]
    pairs = zip([built.initial[UP], *(c.shape for c in changes)], changes, strict=False)
    assert all(before != change.shape for before, change in pairs)
    assert all(built.shape_at(UP, change.time_s) == change.shape for change in changes)


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=4), st.floats(0, 30), st.floats(0, 30), st.floats(0, 30))
def test_integrals_add_up(
    listed: list[dict[str, Any]], one: float, two: float, three: float
) -> None:
    a, b, c = sorted([one, two, three])
    built = timeline(*listed)
    whole = built.bits(UP, a, c)
    assert whole == pytest.approx(built.bits(UP, a, b) + built.bits(UP, b, c), rel=1e-9, abs=1e-3)


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
    assert built.longest_delay_s() == (0.03, UP)
    assert impaired(overhead="24 B").per_packet()
    assert not impaired(overhead="24 B").impaired(UP)
    assert impaired({"kind": "step", "at": "5 s", "loss": 0.1}).per_packet()
    assert not impaired().impaired(UP)


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

    def reached(links: list[str]) -> set[End]:
        built = build(scenario({**step(1, 5), "links": links}, racks=racks), TRACES)
        return {change.end for change in built.changes(0, 9)}

    assert reached(["rack"]) == {End("rack", "up")}
    assert len(reached(["all"])) == 3
    cut = {"kind": "partition", "links": ["rack"], "at": "1 s", "for": "2 s", "direction": None}
    built = build(scenario(cut, racks=racks), TRACES)
    shapes = [built.shape_at(End("rack", way), 2) for way in ("up", "down")]
    assert [(shape.rate_bits, shape.drop) for shape in shapes] == [(0, True), (0, True)]
    assert built.rate_at(End("worker-0", "up"), 2) == BASE
