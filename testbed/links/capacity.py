"""What this machine moves through an unshaped cable, and the refusal of rates beyond it.

A link is shaped by making its packets wait; where the machine itself is slower than the rate that was asked
for, what is measured is the machine. So a run whose rates come near to what a plain veth carries with the
same offload bundles (``gso_max_segs``) gets longer ones, as far as its links allow them, or is
refused before anything is made. Slow scenarios are not measured.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from testbed.errors import MachineError
from testbed.fabric.journal import folder, start_of_boot
from testbed.scenario.shape import End

FLOOR_BITS = 500_000_000
"""Up to this rate, any machine that runs the rest carries a link: nothing is measured."""

SHARE = 0.7
"""Of what a plain veth moves, so much may be asked for: the rest is for shaping and for the nodes."""

DILATIONS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""What is suggested where a scenario does not fit."""

_known: dict[int, tuple[int, int]] = {}


def check_capacity(
    highest: Mapping[End, int],
    at_once_bits: int,
    sizes: Callable[[float], Sequence[int]],
    *,
    dilation: float = 1.0,
) -> int:
    """The bundle that this machine needs at least, in packets: 1 where the preferred one will do.

    Raises MachineError for what it cannot carry in any, with asked, measured, and what fits.

    ``highest``: the highest rate of every link direction, wall bit/s; ``at_once_bits``: the most that can
    be under way at one instant (``busy_at_once``); ``sizes``: the bundles that the run may have,
    ascending, the preferred one first, if it were slowed down by a factor more (``sizes(1)``: as it
    is); ``dilation``: the scenario's own, which the rates have in them. Costs nothing up to
    ``FLOOR_BITS``.
    """
    end = max(highest, key=lambda each: highest[each], default=None)
    if end is None or max(highest[end], at_once_bits) <= FLOOR_BITS:
        return 1
    preferred, *longer = sizes(1)
    one = machine = bundle = 0
    # what was measured on a busy machine refuses nobody, and makes no bundle longer
    for bundle, fresh in product((preferred, *longer), (False, True)):
        one, machine = measured(bundle, fresh=fresh)
        if highest[end] <= SHARE * one and at_once_bits <= SHARE * machine:
            return 1 if bundle == preferred else bundle
    if highest[end] > SHARE * one:
        asked, can, what, where = highest[end], one, f"link {str(end)!r}", "one flow"
    else:
        asked, can, what, where = at_once_bits, machine, "all links together", "all processors"
    raise MachineError(
        f"{what} would have {_rate(asked)}, but {where} here can move {_rate(can)} through an unshaped "
        f"veth in bundles of {bundle} packets, the longest that the scenario allows, and only "
        f"{SHARE:.0%} of that can be emulated",
        fix=_fitting(highest[end], at_once_bits, sizes, dilation),
    )


def busy_at_once(highest: Mapping[End, int], servers: Iterable[str], others: Iterable[str]) -> int:
    """The most bits per second that training on a star can have under way, all links at their highest.

    Workers send to servers and servers to workers; ``others`` (hosts with traffic of their own) to anyone.
    """
    serving, apart = set(servers), set(others)
    nodes = {end.link for end in highest}
    working = nodes - serving - apart

    def total(links: set[str], direction: str) -> int:
        return sum(
            rate
            for end, rate in highest.items()
            if end.link in links and end.direction == direction
        )

    pushed = min(total(working, "up"), total(serving, "down"))
    pulled = min(total(serving, "up"), total(working, "down"))
    across = min(total(apart, "up") + total(apart, "down"), total(nodes, "down"))
    return pushed + pulled + across


def measured(segments: int, *, fresh: bool = False) -> tuple[int, int]:
    """Bit/s of one flow through a veth, and of a flow per processor, in bundles of ``segments`` packets.

    Remembered by this process, and on disk until the next boot; ``fresh``: measured again, the higher kept.
    Raises MachineError where namespaces cannot be made.
    """
    known = _known.get(segments) or _read(segments)
    if known is None or fresh:
        from testbed.links.unshaped import measure

        one, machine = measure(1, segments), measure(os.cpu_count() or 1, segments)
        before = known or (0, 0)
        known = (max(one, before[0]), max(one, machine, before[1]))
        _write(segments, known)
    _known[segments] = known
    return known


def _read(segments: int) -> tuple[int, int] | None:
    try:
        kept = json.loads(_file().read_text())
    except (OSError, ValueError):
        return None
    one, machine = (
        kept.get(str(segments), (None, None)) if _boot() == kept.get("boot") else (None, None)
    )
    return (one, machine) if isinstance(one, int) and isinstance(machine, int) else None


def _write(segments: int, found: tuple[int, int]) -> None:
    """Keeping it is a convenience: where that is impossible, the next run measures again."""
    path = _file()
    with suppress(OSError, ValueError):
        kept = json.loads(path.read_text()) if path.exists() else {}
        kept = kept if kept.get("boot") == _boot() else {"boot": _boot()}
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({**kept, str(segments): found}))
        new.replace(path)


def _file() -> Path:
    return folder() / "capacity.json"


def _boot() -> str:
    return f"{platform.release()} {start_of_boot()}"


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.2f} Gbit/s"


def _fitting(
    highest_bits: int,
    at_once_bits: int,
    sizes: Callable[[float], Sequence[int]],
    dilation: float,
) -> str:
    """The least dilation with which it fits; bundles may shrink with the rates, and cost more then."""
    for factor in DILATIONS:
        one, machine = measured(sizes(factor)[-1])
        if highest_bits <= factor * SHARE * one and at_once_bits <= factor * SHARE * machine:
            return f"With `dilation: {factor * dilation:g}` in the scenario it would fit."
    return "Ask for lower rates, or take a faster machine."
