"""Small numbers in few bits, and back. Codes are uint8, one for each element, a block at a time.

In ``bits`` bits each: code j of a vector lies in bits j·bits to (j + 1)·bits − 1 of its bytes, from
the lowest bit of the first byte on. Eight codes are one word, which is squeezed in three steps:
neighbouring bytes, then pairs of them, then halves move together.

Levels that are mostly 0: distances, signs and magnitudes of the others in Elias codes, one
after the other, each from its highest bit on.

In base 3: five codes d₀ … d₄ below 3 are the byte d₀ + 3·d₁ + 9·d₂ + 27·d₃ + 81·d₄.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.compilation import compiled

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


@compiled
def _omega(number: int) -> tuple[np.uint64, int]:
    """Elias' omega code of a number from 1 on (below 2⁴¹): its bits from the lowest on, and how
    many: the number in binary, before it the length of that less 1, and so on; a 0 at the end."""
    word, length = np.uint64(0), 1
    while number > 1:
        bits = 0
        rest = number
        while rest:
            word = (word << np.uint64(1)) | np.uint64(rest & 1)
            rest >>= 1
            bits += 1
        length += bits
        number = bits - 1
    return word, length


def omega_bits(number: int) -> int:
    """Length of the omega code of ``number``."""
    bits = number.bit_length()
    return 1 if number == 1 else bits + omega_bits(bits - 1)


@compiled
def write_elias(body: Bytes, count: int, bits: int, top: int, stream: Bytes) -> tuple[int, int]:
    """Codes of ``Qsgd`` as a stream; how many are not 0, and bytes of the stream."""
    codes = np.empty(BLOCK, np.uint8)
    words, lengths = np.empty(256, np.uint64), np.empty(256, np.int64)
    for number in range(1, 256):
        words[number], lengths[number] = _omega(number)
    last, coded, at, filled, waiting = -1, 0, 0, 0, np.uint64(0)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        unpack(body[start * bits // 8 : (stop * bits + 7) // 8], stop - start, bits, codes)
        for i in range(stop - start):
            level = np.int64(codes[i]) - top
            if level == 0:
                continue
            gap, size = start + i - last, abs(level)
            last = start + i
            coded += 1
            word, length = (words[gap], lengths[gap]) if gap < 256 else _omega(gap)
            for part in range(2):
                waiting |= word << np.uint64(filled)
                filled += length
                while filled >= 8:
                    stream[at] = np.uint8(waiting & np.uint64(255))
                    waiting >>= np.uint64(8)
                    at += 1
                    filled -= 8
                if part == 0:
                    sign = np.uint64(1) if level < 0 else np.uint64(0)
                    word, length = words[size] << np.uint64(1) | sign, lengths[size] + 1
    if filled:
        stream[at] = np.uint8(waiting)
        at += 1
    return coded, at


@compiled
def _read_omega(stream: Bytes, at: int, most: int) -> tuple[int, int]:
    """The number at bit ``at``, and the bit behind it; 0 where there is none up to ``most``."""
    number, end = 1, 8 * stream.size
    while at < end and (stream[at >> 3] >> np.uint8(at & 7)) & 1:
        bits = number + 1
        if at + bits > end or bits > 62:
            return 0, at
        number = 0
        for bit in range(at, at + bits):
            number = 2 * number + (1 if (stream[bit >> 3] >> np.uint8(bit & 7)) & 1 else 0)
        at += bits
    return (number, at + 1) if at < end and number <= most else (0, at)


@compiled
def read_elias(stream: Bytes, coded: int, count: int, bits: int, top: int, body: Bytes) -> bool:
    """``coded`` levels of a stream as codes of ``Qsgd``; False for what is no such stream."""
    codes = np.empty(BLOCK, np.uint8)
    at, index, level, left = 0, -1, 0, coded
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        codes[:] = np.uint8(top)
        while index < stop:
            if index >= start:
                codes[index - start] = np.uint8(top + level)
            if left == 0:
                index = count
                break
            gap, at = _read_omega(stream, at, count - 1 - index)
            if gap == 0 or at >= 8 * stream.size:
                return False
            below = (stream[at >> 3] >> np.uint8(at & 7)) & 1
            level, at = _read_omega(stream, at + 1, top)
            if level == 0:
                return False
            level = -level if below else level
            index += gap
            left -= 1
        pack(codes, stop - start, bits, body[start * bits // 8 : (stop * bits + 7) // 8])
    rest = 8 * stream.size - at
    return bool(rest < 8 and (rest == 0 or stream[at >> 3] >> np.uint8(at & 7) == 0))


def _warm_elias() -> None:
    body, stream = np.zeros(2, np.uint8), np.zeros(9, np.uint8)
    write_elias(body, 3, 4, 7, stream)
    read_elias(stream, 0, 3, 4, 7, body)


WARM = (_warm, _warm_elias)
