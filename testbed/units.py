"""Quantities as they are written in scenario files: a number and its unit, never a bare number.

``Rate`` is bit/s, ``Size`` bytes, ``Packets`` a count of full-size packets (all ``int``),
``Duration`` seconds (``float``). Being numbers they need no conversion inside; ``str()`` writes
what ``parse`` reads back exactly (counts up to ``LARGEST``). Pydantic fields of these types accept
only strings with a unit (or values of the type).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

_QUANTITY = re.compile(
    r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]+)\s*$", re.ASCII
)
LARGEST = 2**53
"""Largest quantity of any kind in base units: up to here a float holds every integer exactly."""


class _Quantity:
    """The base of the four quantities: reading, and how pydantic and JSON schema see them."""

    UNITS: ClassVar[dict[str, float]]
    NOUN: ClassVar[str]
    EXAMPLE: ClassVar[str]

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read ``"100 Mbit/s"`` and the like. Raises ValueError saying what would work."""
        if isinstance(text, cls):
            cls._check(text, float(text))  # type: ignore[arg-type]
            return text
        if isinstance(text, (int, float)):
            raise ValueError(f"{cls.NOUN} {text!r} has no unit: write for example '{cls.EXAMPLE}'")
        if not isinstance(text, str) or not (match := _QUANTITY.match(text)):
            raise ValueError(
                f"{text!r} is not a {cls.NOUN}: write a number and a unit, for example "
                f"'{cls.EXAMPLE}'"
            )
        number, unit = float(match[1]), match[2]
        if unit not in cls.UNITS:
            raise ValueError(
                f"unknown unit {unit!r} for a {cls.NOUN} in {text!r}: use one of "
                f"{', '.join(cls.UNITS)}"
            )
        value = number * cls.UNITS[unit]
        cls._check(text, value)
        quantity = cls._make(value)
        if value and not quantity:
            raise ValueError(f"{cls.NOUN} {text!r} is not zero but rounds to it: write 0 or more")
        return quantity

    @classmethod
    def _check(cls, text: object, value: float) -> None:
        """Raise ValueError unless ``value``, written as ``text``, is finite and in range."""
        if value < 0:
            raise ValueError(f"{cls.NOUN} {text!r} is negative")
        if not value <= LARGEST:
            raise ValueError(f"{cls.NOUN} {text!r} is too large, or not a finite number")

    @classmethod
    def _make(cls, value: float) -> Self:
        return cls(round(value))  # type: ignore[call-arg]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        units = "|".join(re.escape(unit) for unit in cls.UNITS)
        return {
            "type": "string",
            "pattern": rf"^\s*\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*({units})\s*$",
            "examples": [cls.EXAMPLE],
        }

    @classmethod
    def _write(cls, value: int) -> str:
        """The shortest exact writing with at most three digits behind the point."""
        exact = [f"{value} {next(iter(cls.UNITS))}"]
        for unit, factor in cls.UNITS.items():
            number = f"{round(value / factor, 3):.15g}"
            if value >= factor and round(float(number) * factor) == value:
                exact.insert(0, f"{number} {unit}")
        return min(exact, key=len)


class Rate(_Quantity, int):
    """Bits per second at the link layer (Ethernet header counted, preamble and gap not)."""

    UNITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
    NOUN, EXAMPLE = "rate", "100 Mbit/s"

    def __str__(self) -> str:
        return self._write(int(self))


class Size(_Quantity, int):
    """Bytes."""

    UNITS = {
        "B": 1.0,
        "kB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "KiB": 1024.0,
        "MiB": 1048576.0,
        "GiB": 2.0**30,
    }
    NOUN, EXAMPLE = "size", "256 kB"

    def __str__(self) -> str:
        return self._write(int(self))


class Packets(_Quantity, int):
    """Full-size packets (1514 B at the link layer)."""

    UNITS = {"packets": 1.0, "packet": 1.0}
    NOUN, EXAMPLE = "packet count", "100 packets"

    @classmethod
    def _make(cls, value: float) -> Self:
        if value != round(value):
            raise ValueError(f"packet count {value} is not a whole number")
        return cls(round(value))

    def __str__(self) -> str:
        return f"{int(self)} packets"


class Duration(_Quantity, float):
    """Seconds."""

    UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    NOUN, EXAMPLE = "duration", "200 ms"

    @classmethod
    def _make(cls, value: float) -> Self:
        return cls(value)

    def __str__(self) -> str:
        ms = round(float(self) * 1e3, 6)
        if 0 < ms < 1e3 and Duration(ms * 1e-3) == self:
            return f"{ms:.15g} ms"
        return f"{float(self)!r} s".replace(".0 s", " s")


def parse_queue(value: object) -> Duration | Size | Packets:
    """Read a queue length: a time (``50 ms``), bytes (``64 kB``) or packets (``100 packets``)."""
    if isinstance(value, (Duration, Size, Packets)):
        return value
    for kind in (Duration, Size, Packets):
        match = _QUANTITY.match(value) if isinstance(value, str) else None
        if match and match[2] in kind.UNITS:
            return kind.parse(value)
    raise ValueError(
        f"{value!r} is not a queue length: write a time ('50 ms'), a size ('64 kB') or packets "
        "('100 packets')"
    )
