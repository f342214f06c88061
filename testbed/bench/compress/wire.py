"""``testbed bench wire``: every index coding, its time and its size, against plain numpy and plain PyTorch.

What is timed is a whole message with float32 values: from indices and values to bytes, and back. The
selection that comes before it is timed in the same run, with what it has learnt of the same vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from random import Random
from typing import Any

import numpy as np
import torch

from testbed.bench.compress.recorded import drawn
from testbed.bench.compress.timing import UNJUDGED, Say, Timed, read_once, stated, timed
from testbed.bench.result import Check, Suite, at_most
from testbed.compress import kernels, seeded
from testbed.compress.base import Compensated, Sparse
from testbed.compress.elements import check_density, element_count
from testbed.compress.indices import IndexCoding
from testbed.compress.kernels import reference_index as plain
from testbed.compress.payload import PayloadBuffer, Scratch
from testbed.compress.selectors.laplace import Laplace
from testbed.compress.wire import decode, encode
from testbed.errors import InputError

DENSITIES = (0.001, 0.01, 0.1, 0.29)
CHOSEN = "encode"
"""The coding that ``encode`` chooses by itself, whichever that is."""
_WARM, _SEED = 2, 1
_LARGEST, _LONGEST = 1.10, 0.5
Way = tuple[Callable[[], int], Callable[[], int]]
"""Write a message, which returns its length in bytes; read it, which returns how many elements it has."""


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
        """Of the whole message, for each element sent."""
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
class Found:
    """What ``testbed bench wire`` measured."""

    elements: int
    threads: int
    references: dict[str, float]
    results: list[Coded]

    def to_json(self) -> dict[str, Any]:
        """``{"elements", "threads", "references", "results"}``; seconds, and bits per element sent."""
        return {
            "elements": self.elements,
            "threads": self.threads,
            "references": self.references,
            "results": [one.to_json() for one in self.results],
        }

    def suite(self) -> Suite:
        """As a table, with its checks: of sizes always, of times where limits are stated for them."""
        rows = [
            {
                **one.to_json(),
                "bits / bound": one.bits_per_element / one.bits_bound,
                "both / selection": self._share(one),
            }
            for one in self.results
        ]
        title = f"{self.elements:,} elements, float32 values, threads {self.threads}"
        checks = [check for one in self.results for check in self._checks(one)]
        return Suite(title, rows, checks, absent=[] if self._stated else [UNJUDGED])

    @property
    def _stated(self) -> bool:
        return stated(self.elements, self.threads)

    def _checks(self, one: Coded) -> list[Check]:
        if one.method != CHOSEN:
            return []
        size = at_most(
            f"bits / bound at {one.density:g}", one.bits_per_element / one.bits_bound, _LARGEST
        )
        if one.density != 0.01 or not self._stated:
            return [size]
        return [size, at_most("encode and decode / selection at 0.01", self._share(one), _LONGEST)]

    def _share(self, one: Coded) -> float:
        return (one.encode_s + one.decode_s) / self.references[_selection(one.density)]


def run(elements: int, densities: Sequence[float], threads: int, repeat: int, say: Say) -> Found:
    """Measure. Raises InputError for densities that leave nothing to index."""
    for density in densities:
        check_density(density)
        if element_count(elements, density) == elements:
            raise InputError(
                f"density {density:g} of {elements} elements is all of them", where="--density"
            )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        return _measured(elements, densities, threads, repeat, say)
    finally:
        torch.set_num_threads(before)


def _measured(
    elements: int, densities: Sequence[float], threads: int, repeat: int, say: Say
) -> Found:
    flat = drawn(elements, 1).flats[0]
    seen = kernels.of(flat).measure(flat)
    given = Compensated(flat, seen.sum_abs, seen.max_abs)
    calls: dict[str, Callable[[int], int]] = {"read_once": lambda _: read_once(flat.numpy())}
    sent, ways = {}, {}
    for density in densities:
        sent[density] = _selected(given, density)
        calls[_selection(density)] = _selecting(given, density)
        for method, way in _ways(sent[density]).items():
            ways[method, density] = way
            calls[_named("write", method, density)] = _ignoring_turn(way[0])
            calls[_named("read", method, density)] = _ignoring_turn(way[1])
    outcomes = timed(calls, repeat, _WARM, say)
    names = ["read_once", *(_selection(density) for density in densities)]
    return Found(
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


def _selected(given: Compensated, density: float) -> Sparse:
    """What the selection finds, in memory of its own."""
    found = Laplace().select(given, density, Random(_SEED))
    if found.indices is None:
        raise InputError(
            f"density {density:g} is too high for a vector so short", where="--density"
        )
    return Sparse(found.size, found.indices.clone(), found.values.clone())


def _selecting(given: Compensated, density: float) -> Callable[[int], int]:
    selector, rng = Laplace(), Random(_SEED)
    return lambda _: selector.select(given, density, rng).count


def _ways(sent: Sparse) -> dict[str, Way]:
    ways = {CHOSEN: _ours(sent, None)}
    for coding in IndexCoding:
        name = coding.name.lower().replace("_", "-")
        ways[name] = _ours(_drawn(sent) if coding is IndexCoding.SEED else sent, coding)
    ways["bitmap (numpy)"] = _plain(
        sent,
        lambda indices: plain.bitmap_write(indices, sent.size),
        plain.bitmap_read,
    )
    ways["elias-fano (numpy)"] = _plain(
        sent,
        lambda indices: plain.elias_fano_write(indices, sent.size),
        lambda section: plain.elias_fano_read(section, sent.size, sent.count),
    )
    ways["int32 (numpy)"] = _plain(sent, plain.int32_write, plain.int32_read)
    ways["int32 (PyTorch)"] = _torch(sent)
    return ways


def _drawn(sent: Sparse) -> Sparse:
    """As many elements, drawn from a seed."""
    indices = torch.from_numpy(seeded.indices(sent.size, sent.count, _SEED))
    return Sparse(sent.size, indices, sent.values, _SEED)


def _ours(sent: Sparse, coding: IndexCoding | None) -> Way:
    """As workers and server do it: in memory that is used again."""
    buffer, scratch = PayloadBuffer(), Scratch()

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
        found = np.frombuffer(payload, np.float32, sent.count).copy()
        read(np.frombuffer(payload, np.uint8, offset=found.nbytes))
        return found.size

    return lambda: len(message()), reading


def _torch(sent: Sparse) -> Way:
    """What one writes without a library: indices of 32 bits and values, one after the other."""
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
