"""From the settings of a link direction to plain numbers: bytes, whole nanoseconds, fractions."""

from __future__ import annotations

from testbed.errors import InputError
from testbed.scenario.impairments import FourState, GilbertElliott, Impairments, Slot
from testbed.scenario.link import (
    Changeable,
    FourStateLoss,
    GilbertElliottLoss,
    LinkEnd,
    RandomLoss,
    Reordering,
    Share,
    SlotTimes,
)
from testbed.scenario.shape import FRAME_BYTES, End
from testbed.scenario.sources import nanoseconds
from testbed.units import Duration, Packets, Rate, Size

DEFAULT = "default"
"""The key under ``links`` that every node inherits from."""
LEAST_QUEUE_BYTES = 2 * FRAME_BYTES
MOST_QUEUE_BYTES = 2**32 - 1
"""What a kernel's queue can be told to hold."""
_OVERLAID = frozenset(Changeable.model_fields) - {"rate", "queue"}


def queue_bytes(end: End, settings: LinkEnd, *, of_rack: bool = False) -> int:
    """Bytes that the queue of ``end`` holds at t0: a time is meant at the base rate.

    Raises InputError when rate or queue is missing, or fewer than two full-size packets fit.
    """
    if settings.rate is None or settings.queue is None:
        missing = "rate" if settings.rate is None else "queue"
        hint = f"Give one under links, in `{DEFAULT}`, its group or the node"
        if of_rack:
            hint = f"Give one in `racks.{end.link}.{end.direction}`: racks inherit nothing"
        raise InputError(f"{end} has no {missing}", hint=hint)
    return held_bytes(end, settings.rate, settings.queue)


def held_bytes(end: End, rate: Rate, queue: Duration | Size | Packets) -> int:
    """Bytes in ``queue`` at ``rate``. Raises InputError when that is no queue of ``end``."""
    if isinstance(queue, Duration):
        held = round(rate * queue / 8)
    else:
        held = int(queue) * (FRAME_BYTES if isinstance(queue, Packets) else 1)
    if LEAST_QUEUE_BYTES <= held <= MOST_QUEUE_BYTES:
        return held
    at_rate = f" at {rate}" if isinstance(queue, Duration) else ""
    if held < LEAST_QUEUE_BYTES:
        raise InputError(
            f"the queue of {end}, {queue}{at_rate}, holds {held} B: fewer than two packets",
            hint=f"Write at least '2 packets' ({LEAST_QUEUE_BYTES} B)",
        )
    raise InputError(
        f"the queue of {end}, {queue}{at_rate}, holds more than {MOST_QUEUE_BYTES} B",
        hint="No kernel holds so many: write a shorter one",
    )


def impairments(settings: LinkEnd) -> Impairments:
    """What ``settings`` ask for besides rate and queue. What has no effect is as if not asked for."""
    jitter = nanoseconds(settings.jitter or 0.0)
    loss = loss_model(settings)
    reorder, duplicate = _share(settings.reorder), _share(settings.duplicate)
    corrupt = _share(settings.corrupt)
    return Impairments(
        delay_ns=nanoseconds(settings.delay or 0.0),
        jitter_ns=jitter,
        distribution=settings.distribution or "uniform" if jitter else "uniform",
        delay_correlation=settings.delay_correlation or 0.0 if jitter else 0.0,
        loss=loss,
        reorder=reorder.probability,
        reorder_correlation=reorder.correlation,
        reorder_gap=reorder.gap if isinstance(reorder, Reordering) else 0,
        duplicate=duplicate.probability,
        duplicate_correlation=duplicate.correlation,
        corrupt=corrupt.probability,
        corrupt_correlation=corrupt.correlation,
        slot=_slot(settings.slot),
        ecn=bool(settings.ecn and loss),
        ordered=settings.ordered is not False,
        seed=settings.seed,
    )


def overlaid(settings: LinkEnd, change: Changeable) -> LinkEnd:
    """``settings`` with what ``change`` says of delay, loss and so on; rate and queue stay."""
    given = {
        name: value
        for name in change.model_fields_set & _OVERLAID
        if (value := getattr(change, name)) is not None
    }
    return settings.model_copy(update=given) if given else settings


def loss_model(settings: LinkEnd) -> float | GilbertElliott | FourState:
    """The loss asked for."""
    asked = settings.loss
    if isinstance(asked, RandomLoss):
        return asked.probability
    if isinstance(asked, GilbertElliottLoss):
        return GilbertElliott(asked.p, asked.r, asked.loss_bad, asked.loss_good)
    if isinstance(asked, FourStateLoss):
        return FourState(asked.p13, asked.p31, asked.p32, asked.p23, asked.p14)
    return asked or 0.0


def _share(asked: float | Share | Reordering | None) -> Share | Reordering:
    if isinstance(asked, (Share, Reordering)) and asked.probability:
        return asked
    return Share(probability=0.0 if isinstance(asked, (Share, Reordering)) else asked or 0.0)


def _slot(asked: SlotTimes | None) -> Slot | None:
    if asked is None:
        return None
    longest = asked.shortest if asked.longest is None else asked.longest
    if not longest:
        return None
    times = nanoseconds(asked.shortest), nanoseconds(longest)
    return Slot(*times, asked.packets, int(asked.bytes or 0))
