"""Small numbers in few bits, and back. Codes are uint8, one for each element, a block at a time.

In ``bits`` bits each: code j of a vector lies in bits j·bits to (j + 1)·bits − 1 of its bytes, from
the lowest bit of the first byte on. Eight codes are one word, which is squeezed in three steps:
neighbouring bytes, then pairs of them, then halves move together.

In base 3: five codes d₀ … d₄ below 3 are the byte d₀ + 3·d₁ + 9·d₂ + 27·d₃ + 81·d₄.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.jit import compiled

Bytes = NDArray[np.uint8]
Codes = NDArray[np.uint8]
Words = NDArray[np.uint64]

BLOCK = 2048
"""Codes that are at hand at once: few enough for the nearest cache, with all that belongs to
them."""
TRITS = 5
"""Digits of base 3 in a byte."""
BLOCK_3 = BLOCK // TRITS * TRITS

_LOWER_8 = np.uint64(0x00FF_00FF_00FF_00FF)
_LOWER_16 = np.uint64(0x0000_FFFF_0000_FFFF)
_LOWER_32 = np.uint64(0x0000_0000_FFFF_FFFF)
_EACH_16 = np.uint64(0x0001_0001_0001_0001)
_EACH_32 = np.uint64(0x0000_0001_0000_0001)
_ONE = np.uint64(1)


@compiled
def _squeeze(words: Words, bits: int) -> None:
    """Eight codes of ``bits`` bits in the lowest bits of a word, in place of one in each byte."""
    gap_8, gap_16, gap_32 = np.uint64(8 - bits), np.uint64(16 - 2 * bits), np.uint64(32 - 4 * bits)
    for i in range(words.size):
        word = words[i]
        word = (word & _LOWER_8) | ((word & ~_LOWER_8) >> gap_8)
        word = (word & _LOWER_16) | ((word & ~_LOWER_16) >> gap_16)
        words[i] = (word & _LOWER_32) | ((word & ~_LOWER_32) >> gap_32)


@compiled
def _spread(words: Words, bits: int) -> None:
    """Undo ``_squeeze``."""
    gap_8, gap_16, gap_32 = np.uint64(8 - bits), np.uint64(16 - 2 * bits), np.uint64(32 - 4 * bits)
    in_8 = ((_ONE << np.uint64(bits)) - _ONE) * _EACH_16
    in_16 = ((_ONE << np.uint64(2 * bits)) - _ONE) * _EACH_32
    in_32 = (_ONE << np.uint64(4 * bits)) - _ONE
    for i in range(words.size):
        word = words[i]
        word = (word & in_32) | ((word << gap_32) & ~_LOWER_32)
        word = (word & in_16) | ((word << gap_16) & ~_LOWER_16)
        words[i] = (word & in_8) | ((word << gap_8) & ~_LOWER_8)


@compiled
def pack(codes: Codes, count: int, bits: int, out: Bytes) -> None:
    """The first ``count`` of ``codes`` (at most ``BLOCK``, each below 2^``bits``) into all of
    ``out``.

    ``out``: ⌈count·bits/8⌉ bytes; the bits that are left over are 0. ``codes`` is void afterwards.
    """
    words = codes.view(np.uint64)[: (count + 7) // 8]
    codes[count : words.size * 8] = 0
    if bits == 8:
        out[:] = codes[:count]
        return
    _squeeze(words, bits)
    whole = out.size // bits
    if bits == 1:
        for i in range(whole):
            out[i] = np.uint8(words[i])
    elif bits == 4:
        for i in range(whole):
            out[4 * i] = np.uint8(words[i])
            out[4 * i + 1] = np.uint8(words[i] >> np.uint64(8))
            out[4 * i + 2] = np.uint8(words[i] >> np.uint64(16))
            out[4 * i + 3] = np.uint8(words[i] >> np.uint64(24))
    else:
        for i in range(whole):
            for byte in range(bits):
                out[bits * i + byte] = np.uint8(words[i] >> np.uint64(8 * byte))
    for byte in range(out.size - whole * bits):
        out[whole * bits + byte] = np.uint8(words[whole] >> np.uint64(8 * byte))


@compiled
def unpack(body: Bytes, count: int, bits: int, codes: Codes) -> None:
    """Set the first ``count`` of ``codes`` (at most ``BLOCK``) to what ``pack`` read."""
    words = codes.view(np.uint64)[: (count + 7) // 8]
    if bits == 8:
        codes[:count] = body
        return
    whole = body.size // bits
    if bits == 1:
        for i in range(whole):
            words[i] = np.uint64(body[i])
    elif bits == 4:
        for i in range(whole):
            low = np.uint64(body[4 * i]) | np.uint64(body[4 * i + 1]) << np.uint64(8)
            high = np.uint64(body[4 * i + 2]) | np.uint64(body[4 * i + 3]) << np.uint64(8)
            words[i] = low | high << np.uint64(16)
    else:
        for i in range(whole):
            word = np.uint64(0)
            for byte in range(bits):
                word |= np.uint64(body[bits * i + byte]) << np.uint64(8 * byte)
            words[i] = word
    if whole < words.size:
        word = np.uint64(0)
        for byte in range(body.size - whole * bits):
            word |= np.uint64(body[whole * bits + byte]) << np.uint64(8 * byte)
        words[whole] = word
    _spread(words, bits)


@compiled
def pack_3(codes: Codes, count: int, out: Bytes) -> None:
    """The first ``count`` of ``codes`` (at most ``BLOCK_3``, each below 3) into ⌈count/5⌉ bytes.

    The digits that are left over are 0.
    """
    codes[count : out.size * TRITS] = 0
    for i in range(out.size):
        at = i * TRITS
        high = codes[at + 2] + 3 * (codes[at + 3] + 3 * codes[at + 4])
        out[i] = np.uint8(codes[at] + 3 * (codes[at + 1] + 3 * high))


@compiled
def unpack_3(body: Bytes, codes: Codes) -> bool:
    """Set the first 5 of ``codes`` for each byte; whether ``pack_3`` makes all of these bytes."""
    greatest = np.uint8(0)
    for i in range(body.size):
        greatest = max(greatest, body[i])
        rest = np.int32(body[i])
        for digit in range(TRITS):
            codes[i * TRITS + digit] = np.uint8(rest % 3)
            rest //= 3
    return bool(greatest < 3**TRITS)


def _warm() -> None:
    codes, body = np.zeros(BLOCK, np.uint8), np.zeros(1, np.uint8)
    pack(codes, 3, 1, body)
    unpack(body, 3, 1, codes)
    pack_3(codes, 3, body)
    unpack_3(body, codes)


WARM = (_warm,)
