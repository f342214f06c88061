"""What became of one link direction in a replay: its counters, and a last look at what the kernel holds."""

from __future__ import annotations

from typing import Any

from testbed.errors import LinkError
from testbed.links.fidelity import EndReport, measures
from testbed.links.track import Track


def end_report(track: Track, segments: int, realtime: bool) -> EndReport:
    """The report of a track whose replay has ended; what cannot be read any more becomes its failure."""
    failure, counted = track.failure, dict[str, Any](dict.fromkeys(_COUNTED, 0))
    try:
        counted = {**_counters(track), **_passage(track)}
        if failure is None:
            _verify(track)
    except (OSError, LinkError) as error:
        failure = failure or str(error)
    return EndReport(
        link=track.shaped.end.link,
        direction=track.shaped.end.direction,
        gso_max_segs=segments,
        realtime=realtime,
        failure=failure,
        **counted,
        **measures(track.sampler.record),
    )


_COUNTED = ("drops", "direct_packets", "class_bytes", "class_packets")


def _counters(track: Track) -> dict[str, Any]:
    shaped = track.shaped
    now = shaped.read()
    values = (
        shaped.drops(now),
        shaped.direct_packets(),
        now.bytes - shaped.zero.bytes,
        now.packets - shaped.zero.packets,
    )
    return dict(zip(_COUNTED, values, strict=True))


def _passage(track: Track) -> dict[str, Any]:
    if track.line is None:
        return {}
    passage = track.line.passage()
    return {
        "line_packets": passage.packets,
        "line_lost": passage.lost,
        "line_limit": passage.refused,
    }


def _verify(track: Track) -> None:
    """In an outage the class is at whatever holds the link dead."""
    if track.shape.rate_bits:
        track.shaped.verify(track.shape)
    if track.line is not None:
        track.line.verify()
