"""Quantities: what is written is what is read, and what has no unit is refused."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from testbed.units import LARGEST, Duration, Packets, Rate, Size, parse_queue

counts = st.integers(min_value=0, max_value=LARGEST)
seconds = st.floats(min_value=0, max_value=LARGEST, allow_subnormal=False)
KINDS = [Rate, Size, Packets, Duration]


@given(counts)
def test_counts_survive_being_written(value: int) -> None:
    for kind in (Rate, Size, Packets):
        assert kind.parse(str(kind(value))) == value


@given(seconds)
def test_durations_survive_being_written(value: float) -> None:
    assert Duration.parse(str(Duration(value))) == value


@given(st.sampled_from(sorted(Rate.UNITS)), st.integers(0, 10**6))
def test_rates_scale_by_their_unit(unit: str, number: int) -> None:
    assert Rate.parse(f"{number} {unit}") == round(number * Rate.UNITS[unit])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Rate(100_000_000), "100 Mbit/s"),
        (Rate(0), "0 bit/s"),
        (Rate(1_234_567), "1234567 bit/s"),
        (Rate(1_500_000), "1.5 Mbit/s"),
        (Size(64_000), "64 kB"),
        (Size(65_536), "64 KiB"),
        (Packets(100), "100 packets"),
        (Duration(0.05), "50 ms"),
        (Duration(90.0), "90 s"),
        (Duration(0.0), "0 s"),
    ],
)
def test_quantities_are_written_for_people(value: object, written: str) -> None:
    assert str(value) == written


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        (Rate, 100, "100 has no unit: write for example '100 Mbit/s'"),
        (Rate, 0, "has no unit"),
        (Rate, math.nan, "has no unit"),
        (Rate, "100", "write a number and a unit"),
        (Rate, "nan Mbit/s", "write a number and a unit"),
        (Rate, "inf Mbit/s", "write a number and a unit"),
        (Rate, "1e400 bit/s", "not a finite number"),
        (Rate, "1e300 bit/s", "too large"),
        (Rate, "-5 Mbit/s", "is negative"),
        (Rate, "100 Mbps", "use one of bit/s, kbit/s, Mbit/s, Gbit/s"),
        (Rate, "0.2 bit/s", "rounds to it"),
        (Rate, "1_000 bit/s", "write a number and a unit"),
        (Rate, "٣ bit/s", "write a number and a unit"),
        (Rate, None, "write a number and a unit"),
        (Size, "1 Kb", "unknown unit 'Kb' for a size"),
        (Packets, "1.5 packets", "whole number"),
        (Duration, "5", "write a number and a unit"),
        (Duration, "5 sec", "use one of us, ms, s, min, h"),
        (Duration, "-1 s", "is negative"),
        (Duration, Duration(math.nan), "not a finite number"),
        (Duration, Duration(-1.0), "is negative"),
    ],
)
def test_refusals_say_what_works(kind: type[Rate], text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        kind.parse(text)
    assert complaint in str(caught.value)


def test_a_queue_is_a_time_a_size_or_packets() -> None:
    assert parse_queue("50 ms") == Duration(0.05)
    assert type(parse_queue("64 kB")) is Size
    assert type(parse_queue("100 packets")) is Packets
    for wrong in (50, "50", "50 Mbit/s", None, "-1 ms"):
        with pytest.raises(ValueError, match=r"50 ms|negative"):
            parse_queue(wrong)


class _Model(BaseModel):
    rate: Rate
    wait: Duration


def test_fields_take_strings_only_and_give_them_back() -> None:
    model = _Model.model_validate({"rate": "1.5 Gbit/s", "wait": "2 min"})
    assert (model.rate, model.wait) == (1_500_000_000, 120.0)
    assert _Model.model_validate_json(model.model_dump_json()) == model
    with pytest.raises(ValidationError, match="has no unit"):
        _Model.model_validate({"rate": 5, "wait": "1 s"})


@pytest.mark.parametrize("kind", KINDS)
def test_the_json_schema_accepts_what_is_written(kind: type[Rate]) -> None:
    schema = kind.__get_pydantic_json_schema__({}, None)  # type: ignore[arg-type]
    for text in (kind.EXAMPLE, str(kind(1)), str(kind(12_345))):
        assert re.search(schema["pattern"], text)
    assert not re.search(schema["pattern"], "100")
