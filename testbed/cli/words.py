"""What is asked of a link besides rate and queue, in words."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.scenario.impairments import FourState, GilbertElliott, Impairments
from testbed.units import Duration, Size


def in_words(asked: Impairments, overhead_bytes: int = 0) -> str:
    """Such as ``delay 10 ms ± 1 ms normal, loss 1 %``; empty if nothing is asked for."""
    words = [*_delay(asked), *_packets(asked), *_rest(asked)] if asked else []
    words += [f"overhead {Size(overhead_bytes)}"] if overhead_bytes else []
    return ", ".join(words)


def _delay(asked: Impairments) -> Iterator[str]:
    jitter = f" ± {_time(asked.jitter_ns)} {asked.distribution}" if asked.jitter_ns else ""
    if asked.delay_ns:
        yield f"delay {_time(asked.delay_ns)}{jitter}"


def _packets(asked: Impairments) -> Iterator[str]:
    loss = asked.loss
    if isinstance(loss, GilbertElliott):
        mean, burst = 100 * loss.mean_loss, loss.mean_burst
        yield f"loss {mean:.3g} % in bursts of {burst:.3g} packets (Gilbert–Elliott)"
    elif isinstance(loss, FourState):
        yield "loss (four states)"
    elif loss:
        yield f"loss {100 * loss:.3g} %"
    for name in ("reorder", "duplicate", "corrupt"):
        if share := getattr(asked, name):
            yield f"{name} {100 * share:.3g} %"


def _rest(asked: Impairments) -> Iterator[str]:
    if asked.slot:
        yield f"slots of {_time(asked.slot.shortest_ns)} to {_time(asked.slot.longest_ns)}"
    if asked.ecn:
        yield "ECN marks"
    if not asked.ordered:
        yield "not kept in order"
    if asked.seed is not None:
        yield f"seed {asked.seed}"


def _time(ns: int) -> str:
    return str(Duration(ns / 1e9))
