"""Checks that link settings and events make sense, at t0 and after each step, and what they need of
a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_UP, Context

from testbed.errors import InputError
from testbed.scenario.diagnostics import Names, Problem
from testbed.scenario.expand import ALL, LinkGroup, alike, end_settings, link_events
from testbed.scenario.link_model import (
    CHANGEABLE,
    DEFAULT,
    AbsentEvent,
    Event,
    FlapEvent,
    FourStateLoss,
    LinkEnd,
    LinkShare,
    NodeEvent,
    OutageEvent,
    PartitionEvent,
    PauseEvent,
    RampEvent,
    Reordering,
    StepEvent,
    TraceEvent,
    held_bytes,
    impairments,
    loss_model,
    overlaid,
    queue_bytes,
)
from testbed.scenario.link_state import HIGHEST_CORRELATION, Impairments, LinkDirection
from testbed.scenario.model import Scenario
from testbed.scenario.yaml import Place
from testbed.traces.rate_trace import RateTrace
from testbed.units import Duration, Rate, Size

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
    """Yield what is wrong with delay, loss and so on. A field that is 0 asks for nothing."""
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
        lost = "every packet" if share == 1 else f"{share:.7g} of all packets"
        use = f"for that use `kind: outage`; less than {MOST_LOSS} is possible"
        yield f"{lost} would be lost: {use}"


def _correlation(share: LinkShare | Reordering) -> Iterator[str]:
    if share.correlation and not share.probability:
        yield "its correlation needs a probability above 0"
    if share.correlation > HIGHEST_CORRELATION:
        yield (
            f"with a correlation of {share.correlation:g} netem does not keep to the share asked "
            f"for: {HIGHEST_CORRELATION} is the greatest"
        )


def _four_states(loss: FourStateLoss) -> Iterator[str]:
    for first, other in (("p13", "p14"), ("p31", "p32")):
        if getattr(loss, first) + getattr(loss, other) > 1.0 + 1e-9:
            yield f"{first} + {other} is more than 1, and both leave one state: write less"
    if not loss.p31 + loss.p32:
        yield "p31 + p32 is 0: a burst would never end"
    elif loss.p13 and loss.p32 and not loss.p23:
        yield "p23 is 0: after p32 nothing would be lost any more. Write more, or leave p32 out"


def _shares(settings: LinkEnd) -> Iterator[Complaint]:
    for field in ("reorder", "duplicate", "corrupt"):
        share = getattr(settings, field)
        if not isinstance(share, (LinkShare, Reordering)):
            continue
        yield from ((field, text) for text in _correlation(share))
        if isinstance(share, Reordering) and share.gap and not share.probability:
            yield field, "its gap needs a probability above 0"


def check_links(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Keys under ``links`` and ``racks``, and the settings of every link direction."""
    for key, link in scenario.links.items():
        if key in names.racks:
            yield Problem(("links", key), f"{key!r} is a rack: write this under `racks.{key}`")
        elif key != DEFAULT and key not in names.groups:
            yield Problem(("links", key), names.unknown(key, DEFAULT))
        if link.down.at is not None:
            yield Problem(
                ("links", key, "down", "at"), "only `up` has a place; leave `at` out here"
            )
    reported: set[str] = set()
    for end, settings in end_settings(scenario).items():
        group = names.groups.get(end.link, end.link)
        for field, message in _end(end, settings, scenario):
            told_as = message.replace(str(end), group)
            if told_as not in reported:  # once a group, not for each of its nodes
                reported.add(told_as)
                yield Problem(_location(scenario, end, group, field), message)


def check_steps(scenario: Scenario) -> Iterator[Problem]:
    """Yield problems of the settings that each step leaves, for the directions that it concerns."""
    reported: set[tuple[int, str | None, str]] = set()
    for group in alike(scenario):
        for i, field, message in _steps(scenario, group):
            if (i, field, message) not in reported:
                reported.add((i, field, message))
                location: Place = ("events", i) if field is None else ("events", i, field)
                yield Problem(location, f"{group.ends[0]}: {message}")


def _steps(scenario: Scenario, group: LinkGroup) -> Iterator[tuple[int, str | None, str]]:
    settings = group.settings
    known = set(complaints(settings, scenario.dilation))
    for i in group.events:
        event = scenario.events[i]
        if not isinstance(event, StepEvent):
            continue
        before, settings = settings, overlaid(settings, event)
        wrong = known if settings is before else set(complaints(settings, scenario.dilation))
        for field, message in sorted(wrong - known):
            yield i, field if getattr(event, field) is not None else None, message
        known = wrong
        if event.queue is not None:
            rate = settings.rate if event.rate is None else event.rate
            try:
                held_bytes(group.ends[0], rate or Rate(0), event.queue)
            except InputError as error:
                yield i, "queue", str(error)


def _end(
    end: LinkDirection, settings: LinkEnd, scenario: Scenario
) -> Iterator[tuple[str | None, str]]:
    try:
        queue_bytes(end, settings, of_rack=end.link in scenario.racks)
    except InputError as error:
        yield None, str(error)
    for field, message in complaints(settings, scenario.dilation):
        yield field, f"{end}: {message}"


def _location(scenario: Scenario, end: LinkDirection, group: str, field: str | None) -> Place:
    """The innermost entry under ``links`` that speaks of ``end``, and of ``field`` if any."""
    if end.link in scenario.racks:
        return ("racks", end.link, end.direction, *([field] if field else []))
    keys = [key for key in (end.link, group, DEFAULT) if key in scenario.links]
    for key in keys if field else ():
        if getattr(getattr(scenario.links[key], end.direction), str(field)) is not None:
            return ("links", key, end.direction, str(field))
    return ("links", keys[0], end.direction) if keys else ("links",)


LEAST_EVERY = Duration(1e-3)
"""Faster changes are refused: applying one to a kernel takes longer."""
_UP = Context(prec=3, rounding=ROUND_UP)
"""Rounds an advised number so that it is not refused again."""
MAX_REPETITIONS = 100_000
"""Steps of a ramp, and outages of a flap."""

_LASTING = OutageEvent | FlapEvent | PartitionEvent | PauseEvent | AbsentEvent


def check_events(
    scenario: Scenario, traces: Mapping[str, RateTrace], names: Names
) -> Iterator[Problem]:
    """Names, order and times of events."""
    before = Duration(0.0)
    for i, event in enumerate(scenario.events):
        yield from _names(i, event, names)
        if event.at < before:
            yield Problem(
                ("events", i, "at"),
                f"time goes backwards: {event.at} after {before}; list events by time",
            )
        before = max(before, event.at)
        yield from (Problem(("events", i, key), text) for key, text in _event(event, traces))


def _names(i: int, event: Event, names: Names) -> Iterator[Problem]:
    if isinstance(event, NodeEvent):
        for j, name in enumerate(event.nodes):
            if name not in names.groups:
                yield Problem(("events", i, "nodes", j), names.unknown(name))
        return
    for j, name in enumerate(event.links):
        if name != ALL and name not in names.groups and name not in names.racks:
            yield Problem(("events", i, "links", j), names.unknown(name, ALL, racks=True))


def _event(event: Event, traces: Mapping[str, RateTrace]) -> Iterator[Complaint]:
    if isinstance(event, _LASTING) and not event.for_:
        noun = {"flap": "outage", "absent": "absence"}.get(event.kind, event.kind)
        yield "for", f"{'an' if noun[0] in 'ao' else 'a'} {noun} lasts longer than 0"
    if isinstance(event, StepEvent) and all(getattr(event, key) is None for key in CHANGEABLE):
        yield "kind", f"this step changes nothing: give one of {', '.join(CHANGEABLE)}"
    if isinstance(event, RampEvent):
        yield from _ramp(event)
    if isinstance(event, FlapEvent):
        yield from _flap(event)
    if isinstance(event, TraceEvent):
        yield from _trace(event, traces.get(event.key))


def _ramp(event: RampEvent) -> Iterator[Complaint]:
    if not event.over:
        yield "over", "a ramp takes longer than 0; for a jump use `kind: step`"
    if event.every < LEAST_EVERY:
        yield "every", f"links cannot be changed that often: write {LEAST_EVERY} or more"
    elif event.over / event.every > MAX_REPETITIONS:
        yield "every", f"more than {MAX_REPETITIONS} changes: write a longer time"


def _flap(event: FlapEvent) -> Iterator[Complaint]:
    if event.for_ and min(event.for_, event.every - event.for_) < LEAST_EVERY * 0.999:
        yield (
            "every",
            f"outages of {event.for_} every {event.every} leave no time between them: they and "
            f"what is between them last {LEAST_EVERY} at least",
        )
    if event.times > MAX_REPETITIONS:
        yield "times", f"more than {MAX_REPETITIONS} outages: write fewer"


def _trace(event: TraceEvent, trace: RateTrace | None) -> Iterator[Complaint]:
    if event.at_end == "loop" and event.repeat != 1:
        yield "repeat", "a loop never ends: use `at_end: hold` or `stop`, or leave `repeat` out"
    if event.at_end != "loop" and event.offset_per_seed:
        yield "offset_per_seed", "only a loop can begin anywhere: use `at_end: loop`"
    if trace is None:
        return
    if event.offset >= trace.duration_s:
        length = Duration(trace.duration_s)
        yield "offset", f"{event.offset} is past the end of the trace, which lasts {length}"
    length = Duration(round(trace.duration_s * event.stretch, 9))
    if length / len(trace.times_s) < LEAST_EVERY * 0.999:
        least = LEAST_EVERY * 0.9995 * len(trace.times_s) / trace.duration_s
        yield (
            "file" if event.stretch == 1 else "stretch",
            f"{len(trace.times_s)} points in {length}: links cannot be changed that often; "
            f"write a stretch of {float(_UP.create_decimal_from_float(least)):g} or more",
        )
    if max(trace.rates_bits) * event.scale > 2**53:
        yield "scale", f"{event.scale:g} times the trace's highest rate is too large: write less"


_FIELDS = {
    "delay": "delay_ns",
    "jitter": "jitter_ns",
    "loss": "loss",
    "reorder": "reorder",
    "duplicate": "duplicate",
    "corrupt": "corrupt",
    "slot": "slot",
    "ecn": "ecn",
}


def kernel_needs(scenario: Scenario) -> list[str]:
    """Needs in words, such as ``netem (worker-0 up: delay)``; link directions alike are one entry.

    ``netem`` with what is asked of it at any time; ``ifb`` for the directions that are impaired, or
    shaped, where their packets arrive; ``seed`` where random numbers are to be the same every time.
    """
    netem: dict[tuple[str, ...], list[LinkDirection]] = {}
    impaired: set[LinkDirection] = set()
    for settings, events, ends in alike(scenario):
        states = [settings]
        for event in link_events(scenario, events):
            if isinstance(event, StepEvent):
                states.append(overlaid(states[-1], event))
        if fields := _impaired_by([impairments(state) for state in states]):
            netem.setdefault(fields, []).extend(ends)
            impaired.update(ends)
    placed = end_settings(scenario).items()
    arriving = [end for end, own in placed if end in impaired or own.at == "network"]
    seeded = [end for end, own in placed if end in impaired and own.seed is not None]
    needs = [f"netem ({_ends(ends)}: {', '.join(fields)})" for fields, ends in netem.items()]
    needs += [f"ifb ({_ends(arriving)})"] if arriving else []
    return needs + ([f"seed ({_ends(seeded)})"] if seeded else [])


def _impaired_by(states: Iterable[Impairments]) -> tuple[str, ...]:
    listed = list(states)
    return tuple(
        word for word, name in _FIELDS.items() if any(getattr(state, name) for state in listed)
    )


def _ends(ends: list[LinkDirection]) -> str:
    return str(ends[0]) if len(ends) == 1 else f"{ends[0]} and {len(ends) - 1} more"
