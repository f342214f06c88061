"""A bucket's way from gradient to parameters, noted while it goes on, and its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from testbed.compress.bucket import Packed
from testbed.compress.shards import Shard
from testbed.exchange.base import Ticket, Travel
from testbed.record.bucket_events import BucketRecord
from testbed.train.job import Job

Densities = float | list[float]
"""Asked for: one for all of a bucket, or one for each of its parameters."""


class Tells(Protocol):
    """What a carrier says of the messages it has packed."""

    def packed(self, place: int) -> tuple[Packed, Densities]:
        """Of one bucket."""
        ...


@dataclass(slots=True)
class Way:
    """Times as in ``BucketRecord``."""

    shard: Shard
    ready_s: float
    pack_s: float = 0.0
    packed_s: float = 0.0
    compress_cpu_s: float = 0.0
    decoded_s: float = 0.0
    applying_s: float = 0.0
    applied_s: float = 0.0
    tickets: list[Ticket] = field(default_factory=list)
    """The one that it has, once it is sent."""
    items: list[tuple[Packed, Densities]] = field(default_factory=list)
    """What was packed, likewise."""

    @property
    def travel(self) -> Travel:
        """There when its ticket has been waited for."""
        return self.tickets[0].travel

    def record(self, node: str, step: int) -> BucketRecord:
        """All of it."""
        travel, (packed, densities) = self.travel, self.items[0]
        parts = self._parts(packed, densities)
        asked = sum(one[0] * one[3] for one in parts.values()) / max(1, packed.size)
        return BucketRecord(
            node=node,
            step=step,
            bucket=self.shard.number,
            ready_s=self.ready_s,
            pack_s=self.pack_s,
            packed_s=self.packed_s,
            start_s=travel.start_s,
            sent_s=travel.sent_s,
            first_s=travel.first_s,
            arrived_s=travel.arrived_s,
            last_s=travel.last_s,
            decoded_s=self.decoded_s,
            applying_s=self.applying_s,
            applied_s=self.applied_s,
            density=asked,
            size=packed.size,
            sent_count=packed.count,
            bytes_up=travel.bytes_up,
            bytes_down=travel.bytes_down,
            parts=parts,
        )

    def _parts(self, packed: Packed, densities: Densities) -> dict[str, list[float]]:
        parts = self.shard.layout.parts
        asked = densities if isinstance(densities, list) else [densities]
        if len(asked) < len(parts):  # one vector
            asked = asked * len(parts)
        return {
            part.name: [part.size, share.count, share.bytes, density]
            for part, share, density in zip(parts, packed.parts, asked, strict=True)
        }


def told(
    job: Job, ways: Iterable[tuple[Way, BucketRecord]], begun_s: float, computed_s: float
) -> dict[str, dict[str, float]]:
    """``Observation.buckets`` of a step that began at ``begun_s`` and whose computation ended at ``computed_s``."""
    found: dict[str, dict[str, float]] = {}
    layered, dilation = job.algorithm.buckets == "layer", job.dilation
    for way, one in ways:
        times = {
            "bucket": float(one.bucket),
            "start_s": (one.start_s - begun_s) / dilation,
            "left_s": max(0.0, computed_s - one.ready_s) / dilation,
            "delay_s": (one.last_s - one.start_s) / dilation,
            "send_s": (one.sent_s - one.start_s) / dilation,
            "bytes_up": float(one.bytes_up),
            "bytes_down": float(one.bytes_down),
        }
        compress_s = (one.packed_s - one.pack_s) / dilation
        if not layered:
            about = {"elements": float(one.size), "sent": float(one.sent_count)}
            found[way.shard.name] = {**about, "compress_s": compress_s, **times}
            continue
        for name, (size, sent, _, _) in one.parts.items():
            share = {"elements": float(size), "sent": float(sent)}
            found[name] = {**share, "compress_s": compress_s * size / max(1, one.size), **times}
    return found
