"""What rules for every layer reckon with: bytes by density, seconds by bytes, buckets of several parameters."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from layered_rig import LAYERS, observation

from testbed.compress.payload import payload_bytes
from testbed.control.base import LEVELS, Observation
from testbed.control.cost_model import (
    WINDOW,
    AlphaBeta,
    CommunicationCostModel,
    DensitySizes,
    fitted,
    messages,
    payload,
    unhindered,
    usual,
)
from testbed.control.layerwise import Curves, error_at
from testbed.errors import ExperimentError

NOTHING = AlphaBeta()


@pytest.mark.parametrize("size", [1, 500, 40_000, 3_000_000])
def test_bytes_are_near_to_the_wire(size: int) -> None:
    for level in LEVELS:
        count = min(size, max(1, round(level * size)))
        assert payload(size, count / size) == pytest.approx(payload_bytes(size, count) + 8, rel=0.03, abs=16)  # fmt: skip


def test_bytes_do_not_fall_with_density() -> None:
    sizes = DensitySizes(scale=0.7, ratio=1.8)
    for cost in (sizes.up, sizes.down, sizes.both, sizes.fuller):
        told = [cost(10_000, k / 1000) for k in range(1, 1001)]
        assert told == sorted(told)
    assert sizes.down(10_000, 1.0) == 40_040.0, "the mean of all returns as float32"
    assert sizes.fuller(1000, 0.01) == sizes.down(1000, 0.01)
    assert DensitySizes(ratio=0.5).fuller(1000, 0.01) == sizes.up(1000, 0.01) / 0.7


def test_line_is_found_again() -> None:
    points = [(1.0, x, 0.003 + 2e-6 * x) for x in (500.0, 10_000.0, 800_000.0)]
    found = fitted(points, NOTHING)
    assert found.start_s == pytest.approx(0.003)
    assert found.per_s == pytest.approx(2e-6)
    several = [(p, x, 1e-4 * p + 1e-8 * x) for p, x in ((1.0, 1e6), (2.0, 1e4), (7.0, 3e5))]
    found = fitted(several, NOTHING)
    assert (found.start_s, found.per_s) == pytest.approx((1e-4, 1e-8))


def test_line_of_one_size_keeps_its_start() -> None:
    points = [(1.0, 1000.0, 0.5), (1.0, 1100.0, 0.55)]
    assert fitted(points, NOTHING).per_s == pytest.approx(5e-4)
    known = fitted(points, AlphaBeta(0.2, 9.0))
    assert known.start_s == 0.2
    assert known.seconds(1050) == pytest.approx(0.525, rel=0.01)
    assert fitted(points, AlphaBeta(0.9, 1.0)).start_s == 0.5, "no more than all of it"
    assert fitted([], AlphaBeta(0.1, 0.2)) == AlphaBeta(0.1, 0.2)


def test_line_where_large_ones_were_quicker() -> None:
    found = fitted([(1.0, 1000.0, 0.9), (1.0, 9000.0, 0.3)], AlphaBeta(0.1, 1.0))
    assert found.start_s == 0.1
    assert found.per_s > 0
    through = fitted([(1.0, 1000.0, 0.05), (1.0, 9000.0, 0.9)], NOTHING)
    assert through.start_s == 0.0, "no message takes less than nothing"
    assert through.per_s == pytest.approx(0.9 / 9000, rel=0.01)


def test_parameters_of_one_bucket_are_one_message() -> None:
    seen = observation(dict.fromkeys(LAYERS, 0.1))
    seen.buckets["last.bias"] = {**seen.buckets["last"], "elements": 10.0, "sent": 1.0, "compress_s": 1e-5}  # fmt: skip
    found = messages("mine", seen)
    assert [message.names for message in found] == [("last", "last.bias"), ("middle",), ("small",), ("first",)]  # fmt: skip
    assert found[0].elements == 40_010
    assert found[0].up == seen.buckets["last"]["bytes_up"]
    assert found[0].expected == pytest.approx(payload(40_000, 0.1) + payload(10, 0.1))
    assert found[0].compress_s == pytest.approx(1e-4 + 4e-4 + 1e-5)
    assert found[0].delay_s == seen.buckets["last"]["delay_s"]


def test_usual_is_the_median() -> None:
    steps = [messages("mine", observation({"last": 0.1}, per_s=s)) for s in (1e-6, 1e-6, 5e-3)]
    (message,) = usual(steps)
    assert message == steps[0][0], "one outage tells nothing"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "step 7 has no `buckets`: how each travelled was not watched"),
        ({"delay_s": -1.0}, "step 7: `delay_s` of 'last' is -1.0; it must be finite and not negative"),
        ({"left_s": float("nan")}, "`left_s` of 'last' is nan"),
        ({"bytes_up": float("inf")}, "`bytes_up` of 'last' is inf"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, float], sentence: str) -> None:
    seen = observation({"last": 0.1}, step=7)
    buckets = {"last": {**seen.buckets["last"], **changes}} if changes else {}
    with pytest.raises(ExperimentError, match=f"controller 'mine': .*{sentence}"):
        messages("mine", replace(seen, buckets=buckets))


def way(steps: int = 5, **more: Any) -> CommunicationCostModel:
    found = CommunicationCostModel("mine")
    for _ in range(steps):
        found.take(observation(dict.fromkeys(LAYERS, 0.1), **more))
    return found


def test_a_way_is_known_again() -> None:
    known = way().known()
    assert known.transfer.start_s == pytest.approx(0.002)
    assert known.transfer.per_s == pytest.approx(1e-6)
    assert (known.packing.start_s, known.packing.per_s) == pytest.approx((1e-4, 1e-8))
    assert (known.sizes.scale, known.sizes.ratio) == pytest.approx((1.0, 2.0))
    assert known.names == ["last", "middle", "small", "first"]
    assert known.longest_s(0.5) == 0.30
    assert known.hides
    assert known.bytes_in(0.302) == pytest.approx(300_000)
    assert known.bytes_in(0.001) == 0


@pytest.mark.parametrize("left_s", [0.0, 0.01])
def test_t_where_nothing_overlaps_or_little(left_s: float) -> None:
    """0.3 s of computation."""
    known = way(left_s={**dict.fromkeys(LAYERS, 0.0), "last": left_s}).known()
    assert known.longest_s(0.5) == pytest.approx(0.15)
    assert known.hides == (left_s > 0)


def test_all_of_one_message_is_taken_for_bytes() -> None:
    """Its delay is its bytes' of both ways; what α was is not known."""
    one, seen = CommunicationCostModel("mine"), observation({"middle": 0.1})
    one.take(seen)
    told, (part,) = one.known().transfer, seen.buckets.values()
    assert told.start_s == 0.0
    assert told.per_s == pytest.approx(part["delay_s"] / (part["bytes_up"] + part["bytes_down"]))


def queued(left_s: dict[str, float]) -> Observation:
    """Each waits until what left before it is back."""
    seen, back_s = observation(dict.fromkeys(LAYERS, 0.1), per_s=4e-6, left_s=left_s), -99.0
    for part in seen.buckets.values():
        part["compress_s"] = 0.0
        start_s = -part["left_s"]
        part["start_s"] = 100.0 + start_s
        back_s = max(start_s, back_s) + part["delay_s"]
        part["delay_s"] = back_s - start_s
    span_s = back_s + seen.buckets["last"]["left_s"]
    return replace(seen, delay_s=span_s, step_s=span_s + 0.1)


@pytest.mark.parametrize(
    ("apart_s", "alone"),
    [(10.0, [*LAYERS]), (0.5, ["last", "middle", "first"]), (0.001, ["last"]), (0.0, ["last"])],
)
def test_buckets_that_wait_for_each_other(apart_s: float, alone: list[str]) -> None:
    """Only those that found nothing in their way are looked at: the first always."""
    left_s = {name: (3 - number) * apart_s for number, name in enumerate(LAYERS)}
    seen = queued(left_s)
    found = messages("mine", seen)
    assert [message.names[0] for message in unhindered(found)] == alone
    waiting = CommunicationCostModel("mine")
    waiting.take(seen)
    told = waiting.known().transfer
    assert told.per_s == pytest.approx(4e-6, rel=0.02)
    assert 0 <= told.start_s <= 0.0021


def test_who_follows_one_that_was_queued_is_not_alone() -> None:
    """What waits to be handed over is on its way the longer."""
    seen = observation({"last": 0.1, "middle": 0.1, "small": 0.1}, per_s=0.0)
    about = {"last": (0.0, 0.15), "middle": (0.15, 0.1), "small": (0.21, 0.05)}
    for name, (start_s, delay_s) in about.items():
        seen.buckets[name] |= {"start_s": start_s, "delay_s": delay_s}
    found = unhindered(messages("mine", seen))
    assert [message.names[0] for message in found] == ["last", "middle"]


def test_buckets_alike_to_the_last_bit_stay_two() -> None:
    seen = observation({"last": 0.1, "middle": 0.1})
    bucket = seen.buckets["middle"]["bucket"]
    seen.buckets["middle"] = {**seen.buckets["last"], "bucket": bucket}
    assert [message.names for message in messages("mine", seen)] == [("last",), ("middle",)]


def test_a_byte_takes_no_longer_than_the_step() -> None:
    """Where the first bucket is small, its delay is all α's; what the step carried bounds β."""
    seen = observation({"small": 0.01, "middle": 0.1}, left_s={"small": 0.1, "middle": 0.0}, start_s=0.09)  # fmt: skip
    seen.buckets["middle"] |= {"left_s": 0.099, "start_s": seen.buckets["small"]["start_s"] + 0.001}
    waiting = CommunicationCostModel("mine")
    waiting.take(replace(seen, delay_s=0.2))
    fuller = sum(part["bytes_down"] for part in seen.buckets.values())
    assert waiting.known().transfer.per_s == pytest.approx(0.2 / fuller)


def test_a_way_goes_through_json() -> None:
    one, other = way(3), CommunicationCostModel("mine")
    other.load(json.loads(json.dumps(one.state(), allow_nan=False)))
    assert other.state() == one.state()
    assert other.known() == one.known()


def test_a_decision_is_of_the_steps_since_the_last_one() -> None:
    """Costs are learnt on, and everything else is of the new window alone: messages, and how long steps were."""
    one, other = way(20), way(20)
    assert one.known() == other.known()
    seen = observation(dict.fromkeys(LAYERS, 0.3), step=20)
    slower = replace(seen, step_s=seen.delay_s + 2.0)
    for _ in range(3):
        one.take(slower)
    later = one.known()
    assert later.computed_s == pytest.approx(2.0)
    assert [message.sent for message in later.messages] == pytest.approx(
        [0.3 * LAYERS[name] for name in later.names]
    )
    assert one.state()["steps"] == one.state()["spans"] == []


def test_only_so_many_steps_are_looked_at() -> None:
    """Also by a model that goes on from its state."""
    models = way(WINDOW), CommunicationCostModel("mine")
    models[1].load(json.loads(json.dumps(models[0].state())))
    for model in models:
        for _ in range(WINDOW):
            model.take(observation(dict.fromkeys(LAYERS, 0.3)))
        assert len(model.state()["steps"]) == len(model.state()["spans"]) == WINDOW
        assert model.known().messages[0].sent == pytest.approx(0.3 * LAYERS["last"])


def test_curves_between_levels() -> None:
    curve = [level_number * 1.0 for level_number in range(len(LEVELS))]
    assert [error_at(curve, level) for level in LEVELS] == pytest.approx(curve)
    assert error_at(curve, 2**-0.25) == pytest.approx(0.5)
    assert error_at(curve, 1e-6) == len(LEVELS) - 1


def test_a_recording_without_what_is_wanted_says_so() -> None:
    seen = observation({"last": 0.1})
    del seen.buckets["last"]["bucket"]
    with pytest.raises(ExperimentError, match=r"'last' has no `bucket`.*run it again"):
        messages("mine", seen)


def curve(*shares: float, energy: float = 2.0) -> Observation:
    wanted = [*shares, *([0.0] * (len(LEVELS) - len(shares)))]
    return Observation(7, 1, 0.1, 0.5, 1000, 0.5, curves={"a": [energy, *wanted]})


def test_curves_are_means_of_energies_since_the_last_decision() -> None:
    curves = Curves("algc")
    for energy in (2.0, 4.0, 12.0):
        curves.take(curve(0.0, 0.5, energy=energy))
    assert curves.state()["many"] == {"a": 3}
    assert curves.means(["a"])["a"][:3] == [0.0, 3.0, 0.0]
    assert curves.state() == {"sums": {}, "many": {}}
    curves.take(curve(0.0, 0.25, energy=4.0))
    assert curves.means(["a"])["a"][1] == 1.0, "nothing of before"


@pytest.mark.parametrize(
    "broken",
    [curve(0.0, -0.25), curve(0.0, float("nan")), curve(0.0, float("inf")), curve(*([0.0] * 24))],
)
def test_one_level_that_cannot_be_is_refused(broken: Observation) -> None:
    with pytest.raises(ExperimentError, match="step 7: the error curve of 'a' is not one of 23"):
        Curves("algc").take(broken)
