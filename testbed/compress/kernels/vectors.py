"""Loops over whole vectors of elements, written in LLVM's own terms: what no plain loop turns into.

Accumulators are ``LANES`` numbers that LLVM keeps in the processor's registers, however wide these are.
Element i goes to accumulator i mod ``LANES``, in order, without any reordering: results have the same
bits on every processor. Nothing is checked here; arrays are contiguous.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types

from testbed.compress.kernels import emit
from testbed.compress.kernels.emit import DOUBLE, FLOAT, LONG, WORD
from testbed.compress.kernels.grid import BLOCK
from testbed.compress.kernels.jit import intrinsic


@intrinsic
def take_in(typing: Any, flat: Any, sums: Any, tops: Any) -> Any:
    """Add |x| to ``sums`` (float64), and take the greatest bits of |x| to ``tops`` (int32).

    ``flat``: float32, a multiple of ``LANES`` elements; sums and tops have ``LANES``.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, s, t = emit.arrays(context, builder, signature, arguments)
        with (
            emit.held(builder, s, DOUBLE) as total,
            emit.held(builder, t, WORD) as top,
            emit.rows(builder, x) as start,
        ):
            emit.fetch(builder, x, start)
            sizes = emit.magnitudes(builder, emit.load(builder, x, start, WORD))
            emit.measure(builder, sizes, total, top)
        return context.get_dummy_value()

    return types.void(flat, sums, tops), generate


@intrinsic
def add(typing: Any, first: Any, second: Any, out: Any, sums: Any, tops: Any) -> Any:
    """``out`` ← ``first`` + ``second``, float32, and ``take_in`` of it. ``out`` may be one of them."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, p, s, t = emit.arrays(context, builder, signature, arguments)
        with (
            emit.held(builder, s, DOUBLE) as total,
            emit.held(builder, t, WORD) as top,
            emit.rows(builder, p) as start,
        ):
            for one in (a, b, p):
                emit.fetch(builder, one, start)
            row = [emit.load(builder, one, start, FLOAT) for one in (a, b)]
            both = builder.fadd(*row)
            builder.store(both, emit.place(builder, p, start, FLOAT), align=4)
            words = builder.bitcast(both, emit.lanes(WORD))
            emit.measure(builder, emit.magnitudes(builder, words), total, top)
        return context.get_dummy_value()

    return types.void(first, second, out, sums, tops), generate


@intrinsic
def add_moments(
    typing: Any, flat: Any, threshold: Any, sums: Any, squares: Any, products: Any, exponents: Any
) -> Any:
    """Of each |x| ≥ threshold: add |x|, x² and its exponent, multiply by its significand.

    ``flat``: float32, a multiple of ``LANES`` elements; threshold: float32; the rest float64, exponents
    int64, of ``LANES``. Returns (int64, int64): how many there are, and how many are not 0.
    """
    del typing
    counts = typeof((0, 0))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, s, q, f, e = emit.arrays(context, builder, signature, arguments)
        least, zero = emit.everywhere(builder, arguments[1]), emit.lanes(FLOAT)(None)
        chosen, nonzero = (cgutils.alloca_once_value(builder, LONG(0)) for _ in range(2))
        with (
            emit.held(builder, s, DOUBLE) as total,
            emit.held(builder, q, DOUBLE) as total_squares,
            emit.held(builder, f, DOUBLE) as product,
            emit.held(builder, e, LONG) as exponent,
            emit.rows(builder, x) as start,
        ):
            emit.fetch(builder, x, start)
            sizes = emit.magnitudes(builder, emit.load(builder, x, start, WORD))
            mask = emit.at_or_above(builder, sizes, least)
            sizes = builder.select(mask, sizes, zero)
            emit.count(builder, chosen, mask)
            emit.count(builder, nonzero, builder.fcmp_ordered(">", sizes, zero))
            wide = builder.fpext(sizes, emit.lanes(DOUBLE))
            emit.add_to(builder, total, wide)
            emit.add_to(builder, total_squares, builder.fmul(wide, wide))
            emit.multiply(builder, wide, product, exponent)
        return context.make_tuple(builder, counts, [builder.load(chosen), builder.load(nonzero)])

    return counts(flat, threshold, sums, squares, products, exponents), generate


@intrinsic
def hits(typing: Any, flat: Any, start: Any, threshold: Any) -> Any:
    """uint64: bit j says whether |flat[start + j]| ≥ threshold; NaN's is 0. Reads ``BLOCK`` elements.

    ``flat``, ``threshold``: float32. On x86-64 it is a comparison and a move of its mask for every few
    elements; LLVM does the same with what other processors have.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = emit.arrays(context, builder, signature, arguments)
        emit.fetch(builder, x, arguments[1], BLOCK)
        words = emit.load(builder, x, arguments[1], WORD, BLOCK)
        sizes = emit.magnitudes(builder, words, BLOCK)
        least = emit.everywhere(builder, arguments[2], BLOCK)
        return builder.bitcast(emit.at_or_above(builder, sizes, least), ir.IntType(BLOCK))

    return types.uint64(flat, start, threshold), generate


@intrinsic
def lowest(typing: Any, mask: Any) -> Any:
    """int64: the position of the lowest bit of ``mask`` (uint64) that is 1; there must be one."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(mask), generate


@intrinsic
def ones(typing: Any, mask: Any) -> Any:
    """int64: how many bits of ``mask`` (uint64) are 1."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.ctpop(arguments[0])

    return types.int64(mask), generate
