"""Buckets as messages: parameters that share a bucket's times are one, and a few steps of them tell what is usual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from math import isfinite
from statistics import median
from typing import Any

from testbed.control.base import Observation
from testbed.control.sizes import payload
from testbed.errors import ExperimentError

_FIELDS = (
    "bucket",
    "start_s",
    "elements",
    "sent",
    "left_s",
    "compress_s",
    "delay_s",
    "send_s",
    "bytes_up",
    "bytes_down",
)


@dataclass(frozen=True, slots=True)
class Message:
    """A bucket of some parameters: what ``Observation.buckets`` says of all of them together."""

    names: tuple[str, ...]
    elements: float
    sent: float
    left_s: float
    compress_s: float
    delay_s: float
    up: float
    """Bytes."""
    down: float
    expected: float
    """Bytes up that ``sizes`` reckons with for so many elements of float32."""
    start_s: float
    """When its first byte was handed over: against others of its step."""

    @property
    def sparse(self) -> bool:
        """Whether something was left out."""
        return self.sent < self.elements

    @classmethod
    def of(cls, names: tuple[str, ...], parts: list[Mapping[str, float]]) -> Message:
        """Elements and times of compression are added up; everything else is the bucket's."""
        first = parts[0]
        elements, sent, compress_s = (
            sum(part[key] for part in parts) for key in ("elements", "sent", "compress_s")
        )
        return cls(
            names, elements, sent, first["left_s"], compress_s, first["delay_s"], first["bytes_up"],
            first["bytes_down"], sum(map(_expected, parts)),
            first["start_s"],
        )  # fmt: skip


def messages(controller: str, seen: Observation) -> list[Message]:
    """Of a step, what was ready first before others. Raises ExperimentError where buckets were not watched, or are not finite."""
    if not seen.buckets:
        raise ExperimentError(
            f"controller {controller!r}: step {seen.step} has no `buckets`: how each travelled was not watched"
        )
    shared: dict[float, list[str]] = defaultdict(list)
    for name, part in seen.buckets.items():
        _check(controller, seen.step, name, part)
        shared[part["bucket"]].append(name)
    found = [Message.of(tuple(n), [seen.buckets[one] for one in n]) for n in shared.values()]
    return sorted(found, key=lambda message: -message.left_s)


def usual(steps: Iterable[Iterable[Message]]) -> list[Message]:
    """Of every bucket the medians of what it was in ``steps``, what was ready first before others."""
    same: dict[tuple[str, ...], list[Message]] = defaultdict(list)
    for step in steps:
        for message in step:
            same[message.names].append(message)
    found = [
        Message(names, *(median(column) for column in zip(*map(_numbers, many), strict=True)))
        for names, many in same.items()
    ]
    return sorted(found, key=lambda message: -message.left_s)


def to_json(step: Iterable[Message]) -> list[Any]:
    """``from_json`` reads it back."""
    return [[list(message.names), *_numbers(message)] for message in step]


def from_json(step: Iterable[Any]) -> list[Message]:
    """What ``to_json`` made."""
    return [Message(tuple(names), *numbers) for names, *numbers in step]


def _expected(part: Mapping[str, float]) -> float:
    elements, sent = part["elements"], part["sent"]
    return payload(elements, sent / elements) if sent else 0.0


def _numbers(message: Message) -> tuple[float, ...]:
    return astuple(message)[1:]


def _check(controller: str, step: int, name: str, part: Mapping[str, float]) -> None:
    missing = [key for key in _FIELDS if key not in part]
    if missing:
        raise ExperimentError(
            f"controller {controller!r}: step {step}: {name!r} has no `{missing[0]}`: it was recorded by an older version; "
            "run it again"
        )
    wrong = [key for key in _FIELDS if not (isfinite(part[key]) and part[key] >= 0)]
    if wrong:
        raise ExperimentError(
            f"controller {controller!r}: step {step}: `{wrong[0]}` of {name!r} is {part[wrong[0]]}; "
            "it must be finite and not negative"
        )
