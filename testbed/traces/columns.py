"""What the name of a column says: a rate, an amount, a time or a length of time, and in which unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate", "bytes", "time", "length"]

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_TIME_WORDS = {"second": "s", "sec": "s", "millisecond": "ms", "msec": "ms", "minute": "min", "hour": "h"}  # fmt: skip
_KNOWN = {"dl_bitrate": 1e3, "ul_bitrate": 1e3}
"""Names without a unit whose meaning is known: G-NetTrack's, in kbit/s."""

# Units are read at the end of a name, behind a separator or in brackets, or alone. Big B means bytes, small b bits.
_BEGIN, _END = r"(?:^|(?<=[\s_.\-(\[/]))", r"[)\]\s]*$"
_PER_SECOND = r"(?P<per>ps|(?:\s*/\s*|_per_|\s+per\s+|_|\s+)s(?:ec(?:ond)?)?)"
_RATE = re.compile(
    rf"{_BEGIN}(?P<prefix>[kKmMgG]?)(?P<unit>[Bb]|[Bb]its?|[Bb]ytes?)(?:{_PER_SECOND}){_END}"
)
_BARE = re.compile(rf"{_BEGIN}(?P<prefix>[kKmMgG]?)(?P<unit>[Bb]its?|[Bb]ytes?|(?<=[kKMG])B){_END}")
_UNIT_OF_TIME = re.compile(rf"{_BEGIN}(ns|us|µs|ms|s|min|h|m?sec|(?:milli)?seconds?|minutes?|hours?){_END}")  # fmt: skip
_TIME = re.compile(
    r"^(time|timestamp|elapsed|t|date|datetime|second|sec|millisecond|ms|s)s?(?![a-z])"
)
_LENGTH = re.compile(r"^(duration|length|interval|dt)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Meaning:
    """``factor`` leads to bit/s, bytes or seconds; None where the name does not state the unit."""

    kind: Kind
    factor: float | None


def meaning(name: str) -> Meaning | None:
    """What a column called ``name`` holds; None if its name does not tell."""
    lower = name.strip().lower()
    if lower in _KNOWN:
        return Meaning("rate", _KNOWN[lower])
    if what := unit_of_rate(name):
        return what
    for kind, pattern in (("time", _TIME), ("length", _LENGTH)):
        if pattern.match(lower):
            return Meaning(kind, _seconds(lower))  # type: ignore[arg-type]
    return None


def unit_of_rate(name: str) -> Meaning | None:
    """The rate, or the amount of bytes, whose unit ``name`` ends in (or is)."""
    if len(name) > 200:
        return None
    if match := _RATE.search(name):
        return Meaning("rate", _bits(match) * _PREFIXES[match["prefix"].lower()])
    if match := _BARE.search(name):
        factor = _PREFIXES[match["prefix"].lower()]
        return Meaning("rate", factor) if _bits(match) == 1 else Meaning("bytes", factor)
    return None


def _bits(match: re.Match[str]) -> float:
    """Bits in one of the unit: 8 of bytes, which are written B or in full."""
    return 8.0 if match["unit"] == "B" or match["unit"].lower().startswith("by") else 1.0


def _seconds(lower: str) -> float | None:
    if not (match := _UNIT_OF_TIME.search(lower)):
        return None
    unit = match[1] if match[1] in _SECONDS else _TIME_WORDS[match[1].removesuffix("s")]
    return _SECONDS[unit]
