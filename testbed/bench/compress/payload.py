"""``testbed bench wire`` and ``testbed bench quantize``: time and size of every index coding and
of every value coding, against plain numpy and PyTorch.

What is timed is a whole message with float32 values: from indices and values to bytes, and back.
The selection before it is timed in the same run, with what it has learnt of the same vector.

Writing a section also gives what its receiver will read, which error feedback needs; the version in
PyTorch (``values.reference``) is timed without that, and with PyTorch's own random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log2
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.bench import reference
from testbed.bench.compress.inputs import (
    UNJUDGED,
    Timed,
    Vectors,
    check_sparse,
    drawn,
    read_once,
    stated,
    threads_of_torch,
    timed,
    vectors_for,
)
from testbed.bench.results import ResultCheck, Say, Suite, at_least, at_most
from testbed.compress import indices as indices_module
from testbed.compress import kernels
from testbed.compress.base import (
    AccumulatedGradient,
    BufferPool,
    PayloadBuffer,
    Sparse,
    Values,
    codings,
)
from testbed.compress.indices import IndexCoding
from testbed.compress.layout import Layout
from testbed.compress.payload import decode, encode
from testbed.compress.selectors.laplace import Laplace
from testbed.errors import InputError

DENSITIES = (0.001, 0.01, 0.1, 0.29)
CHOSEN = "encode"
"""The coding that ``encode`` chooses by itself, whichever that is."""
_WARM, _SEED = 2, 1
_LARGEST, _LONGEST = 1.10, 0.5
Way = tuple[Callable[[], int], Callable[[], int]]
"""Write a message, which returns its length in bytes; read it, which returns its element count."""


@dataclass(frozen=True, slots=True)
class Coded:
    """One way to write the same elements."""

    method: str
    density: float
    count: int
    size_bytes: int
    encode_s: float
    decode_s: float
    bits_bound: float

    @property
    def bits_per_element(self) -> float:
        """Return the bits of the whole message for each element sent."""
        return 8 * self.size_bytes / self.count

    def to_json(self) -> dict[str, Any]:
        """One of ``results``."""
        return {
            "method": self.method,
            "density": self.density,
            "median_s": self.encode_s,
            "decode_s": self.decode_s,
            "bits_per_element": self.bits_per_element,
            "bits_bound": self.bits_bound,
        }


@dataclass(frozen=True, slots=True)
class PayloadResult:
    """Results of ``testbed bench wire``."""

    elements: int
    threads: int
    references: dict[str, float]
    results: list[Coded]

    def to_json(self) -> dict[str, Any]:
        """``{"elements", "threads", "references", "results"}``; seconds, bits per element sent."""
        return {
            "elements": self.elements,
            "threads": self.threads,
            "references": self.references,
            "results": [coded.to_json() for coded in self.results],
        }

    def suite(self) -> Suite:
        """As a table, with its checks: of sizes always, of times where limits are stated."""
        rows = [
            {
                **coded.to_json(),
                "bits / bound": coded.bits_per_element / coded.bits_bound,
                "both / selection": self._share(coded),
            }
            for coded in self.results
        ]
        title = f"{self.elements:,} elements, float32 values, threads {self.threads}"
        checks = [check for coded in self.results for check in self._checks(coded)]
        return Suite(title, rows, checks, absent=[] if self._stated else [UNJUDGED])

    @property
    def _stated(self) -> bool:
        return stated(self.elements, self.threads)

    def _checks(self, coded: Coded) -> list[ResultCheck]:
        if coded.method != CHOSEN:
            return []
        size = at_most(
            f"bits / bound at {coded.density:g}",
            coded.bits_per_element / coded.bits_bound,
            _LARGEST,
        )
        if coded.density != 0.01 or not self._stated:
            return [size]
        return [
            size,
            at_most("encode and decode / selection at 0.01", self._share(coded), _LONGEST),
        ]

    def _share(self, coded: Coded) -> float:
        return (coded.encode_s + coded.decode_s) / self.references[_selection(coded.density)]


def run(
    elements: int, densities: Sequence[float], threads: int, repeat: int, say: Say
) -> PayloadResult:
    """Measure. Raises InputError for densities that leave nothing to index."""
    for density in densities:
        check_sparse(elements, density)
    with threads_of_torch(threads):
        return _measured(elements, densities, threads, repeat, say)


def _measured(
    elements: int, densities: Sequence[float], threads: int, repeat: int, say: Say
) -> PayloadResult:
    flat = drawn(elements, 1).flats[0]
    statistics = kernels.of(flat).measure(flat)
    given = AccumulatedGradient(flat, statistics.sum_abs, statistics.max_abs)
    calls: dict[str, Callable[[int], int]] = {"read_once": lambda _: read_once(flat.numpy())}
    sent, ways = {}, {}
    for density in densities:
        sent[density] = _selected(given, density)
        calls[_selection(density)] = _selecting(given, density)
        for method, codec in _ways(sent[density]).items():
            ways[method, density] = codec
            calls[_named("write", method, density)] = _ignoring_turn(codec[0])
            calls[_named("read", method, density)] = _ignoring_turn(codec[1])
    outcomes = timed(calls, repeat, _WARM, say)
    names = ["read_once", *(_selection(density) for density in densities)]
    return PayloadResult(
        elements,
        threads,
        {name: outcomes[name].median_s for name in names},
        [_coded(method, density, sent[density], outcomes) for method, density in ways],
    )


def _coded(method: str, density: float, sent: Sparse, outcomes: Mapping[str, Timed[int]]) -> Coded:
    written = outcomes[_named("write", method, density)]
    read = outcomes[_named("read", method, density)]
    return Coded(
        method, density, sent.count, written.results[0], written.median_s, read.median_s,
        _bound(sent.size, sent.count) / sent.count + 32,
    )  # fmt: skip


def _bound(size: int, count: int) -> float:
    """N·H(k): bits that say which ``count`` of ``size`` independent elements are sent."""
    chosen = count / size
    return -size * (chosen * log2(chosen) + (1 - chosen) * log2(1 - chosen))


def _selected(given: AccumulatedGradient, density: float) -> Sparse:
    """Return what the selection finds, in memory of its own."""
    sparse = Laplace().select(given, density, Random(_SEED))
    if sparse.indices is None:
        raise InputError(
            f"density {density:g} is too high for a vector so short", where="--density"
        )
    return Sparse(sparse.size, sparse.indices.clone(), sparse.values.clone())


def _selecting(given: AccumulatedGradient, density: float) -> Callable[[int], int]:
    selector, rng = Laplace(), Random(_SEED)
    return lambda _: selector.select(given, density, rng).count


def _ways(sent: Sparse) -> dict[str, Way]:
    ways = {CHOSEN: _ours(sent, None)}
    for coding in IndexCoding:
        name = coding.name.lower().replace("_", "-")
        ways[name] = _ours(_drawn(sent) if coding is IndexCoding.SEED else sent, coding)
    ways["bitmap (numpy)"] = _plain(
        sent,
        lambda indices: reference.bitmap_write(indices, sent.size),
        reference.bitmap_read,
    )
    ways["elias-fano (numpy)"] = _plain(
        sent,
        lambda indices: reference.elias_fano_write(indices, sent.size),
        lambda section: reference.elias_fano_read(section, sent.size, sent.count),
    )
    ways["int32 (numpy)"] = _plain(sent, reference.int32_write, reference.int32_read)
    ways["int32 (PyTorch)"] = _torch(sent)
    return ways


def _drawn(sent: Sparse) -> Sparse:
    """As many elements, drawn from a seed."""
    indices = torch.from_numpy(indices_module.indices(sent.size, sent.count, _SEED))
    return Sparse(sent.size, indices, sent.values, _SEED)


def _ours(sent: Sparse, coding: IndexCoding | None) -> Way:
    """As workers and server do it: in memory that is used again."""
    buffer, scratch = PayloadBuffer(), BufferPool()

    def write() -> int:
        return len(encode(sent, buffer=buffer, coding=coding).payload)

    payload = buffer.take(write())
    return write, lambda: decode(payload, sent.size, scratch).count


def _plain(
    sent: Sparse,
    write: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    read: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
) -> Way:
    """Values, then indices, with numpy's own functions; without a check."""
    assert sent.indices is not None
    indices, values = sent.indices.numpy(), sent.values.numpy()

    def message() -> bytes:
        return values.tobytes() + write(indices).tobytes()

    payload = message()

    def reading() -> int:
        numbers = np.frombuffer(payload, np.float32, sent.count).copy()
        read(np.frombuffer(payload, np.uint8, offset=numbers.nbytes))
        return numbers.size

    return lambda: len(message()), reading


def _torch(sent: Sparse) -> Way:
    """Return the way without a library: indices of 32 bits and values, one after the other."""
    assert sent.indices is not None
    indices, values = sent.indices, sent.values

    def message() -> bytes:
        return indices.to(torch.int32).numpy().tobytes() + values.numpy().tobytes()

    payload = bytearray(message())

    def reading() -> int:
        torch.frombuffer(payload, dtype=torch.int32, count=sent.count).to(torch.int64)
        return torch.frombuffer(payload, dtype=torch.float32, offset=4 * sent.count).clone().numel()

    return lambda: len(message()), reading


def _ignoring_turn(call: Callable[[], int]) -> Callable[[int], int]:
    return lambda _: call()


def _selection(density: float) -> str:
    return f"laplace {density:g}"


def _named(deed: str, method: str, density: float) -> str:
    return f"{deed} {method} {density:g}"


READ, PLAIN, DECODE = "read_once", " (PyTorch)", " decode"
_QUANTIZE_WARM_UP_TURNS = 1
_DENSITY = 0.01
"""At which recorded gradients were sparsified."""
_ROWS, _COLUMNS = 512, 4608
"""The matrices that a vector is made of, for codings that look at shapes: ResNet-18's greatest; the
rest of the vector is a vector."""
_RANK = 2
_MOST_BITS, _LEAST_GAIN = 1.01, 1.0


@dataclass(frozen=True, slots=True)
class Method:
    """A coding with its options; ``bits``: what its formula asks for, for a vector of that
    length."""

    coding: str
    bits: Callable[[int], float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shapes: bool = False
    """True if its reference is told the shapes."""


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
"""Our methods that are measured; others registered are measured with their own defaults."""


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """Results of ``testbed bench quantize``. ``results``: seconds, and bytes of the section."""

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
        """As a table, with its checks: of sizes always, of times where limits are stated."""
        rows = [{"method": READ, "median_s": self.read_once_s}]
        rows += [{**self._result(name), **self._ratios(name)} for name in self._names()]
        title = f"{self.elements:,} elements, threads {self.threads}: {self.about}"
        judged = stated(self.elements, self.threads)
        return Suite(title, rows, self._checks(judged), absent=[] if judged else [UNJUDGED])

    def _names(self) -> list[str]:
        return [name for name in self.results if not name.endswith(DECODE)]

    def _result(self, name: str) -> dict[str, Any]:
        method = METHODS.get(name.removesuffix(PLAIN))
        bound = method.bits(self.elements) if method and method.bits else None
        return {
            "method": name,
            "median_s": self.results[name].median_s,
            "decode_s": self.results[name + DECODE].median_s,
            "bits_per_element": 8 * self.results[name].results[-1] / self.elements,
            "bits_bound": bound,
        }

    def _ratios(self, name: str) -> dict[str, float]:
        ratios = {f"/ {READ}": self.results[name].median_s / self.read_once_s}
        if name + PLAIN in self.results:
            ratios["PyTorch /"] = self._gain(name)
            ratios["PyTorch decode /"] = self._gain(name, DECODE)
        return ratios

    def _gain(self, name: str, suffix: str = "") -> float:
        return self.results[name + PLAIN + suffix].median_s / self.results[name + suffix].median_s

    def _checks(self, times: bool) -> list[ResultCheck]:
        checks = []
        for name in self._names():
            bound, measured = (
                self._result(name)[key] for key in ("bits_bound", "bits_per_element")
            )
            if bound and not name.endswith(PLAIN):
                checks.append(at_most(f"{name}: bits / formula", measured / bound, _MOST_BITS))
            if times and name + PLAIN in self.results:
                checks.append(at_least(f"{name}: PyTorch / ours", self._gain(name), _LEAST_GAIN))
        return checks


def measure_value_codings(
    elements: int, threads: int, source: str, repeat: int, say: Say
) -> QuantizeResult:
    """Measure. Raises InputError for what cannot be measured."""
    given = vectors_for(source, elements, 2, _DENSITY, threads, say)
    with threads_of_torch(threads):
        return _measured_value_codings(given, threads, source, repeat, say)


def _measured_value_codings(
    given: Vectors, threads: int, source: str, repeat: int, say: Say
) -> QuantizeResult:
    flats = given.flats
    elements = flats[0].numel()
    layout = _layout(elements)
    calls: dict[str, Callable[[int], int]] = {READ: lambda turn: read_once(flats[turn % 2].numpy())}
    for name in (*METHODS, *(name for name in codings if name not in METHODS)):
        method = METHODS.get(name, Method(name))
        calls |= _own_codec_calls(name, method, layout, flats)
        if method.coding in reference.ENCODE:
            calls |= _torchs(name + PLAIN, method, layout, flats)
    outcomes = timed(calls, repeat, _QUANTIZE_WARM_UP_TURNS, say)
    seconds = outcomes.pop(READ).median_s
    return QuantizeResult(elements, threads, source, given.about, seconds, outcomes)


def _layout(elements: int) -> Layout:
    whole, rest = divmod(elements, _ROWS * _COLUMNS)
    shapes: list[tuple[str, tuple[int, ...]]] = [(f"{i}", (_ROWS, _COLUMNS)) for i in range(whole)]
    return Layout.of([*shapes, *([("rest", (rest,))] if rest else [])])


def _own_codec_calls(
    name: str, method: Method, layout: Layout, flats: list[Tensor]
) -> dict[str, Callable[[int], int]]:
    """Writing and reading, as nodes do it: in memory that is used again, the last vector that was
    written."""
    kind = codings.get(method.coding)
    codec: Values[Any] = kind(layout, **method.options)
    section, rng = np.empty(codec.section_bytes(layout.size), np.uint8), Random(1)
    room = np.empty(layout.size, np.float32)

    def write(turn: int) -> int:
        codec.write(flats[turn % 2].numpy(), section, rng)
        return codec.written_bytes(section)

    write(0)
    return {
        name: write,
        name + DECODE: lambda _: (
            kind.read(section[: codec.written_bytes(section)], layout.size, lambda _: room).size
        ),
    }


def _torchs(
    name: str, method: Method, layout: Layout, flats: list[Tensor]
) -> dict[str, Callable[[int], int]]:
    """The same with nothing but PyTorch."""
    shapes = {"shapes": [part.rows for part in layout]} if method.shapes else {}
    others = {key: value for key, value in method.options.items() if key != "per"}
    encode = partial(reference.ENCODE[method.coding], **others, **shapes)
    decode, random = reference.DECODE[method.coding], torch.Generator().manual_seed(1)
    draw = partial(torch.rand, generator=random)
    last = [encode(flats[0], draw)]

    def write(turn: int) -> int:
        last[0] = encode(flats[turn % 2], draw)
        return last[0].numel()

    return {name: write, name + DECODE: lambda _: decode(last[0], layout.size).numel()}
