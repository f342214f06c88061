"""Parameters of traffic control for a link state: handles and names, rates in kernel units, bursts,
offload bundles, netem's tables of delays and its shares with a correlation.

A packet's delay is ``delay + jitter * x``, where ``x`` is an entry of the table, in 1/8192: so the
jitter is half the width of a uniform spread and the standard deviation of a normal one. The other
two are those that the ``tc`` program ships: a Pareto distribution of shape 3, shifted by its mean
and stretched by 4/3 (its standard deviation is 0.82 of the jitter, since entries end at 4), and a
quarter of the normal one plus three quarters of that.

Where a share has a correlation, netem draws for every packet ``x = (1 - c) * v + c * x'`` with a
fresh uniform ``v`` and the last ``x'``, and acts where ``x`` is below the share that it was told.
But such an ``x`` keeps to the middle: told 10 % with a correlation of 25 % it would act on 1.7 %.
So it is told the value below which ``x`` lies as often as was asked. A correlation of delays
changes nothing: netem takes an entry of its table by the lowest bits of ``x``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import ceil
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.scenario.link_state import FRAME_BYTES, HIGHEST_CORRELATION, Distribution, Impairments

if TYPE_CHECKING:
    import numpy as np

    from testbed.scenario.timeline import Timeline

    Values = np.ndarray[Any, np.dtype[np.float64]]


_BURST_S, _FAST_BURST_S = 0.25e-3, 0.5e-3
_FAST_BITS = 2_000_000_000
"""A class may send this much time's worth at once; the second at rates from ``_FAST_BITS`` on. It
makes up for timers that are late by less, and it lets every message after a pause arrive that much
too early: with 0.5 ms a message of 10 ms used up 1.6 of the certificate's tolerance for its
completion, with 0.25 ms 0.9 of it. Timers of a host that computes beside are late by some 0.2 to
1 ms: with 0.25 ms up to 1 % of a rate of 5 Gbit/s is lost."""

QUANTUM_BYTES = 60_000
"""Explicit: the kernel's own choice warns above 16 Mbit/s. No effect with one class."""

LARGEST_CHARGE_BYTES = 65_535
"""The largest least-packet-size that a class can be given."""

MAX_SEGMENTS = LARGEST_CHARGE_BYTES // FRAME_BYTES
"""43: as many as fit a charge, so that an outage costs any bundle the same."""

_BUNDLE_SHARE = 0.01
_PREFERRED_BUNDLE_S = 0.25e-3
LONGEST_BUNDLE_S = 1e-3
"""The most where the machine cannot move shorter ones. Training at 40 Mbit/s, with messages of
50 ms, used up 0.8 of the certificate's tolerance for their completion (p99) with bundles of 0.5 and
0.9 ms, 1.1 to 1.3 of it with 1.2 ms, 1.4 of it with 2.4 and 4.8 ms."""

FLOOR_BITS = 500_000_000
"""Up to this rate, any machine that runs the rest carries a link: nothing is measured."""

TICK_NS = 64
"""In what the kernel counts bursts and, where it is old, delays."""

MOST_TICKS = 0xFFFFFFFF
"""The longest burst of a class, 275 s: below 40 bit/s a frame takes longer."""

ROOT, CLASS_MINOR = 0x4E57, 0x10
"""Our handles: a root of this number is ours, any other is not."""

LEAVES = (0x4E58, 0x4E59)
"""Two handles for the leaf, so that a queue can be swapped for an empty one."""

LINE_HANDLE = 0x4E5A << 16
"""Our handle of a delay line."""
ORDER_BYTES_S = 10**15
"""A rate at which no packet takes any time. A netem with a rate sends packets in the order in which
they came; without one it sorts them by the time at which each is due."""

FEWEST_PACKETS, MOST_PACKETS, SMALLEST_FRAME = 1000, 1 << 31, 64

ALIAS = "narrows"
"""Written on intermediate devices of ours, so that nobody else's is taken for one."""


class LinkPace(NamedTuple):
    """The setting of a class. ``mpu_bytes``: every packet is charged at least so many bytes.

    ``overhead_bytes`` are charged for every packet on top of its length. Counters of bytes know of
    neither.
    """

    rate_bytes: int
    burst_ticks: int
    mpu_bytes: int = 0
    overhead_bytes: int = 0


def ifb_name(port_index: int) -> str:
    """Name of the intermediate device for a port's arrivals; unique in its namespace."""
    return f"nwi{port_index}"


def burst_bytes(rate_bits: int) -> int:
    """Bytes that may leave at once at a rate: 0.25 ms of it, from 2 Gbit/s on 0.5 ms, and at
    least one full-size frame."""
    burst_s = _BURST_S if rate_bits < _FAST_BITS else _FAST_BURST_S
    return max(FRAME_BYTES, ceil(rate_bits / 8 * burst_s))


def pace(rate_bits: int, overhead_bytes: int = 0) -> LinkPace:
    """The setting for a rate above 0."""
    rate = -(-rate_bits // 8)
    ticks = burst_ticks(rate, burst_bytes(rate_bits))
    return LinkPace(rate, ticks, overhead_bytes=overhead_bytes)


def burst_ticks(rate_bytes: int, burst: int) -> int:
    """The time that ``burst`` bytes take at a rate, in ticks, as the kernel wants a burst."""
    return min(MOST_TICKS, max(1, round(burst * 1e9 / rate_bytes / TICK_NS)))


def bundle_segments(
    lowest_rate_bits: int,
    shortest_step_s: float | None,
    per_packet: bool = False,
    *,
    lasting_s: float = _PREFERRED_BUNDLE_S,
) -> int:
    """Frames that the stack may hand down as one bundle (``gso_max_segs``), 1 to 43.

    With ``per_packet`` it is 1: a loss, a duplicate or an overhead must hit packets, not bundles of
    them.

    A bundle's wait is computed at the rate in force when it leaves, so one that lasts long against
    the time between two changes makes the class deliver too little; and the last bundle of a
    message leaves on credit, so that the message ends early by as much. At the lowest rate other
    than 0 it may last ``lasting_s``, and at most 1 % of the shortest step (``shortest_step_s``;
    None: nothing changes).
    """
    if per_packet:
        return 1
    if shortest_step_s is not None:
        lasting_s = min(lasting_s, _BUNDLE_SHARE * shortest_step_s)
    return max(1, min(MAX_SEGMENTS, int(lowest_rate_bits / 8 * lasting_s / FRAME_BYTES)))


def bundle_sizes(timeline: Timeline, slower: float = 1.0) -> list[int]:
    """The bundles that a run may have if it is dilated by that factor more, ascending.

    The first is preferred. Longer ones, each twice the one before, are for a machine that cannot
    move what is asked in it; the last is the longest that may be.
    """
    step = timeline.shortest_step_s()
    choose = partial(
        bundle_segments,
        round(timeline.lowest_rate() / slower),
        None if step is None else step * slower,
        timeline.per_packet(),
    )
    size, longest = choose(), choose(lasting_s=LONGEST_BUNDLE_S)
    sizes = []
    while size < longest:
        sizes.append(size)
        size *= 2
    return [*sizes, longest]


def segments(timeline: Timeline, least: int = 1) -> int:
    """The run's ``gso_max_segs``: the preferred, or ``least`` if that is more and may be."""
    sizes = bundle_sizes(timeline)
    return min(max(sizes[0], least), sizes[-1])


def limit_packets(rate_bits: int, queue_bytes: int, impairments: Impairments) -> int:
    """A length at which a delay line never fills up, in packets: a power of two, or 1000 at least.

    So many packets are on their way at most: what a rate brings in the longest delay, and a queue's
    worth that came at once, all in frames of the smallest size; twice that if there are duplicates.
    """
    slot_ns = impairments.slot.longest_ns if impairments.slot else 0
    longest_s = (impairments.delay_ns + 4 * impairments.jitter_ns + slot_ns) / 1e9
    packets = (rate_bits / 8 * longest_s + queue_bytes) / SMALLEST_FRAME
    packets *= 2 if impairments.duplicate else 1
    return max(FEWEST_PACKETS, min(MOST_PACKETS, 1 << ceil(packets).bit_length()))


DELAY_UNIT, ENTRIES = 8192, 4096
_LOWEST, _HIGHEST = -(1 << 15), (1 << 15) - 1
_WAVES, _FLAT = 1 << 15, 1e-4
_PARETO_SHAPE, _PARETO_MEAN, _PARETO_STRETCH, _NORMAL_PART = 3, 1.5, 4 / 3, 0.25


_normal = NormalDist().inv_cdf


def _pareto(share: float) -> float:
    exact: float = (1 - share) ** (-1 / _PARETO_SHAPE)
    return (exact - _PARETO_MEAN) * _PARETO_STRETCH


_QUANTILES: dict[Distribution, Callable[[float], float]] = {
    "uniform": lambda share: 2 * share - 1,
    "normal": _normal,
    "pareto": _pareto,
    "paretonormal": lambda at: _NORMAL_PART * _normal(at) + (1 - _NORMAL_PART) * _pareto(at),
}


def entries(distribution: Distribution) -> list[int]:
    """4096 quantiles in 1/8192, rising, each in the middle of its share; cut off at 16 bits."""
    quantile = _QUANTILES[distribution]
    exact = (quantile((entry + 0.5) / ENTRIES) * DELAY_UNIT for entry in range(ENTRIES))
    return [max(_LOWEST, min(_HIGHEST, round(value))) for value in exact]


@cache
def table(distribution: Distribution) -> bytes:
    """The entries as the kernel takes them: an array of its own 16-bit numbers."""
    return array("h", entries(distribution)).tobytes()


def netem_probabilities(impairments: Impairments) -> Impairments:
    """Impairments with the shares to tell netem in the place of those that are asked for."""
    shares: dict[str, Any] = {
        name: threshold(getattr(impairments, name), getattr(impairments, f"{name}_correlation"))
        for name in ("reorder", "duplicate", "corrupt")
    }
    return replace(impairments, **shares)


def threshold(share: float, correlation: float) -> float:
    """The value below which netem's correlated random number lies with probability ``share``.

    Scenarios are refused a correlation above ``HIGHEST_CORRELATION``; with one the share is told as
    it is.
    """
    if not 0 < share < 1 or not 0 < correlation <= HIGHEST_CORRELATION:
        return share
    import numpy as np

    values, below = _distribution(correlation)
    return float(np.interp(share, below, values))


@cache
def _distribution(correlation: float) -> tuple[Values, Values]:
    """Values, and how often ``x`` is below each: a Fourier series.

    ``x`` is a sum of uniform numbers of the widths ``(1-c) * c**n``: a wave's height is the product
    of theirs.
    """
    import numpy as np

    waves, width = np.arange(1, _WAVES), 1 - correlation
    heights = np.where(waves % 2, -1.0, 1.0) / (np.pi * waves)
    while width * _WAVES > _FLAT:
        heights *= np.sinc(waves * width)
        width *= correlation
    values = np.linspace(0, 1, 2 * _WAVES, endpoint=False)
    sines = np.fft.irfft([0, *(-1j * _WAVES * heights), 0])
    return values, np.maximum.accumulate(np.clip(values + sines, 0, 1))
