"""Whether what is asked of one link direction makes sense together."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.scenario.impairments import HIGHEST_CORRELATION
from testbed.scenario.link import (
    FourStateLoss,
    LinkEnd,
    Reordering,
    Share,
)
from testbed.scenario.settings import loss_model
from testbed.units import Duration, Size

MOST_OVERHEAD = Size(65_535)
LONGEST_DELAY = Duration(3600.0)
LONGEST_JITTER = Duration(2.147)
"""In wall time: what kernels keep of a jitter, 31 bits of nanoseconds."""
MOST_SLOT = Size(2**31 - 1)
MOST_LOSS = 0.999
"""Share of packets: a link that loses as much is none."""

Complaint = tuple[str, str]
"""The field, and what is wrong with it."""


def complaints(settings: LinkEnd, dilation: float) -> Iterator[Complaint]:
    """What is wrong with delay, loss and so on. A field that is 0 asks for nothing."""
    yield from _delay(settings, dilation)
    yield from _loss(settings)
    yield from _shares(settings)
    slot = settings.slot
    if slot and slot.longest is not None and slot.shortest > slot.longest:
        yield "slot", f"its shortest time, {slot.shortest}, is above its longest, {slot.longest}"
    if slot and (slot.longest or slot.shortest) > LONGEST_DELAY:
        yield "slot", f"a slot lasts {LONGEST_DELAY} at most"
    if slot and (slot.bytes or 0) > MOST_SLOT:
        yield "slot", f"a slot takes {MOST_SLOT} at most"
    if settings.overhead is not None and settings.overhead > MOST_OVERHEAD:
        yield "overhead", f"{settings.overhead} a packet is too much: {MOST_OVERHEAD} is the most"


def _delay(settings: LinkEnd, dilation: float) -> Iterator[Complaint]:
    delay, jitter = settings.delay or Duration(0.0), settings.jitter or Duration(0.0)
    if delay > LONGEST_DELAY:
        yield "delay", f"{delay} is too long: {LONGEST_DELAY} is the most"
    if jitter and not delay:
        yield "jitter", "jitter needs a delay to act on"
    elif jitter > delay:
        yield "jitter", f"a jitter of {jitter} is more than the delay, {delay}: write less"
    if jitter * dilation > LONGEST_JITTER:
        by = f" and a dilation of {dilation:g}" if dilation > 1 else ""
        yield "jitter", f"a jitter of {jitter}{by} is more than kernels keep, {LONGEST_JITTER}"
    for field in ("distribution", "delay_correlation"):
        if getattr(settings, field) and settings.jitter is None:
            yield field, f"{field} needs a jitter to act on"
    reorder = settings.reorder
    share = reorder.probability if isinstance(reorder, Reordering) else reorder
    if share and not delay:
        yield "reorder", "reorder needs a delay to act on: packets overtake those delayed"


def _loss(settings: LinkEnd) -> Iterator[Complaint]:
    loss = settings.loss
    if settings.ecn and loss is None:
        yield "ecn", "ecn needs a loss: it marks packets that would be lost. Give one, if only 0"
    wrong = list(_four_states(loss)) if isinstance(loss, FourStateLoss) else []
    yield from (("loss", text) for text in wrong or _too_much(settings))


def _too_much(settings: LinkEnd) -> Iterator[str]:
    model = loss_model(settings)
    share = model if isinstance(model, (int, float)) else model.mean_loss
    if share >= MOST_LOSS:
        many = "every packet" if share == 1 else f"{share:.7g} of all packets"
        yield (
            f"{many} would be lost: for that use `kind: outage`; less than {MOST_LOSS} is possible"
        )


def _correlation(asked: Share | Reordering) -> Iterator[str]:
    if asked.correlation and not asked.probability:
        yield "its correlation needs a probability above 0"
    if asked.correlation > HIGHEST_CORRELATION:
        yield (
            f"with a correlation of {asked.correlation:g} netem does not keep to the share asked for: "
            f"{HIGHEST_CORRELATION} is the greatest"
        )


def _four_states(loss: FourStateLoss) -> Iterator[str]:
    for one, other in (("p13", "p14"), ("p31", "p32")):
        if getattr(loss, one) + getattr(loss, other) > 1.0 + 1e-9:
            yield f"{one} + {other} is more than 1, and both leave one state: write less"
    if not loss.p31 + loss.p32:
        yield "p31 + p32 is 0: a burst would never end"
    elif loss.p13 and loss.p32 and not loss.p23:
        yield "p23 is 0: after p32 nothing would be lost any more. Write more, or leave p32 out"


def _shares(settings: LinkEnd) -> Iterator[Complaint]:
    for field in ("reorder", "duplicate", "corrupt"):
        asked = getattr(settings, field)
        if not isinstance(asked, (Share, Reordering)):
            continue
        yield from ((field, text) for text in _correlation(asked))
        if isinstance(asked, Reordering) and asked.gap and not asked.probability:
            yield field, "its gap needs a probability above 0"
