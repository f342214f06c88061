"""LLVM vector instructions for numba: loops over whole rows of ``LANES`` elements, which no plain
loop turns into.

Accumulators are ``LANES`` numbers that LLVM keeps in the processor's registers, however wide these
are. Element i goes to accumulator i mod ``LANES``, in order, without any reordering: results have
the same bits on every processor. Nothing is checked here; arrays are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from testbed.compress.kernels.compilation import (
    AHEAD,
    BLOCK,
    LANES,
    MAGNITUDE,
    intrinsic,
    load_numba,
)

_numba = load_numba()
typeof, cgutils, types = _numba.typeof, _numba.core.cgutils, _numba.core.types

WORD, LONG, FLOAT, DOUBLE = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
_SIGNIFICAND_BITS = 52
_SIGNIFICAND = (1 << _SIGNIFICAND_BITS) - 1
_ONE = 1023 << _SIGNIFICAND_BITS
"""The bits of 1.0 in float64: an exponent of 0."""
_LINE = 16
"""Elements that memory hands out at once."""
_READ, _NEAREST, _DATA = WORD(0), WORD(3), WORD(1)


def lanes(of: Any, count: int = LANES) -> Any:
    """A vector's type."""
    return ir.VectorType(of, count)


def arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Those arguments that are arrays, opened."""
    return [
        context.make_array(kind)(context, builder, argument)
        for kind, argument in zip(signature.args, arguments, strict=True)
        if isinstance(kind, types.Array)
    ]


@contextmanager
def rows(builder: Any, array: Any) -> Iterator[Any]:
    """A loop over an array's whole rows: where each begins."""
    count = builder.udiv(array.nitems, LONG(LANES))
    with cgutils.for_range(builder, count, intp=LONG) as loop:
        yield builder.mul(loop.index, LONG(LANES))


def row_pointer(builder: Any, array: Any, start: Any, of: Any, count: int = LANES) -> Any:
    """Where ``count`` elements from ``start`` lie."""
    return builder.bitcast(builder.gep(array.data, [start]), lanes(of, count).as_pointer())


def load(builder: Any, array: Any, start: Any, of: Any, count: int = LANES) -> Any:
    """``count`` elements from ``start``, taken as numbers of type ``of``."""
    return builder.load(row_pointer(builder, array, start, of, count), align=4)


def fetch(builder: Any, array: Any, start: Any, count: int = LANES) -> None:
    """Have the memory ``AHEAD`` of ``start`` brought near: processors do not look beyond a page by
    themselves.

    Half the time of a pass that does little else but read. What is beyond the end is not touched.
    """
    pointer, returns = ir.IntType(8).as_pointer(), ir.VoidType()
    kind = ir.FunctionType(returns, [pointer, WORD, WORD, WORD])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    for offset in range(0, count, _LINE):
        address = builder.gep(array.data, [builder.add(start, LONG(AHEAD + offset))])
        builder.call(prefetch, [builder.bitcast(address, pointer), _READ, _NEAREST, _DATA])


@contextmanager
def variable_of(builder: Any, array: Any, of: Any) -> Iterator[Any]:
    """An array of one row as a variable, which goes back to memory in the end."""
    home = row_pointer(builder, array, LONG(0), of)
    variable = cgutils.alloca_once_value(builder, builder.load(home, align=4))
    yield variable
    builder.store(builder.load(variable), home, align=4)


def magnitudes(builder: Any, words: Any, count: int = LANES) -> Any:
    """Floats without their signs, from their bits."""
    sizes = builder.and_(words, lanes(WORD, count)([MAGNITUDE] * count))
    return builder.bitcast(sizes, lanes(FLOAT, count))


def everywhere(builder: Any, number: Any, count: int = LANES) -> Any:
    """A float in every lane."""
    nothing = lanes(FLOAT, count)(ir.Undefined)
    first = builder.insert_element(nothing, number, WORD(0))
    return builder.shuffle_vector(first, nothing, lanes(WORD, count)([0] * count))


def at_or_above(builder: Any, sizes: Any, least: Any) -> Any:
    """A bit for each lane; NaN is not."""
    return builder.fcmp_ordered(">=", sizes, least)


def add_to(builder: Any, variable: Any, more: Any) -> None:
    """Floats or integers, one or a row of them."""
    held_now = builder.load(variable)
    integers = isinstance(getattr(more.type, "element", more.type), ir.IntType)
    add = builder.add if integers else builder.fadd
    builder.store(add(held_now, more), variable)


def measure(builder: Any, sizes: Any, total: Any, top: Any) -> None:
    """Add to sums in float64, and take the greatest bits."""
    add_to(builder, total, builder.fpext(sizes, lanes(DOUBLE)))
    bits, greatest = builder.bitcast(sizes, lanes(WORD)), builder.load(top)
    above = builder.icmp_signed(">", bits, greatest)
    builder.store(builder.select(above, bits, greatest), top)


def count(builder: Any, variable: Any, mask: Any) -> None:
    """Add the number of lanes that are chosen."""
    chosen = builder.ctpop(builder.bitcast(mask, ir.IntType(LANES)))
    add_to(builder, variable, builder.zext(chosen, LONG))


def multiply(builder: Any, sizes: Any, products: Any, exponents: Any) -> None:
    """Multiply by the significands, in [1, 2), and add the exponents. 0 has significand 1, exponent
    0."""
    longs = lanes(LONG)
    bits = builder.bitcast(sizes, longs)
    add_to(builder, exponents, builder.lshr(bits, longs([_SIGNIFICAND_BITS] * LANES)))
    fraction = builder.and_(bits, longs([_SIGNIFICAND] * LANES))
    factor = builder.bitcast(builder.or_(fraction, longs([_ONE] * LANES)), lanes(DOUBLE))
    builder.store(builder.fmul(builder.load(products), factor), products)


@intrinsic
def take_in(typing: Any, flat: Any, sums: Any, tops: Any) -> Any:
    """Add |x| to ``sums`` (float64), and take the greatest bits of |x| to ``tops`` (int32).

    ``flat``: float32, a multiple of ``LANES`` elements; sums and tops have ``LANES``.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, s, t = arrays(context, builder, signature, arguments)
        with (
            variable_of(builder, s, DOUBLE) as total,
            variable_of(builder, t, WORD) as top,
            rows(builder, x) as start,
        ):
            fetch(builder, x, start)
            sizes = magnitudes(builder, load(builder, x, start, WORD))
            measure(builder, sizes, total, top)
        return context.get_dummy_value()

    return types.void(flat, sums, tops), generate


@intrinsic
def add(typing: Any, first: Any, second: Any, out: Any, sums: Any, tops: Any) -> Any:
    """``out`` ← ``first`` + ``second``, float32, and ``take_in`` of it. ``out`` may be one of
    them."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, p, s, t = arrays(context, builder, signature, arguments)
        with (
            variable_of(builder, s, DOUBLE) as total,
            variable_of(builder, t, WORD) as top,
            rows(builder, p) as start,
        ):
            for array in (a, b, p):
                fetch(builder, array, start)
            row = [load(builder, array, start, FLOAT) for array in (a, b)]
            both = builder.fadd(*row)
            builder.store(both, row_pointer(builder, p, start, FLOAT), align=4)
            words = builder.bitcast(both, lanes(WORD))
            measure(builder, magnitudes(builder, words), total, top)
        return context.get_dummy_value()

    return types.void(first, second, out, sums, tops), generate


@intrinsic
def add_moments(
    typing: Any, flat: Any, threshold: Any, sums: Any, squares: Any, products: Any, exponents: Any
) -> Any:
    """Add, for each |x| ≥ threshold, |x|, x² and its exponent, and multiply by its significand.

    ``flat``: float32, a multiple of ``LANES`` elements; threshold: float32; the rest float64,
    exponents int64, of ``LANES``. Returns (int64, int64): how many there are, and how many are not
    0.
    """
    del typing
    counts = typeof((0, 0))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, s, q, f, e = arrays(context, builder, signature, arguments)
        least, zero = everywhere(builder, arguments[1]), lanes(FLOAT)(None)
        chosen, nonzero = (cgutils.alloca_once_value(builder, LONG(0)) for _ in range(2))
        with (
            variable_of(builder, s, DOUBLE) as total,
            variable_of(builder, q, DOUBLE) as total_squares,
            variable_of(builder, f, DOUBLE) as product,
            variable_of(builder, e, LONG) as exponent,
            rows(builder, x) as start,
        ):
            fetch(builder, x, start)
            sizes = magnitudes(builder, load(builder, x, start, WORD))
            mask = at_or_above(builder, sizes, least)
            sizes = builder.select(mask, sizes, zero)
            count(builder, chosen, mask)
            count(builder, nonzero, builder.fcmp_ordered(">", sizes, zero))
            wide = builder.fpext(sizes, lanes(DOUBLE))
            add_to(builder, total, wide)
            add_to(builder, total_squares, builder.fmul(wide, wide))
            multiply(builder, wide, product, exponent)
        return context.make_tuple(builder, counts, [builder.load(chosen), builder.load(nonzero)])

    return counts(flat, threshold, sums, squares, products, exponents), generate


@intrinsic
def hits(typing: Any, flat: Any, start: Any, threshold: Any) -> Any:
    """uint64: bit j says whether |flat[start + j]| ≥ threshold; NaN's is 0. Reads ``BLOCK``
    elements.

    ``flat``, ``threshold``: float32. On x86-64 it is a comparison and a move of its mask for every
    few elements; LLVM does the same with what other processors have.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arrays(context, builder, signature, arguments)
        fetch(builder, x, arguments[1], BLOCK)
        words = load(builder, x, arguments[1], WORD, BLOCK)
        sizes = magnitudes(builder, words, BLOCK)
        least = everywhere(builder, arguments[2], BLOCK)
        return builder.bitcast(at_or_above(builder, sizes, least), ir.IntType(BLOCK))

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
