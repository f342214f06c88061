"""The building blocks of ``vectors``: each writes some of LLVM's instructions where ``builder`` stands.

A "row" is ``LANES`` consecutive elements, held in one LLVM vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from testbed.compress.kernels.grid import AHEAD, LANES, MAGNITUDE

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


def place(builder: Any, array: Any, start: Any, of: Any, count: int = LANES) -> Any:
    """Where ``count`` elements from ``start`` lie."""
    return builder.bitcast(builder.gep(array.data, [start]), lanes(of, count).as_pointer())


def load(builder: Any, array: Any, start: Any, of: Any, count: int = LANES) -> Any:
    """``count`` elements from ``start``, taken as numbers of type ``of``."""
    return builder.load(place(builder, array, start, of, count), align=4)


def fetch(builder: Any, array: Any, start: Any, count: int = LANES) -> None:
    """Have the memory ``AHEAD`` of ``start`` brought near: processors do not look beyond a page by themselves.

    Half the time of a pass that does little else but read. What is beyond the end is not touched.
    """
    pointer, returns = ir.IntType(8).as_pointer(), ir.VoidType()
    kind = ir.FunctionType(returns, [pointer, WORD, WORD, WORD])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    for place in range(0, count, _LINE):
        there = builder.gep(array.data, [builder.add(start, LONG(AHEAD + place))])
        builder.call(prefetch, [builder.bitcast(there, pointer), _READ, _NEAREST, _DATA])


@contextmanager
def held(builder: Any, array: Any, of: Any) -> Iterator[Any]:
    """An array of one row as a variable, which goes back to memory in the end."""
    home = place(builder, array, LONG(0), of)
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
    one = builder.insert_element(nothing, number, WORD(0))
    return builder.shuffle_vector(one, nothing, lanes(WORD, count)([0] * count))


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
    found = builder.ctpop(builder.bitcast(mask, ir.IntType(LANES)))
    add_to(builder, variable, builder.zext(found, LONG))


def multiply(builder: Any, sizes: Any, products: Any, exponents: Any) -> None:
    """Multiply by the significands, in [1, 2), and add the exponents. 0 has significand 1, exponent 0."""
    longs = lanes(LONG)
    bits = builder.bitcast(sizes, longs)
    add_to(builder, exponents, builder.lshr(bits, longs([_SIGNIFICAND_BITS] * LANES)))
    fraction = builder.and_(bits, longs([_SIGNIFICAND] * LANES))
    factor = builder.bitcast(builder.or_(fraction, longs([_ONE] * LANES)), lanes(DOUBLE))
    builder.store(builder.fmul(builder.load(products), factor), products)
