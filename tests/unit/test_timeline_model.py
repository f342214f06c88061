"""The timeline against a plain model of it: what must hold for any events."""

from __future__ import annotations

from typing import Any

import pytest
from examples_count import examples
from histories import (
    BASE,
    SAW,
    TRACES,
    UP,
    flap,
    outage,
    partition,
    ramp,
    scenario,
    step,
    timeline,
    trace,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.scenario.timeline import build

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


@settings(max_examples=examples(150), deadline=None)
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
    shortened, end = built._of[UP]._shortened
    seen = [shape.rate_bits for _, shape in shortened.changes(0, end + 1)]
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


@settings(max_examples=examples(60), deadline=None)
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


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(events, max_size=4), st.floats(0, 30), st.floats(0, 30), st.floats(0, 30))
def test_integrals_add_up(
    listed: list[dict[str, Any]], one: float, two: float, three: float
) -> None:
    a, b, c = sorted([one, two, three])
    built = timeline(*listed)
    whole = built.bits(UP, a, c)
    assert whole == pytest.approx(built.bits(UP, a, b) + built.bits(UP, b, c), rel=1e-9, abs=1e-3)
