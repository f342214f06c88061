"""``testbed bench quantize``: every value coding against PyTorch alone, over the same vectors, in turns.

Writing a section also gives what its receiver will read, which error feedback needs; the version in
PyTorch (``values.reference``) is timed without that, and with PyTorch's own random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import log2
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.bench.compress.recorded import Vectors, vectors
from testbed.bench.compress.timing import UNJUDGED, Say, Timed, read_once, stated, timed
from testbed.bench.result import Check, Suite, at_least, at_most
from testbed.compress import builtin as _builtin
from testbed.compress.base import Values, codings
from testbed.compress.layout import Layout
from testbed.compress.values import reference_groups as plain

del _builtin

READ, PLAIN, DECODE = "read_once", " (PyTorch)", " decode"
_WARM = 1
_DENSITY = 0.01
"""At which recorded gradients were sparsified."""
_ROWS, _COLUMNS = 512, 4608
"""The matrices that a vector is made of, for codings that look at shapes: ResNet-18's greatest; the rest
of the vector is a vector."""
_RANK = 2
_MOST_BITS, _LEAST_GAIN = 1.01, 1.0


@dataclass(frozen=True, slots=True)
class Method:
    """A coding with its options; ``bits``: what its formula asks for, for a vector of that length."""

    coding: str
    bits: Callable[[int], float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shapes: bool = False
    """Whether its reference is told the shapes."""


def _rows_bits(elements: int) -> float:
    whole, rest = divmod(elements, _ROWS * _COLUMNS)
    return 1 + 64 * (whole * _ROWS + (rest > 0)) / elements


def _factor_bits(elements: int) -> float:
    whole, rest = divmod(elements, _ROWS * _COLUMNS)
    return 32 * (_RANK * whole * (_ROWS + _COLUMNS) + rest) / elements


METHODS: dict[str, Method] = {
    "fp32": Method("fp32", lambda _: 32.0),
    "fp16": Method("fp16", lambda _: 16.0),
    "bf16": Method("bf16", lambda _: 16.0),
    "int8": Method("int8", lambda _: 8 + 32 / 512),
    "onebit": Method("onebit", lambda n: 1 + 64 / n),
    "onebit, rows": Method("onebit", _rows_bits, {"per": "row"}, shapes=True),
    "sign": Method("sign", lambda n: 1 + 32 / n),
    "ternary": Method("ternary", lambda n: log2(3) + 32 / n),
    "qsgd": Method("qsgd", lambda _: 4 + 32 / 512),
    "natural": Method("natural", lambda _: 8.0),
    "maxmin": Method("maxmin", lambda _: 4 + 64 / 512),
    "lowrank": Method("lowrank", _factor_bits, {"rank": _RANK}, shapes=True),
}
"""What is measured of ours; others that are registered are measured with their own defaults."""


@dataclass(frozen=True, slots=True)
class Found:
    """What ``testbed bench quantize`` measured. ``results``: seconds, and bytes of the section."""

    elements: int
    threads: int
    source: str
    about: str
    read_once_s: float
    results: dict[str, Timed[int]]

    def to_json(self) -> dict[str, Any]:
        """``{"elements", "threads", "source", "references", "results"}``; times in seconds."""
        return {
            "elements": self.elements,
            "threads": self.threads,
            "source": self.source,
            "references": {READ: self.read_once_s},
            "results": [self._result(name) for name in self._names()],
        }

    def suite(self) -> Suite:
        """As a table, with its checks: of sizes always, of times where limits are stated for them."""
        rows = [{"method": READ, "median_s": self.read_once_s}]
        rows += [{**self._result(name), **self._ratios(name)} for name in self._names()]
        title = f"{self.elements:,} elements, threads {self.threads}: {self.about}"
        judged = stated(self.elements, self.threads)
        return Suite(title, rows, self._checks(judged), absent=[] if judged else [UNJUDGED])

    def _names(self) -> list[str]:
        return [name for name in self.results if not name.endswith(DECODE)]

    def _result(self, name: str) -> dict[str, Any]:
        method = METHODS.get(name.removesuffix(PLAIN))
        asked = method.bits(self.elements) if method and method.bits else None
        return {
            "method": name,
            "median_s": self.results[name].median_s,
            "decode_s": self.results[name + DECODE].median_s,
            "bits_per_element": 8 * self.results[name].results[-1] / self.elements,
            "bits_bound": asked,
        }

    def _ratios(self, name: str) -> dict[str, float]:
        found = {f"/ {READ}": self.results[name].median_s / self.read_once_s}
        if name + PLAIN in self.results:
            found["PyTorch /"] = self._gain(name)
            found["PyTorch decode /"] = self._gain(name, DECODE)
        return found

    def _gain(self, name: str, way: str = "") -> float:
        return self.results[name + PLAIN + way].median_s / self.results[name + way].median_s

    def _checks(self, times: bool) -> list[Check]:
        checks = []
        for name in self._names():
            asked, measured = (
                self._result(name)[key] for key in ("bits_bound", "bits_per_element")
            )
            if asked and not name.endswith(PLAIN):
                checks.append(at_most(f"{name}: bits / formula", measured / asked, _MOST_BITS))
            if times and name + PLAIN in self.results:
                checks.append(at_least(f"{name}: PyTorch / ours", self._gain(name), _LEAST_GAIN))
        return checks


def run(elements: int, threads: int, source: str, repeat: int, say: Say) -> Found:
    """Measure. Raises InputError for what cannot be measured."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(max(before, threads))
        given = vectors(source, elements, 2, _DENSITY, say)
        torch.set_num_threads(threads)
        return _measured(given, threads, source, repeat, say)
    finally:
        torch.set_num_threads(before)


def _measured(given: Vectors, threads: int, source: str, repeat: int, say: Say) -> Found:
    flats = given.flats
    elements = flats[0].numel()
    layout = _layout(elements)
    calls: dict[str, Callable[[int], int]] = {READ: lambda turn: read_once(flats[turn % 2].numpy())}
    for name in (*METHODS, *(name for name in codings if name not in METHODS)):
        method = METHODS.get(name, Method(name))
        calls |= _ours(name, method, layout, flats)
        if method.coding in plain.ENCODE:
            calls |= _torchs(name + PLAIN, method, layout, flats)
    outcomes = timed(calls, repeat, _WARM, say)
    seconds = outcomes.pop(READ).median_s
    return Found(elements, threads, source, given.about, seconds, outcomes)


def _layout(elements: int) -> Layout:
    whole, rest = divmod(elements, _ROWS * _COLUMNS)
    shapes: list[tuple[str, tuple[int, ...]]] = [(f"{i}", (_ROWS, _COLUMNS)) for i in range(whole)]
    return Layout.of([*shapes, *([("rest", (rest,))] if rest else [])])


def _ours(
    name: str, method: Method, layout: Layout, flats: list[Tensor]
) -> dict[str, Callable[[int], int]]:
    """Writing and reading, as nodes do it: in memory that is used again, the last vector that was written."""
    kind = codings.get(method.coding)
    made: Values = kind(layout, **method.options)
    section, rng = np.empty(made.section_bytes(layout.size), np.uint8), Random(1)
    room = np.empty(layout.size, np.float32)

    def write(turn: int) -> int:
        made.write(flats[turn % 2].numpy(), section, rng)
        return section.size

    write(0)
    return {
        name: write,
        name + DECODE: lambda _: kind.read(section, layout.size, lambda _: room).size,
    }


def _torchs(
    name: str, method: Method, layout: Layout, flats: list[Tensor]
) -> dict[str, Callable[[int], int]]:
    """The same with nothing but PyTorch."""
    shapes = {"shapes": [part.rows for part in layout]} if method.shapes else {}
    others = {key: value for key, value in method.options.items() if key != "per"}
    encode = partial(plain.ENCODE[method.coding], **others, **shapes)
    decode, random = plain.DECODE[method.coding], torch.Generator().manual_seed(1)
    draw = partial(torch.rand, generator=random)
    held = [encode(flats[0], draw)]

    def write(turn: int) -> int:
        held[0] = encode(flats[turn % 2], draw)
        return held[0].numel()

    return {name: write, name + DECODE: lambda _: decode(held[0], layout.size).numel()}
