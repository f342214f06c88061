"""A short replay made by calculation: every link filled, followed almost exactly, and what can go wrong with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from testbed.fidelity.evidence import Evidence, gather
from testbed.fidelity.reference import RequestedLinks
from testbed.links.replay.delivery_report import DeliveryLog, EndReport, measures
from testbed.links.replay.interval_errors import Mismatch, Sample, asked_between
from testbed.records.events import HostSample, LinkChanged, LinkMismatch, LinkSample
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState

MBIT = 1_000_000
PROCESSORS = 2
ENDS = [LinkDirection(link, way) for link in ("server", "worker-0") for way in ("up", "down")]  # type: ignore[arg-type]
QUEUE = 100_000


@dataclass
class Replay:
    """What was asked, and what was seen of it; a test changes the latter."""

    seconds: float
    changes: dict[LinkDirection, list[tuple[float, int]]]
    """Asked rates; the first holds at t0."""
    records: dict[LinkDirection, DeliveryLog] = field(default_factory=dict)
    made: dict[LinkDirection, list[LinkChanged]] = field(default_factory=dict)
    host: list[HostSample] = field(default_factory=list)

    @property
    def asked(self) -> RequestedLinks:
        initial = {end: LinkState(steps[0][1], QUEUE) for end, steps in self.changes.items()}
        later = [
            LinkChange(at, end, LinkState(rate, QUEUE))
            for end, steps in self.changes.items()
            for at, rate in steps[1:]
        ]
        return RequestedLinks(initial, sorted(later, key=lambda change: change.time_s))

    @property
    def history(self) -> LinkLog:
        lines: list[dict[str, Any]] = [moment.to_json() for moment in self.host]
        for end, record in self.records.items():
            lines += [change.to_json() for change in self.made[end]]
            lines += [
                LinkMismatch(*end, **wrong._asdict()).to_json() for wrong in record.mismatches
            ]
            for look in record.looks:
                bits = (look.asked_bits, look.delivered_bits)
                times = (look.from_s, look.to_s)
                lines.append(LinkSample(*end, *times, *bits, 1, 9000, look.busy, 0, 0.02).to_json())
        return LinkLog(lines)

    def held(self) -> list[dict[str, Any]]:
        return [
            {**end._asdict(), "rate_bits": steps[0][1], "limit_bytes": QUEUE}
            for end, steps in self.changes.items()
        ]

    def evidence(self) -> Evidence:
        return gather(
            [asdict(report(end, record)) for end, record in self.records.items()],
            self.history,
            self.asked,
            seconds=self.seconds,
            processors=PROCESSORS,
            under_way=IntervalSet([(0.0, self.seconds)]),
            initial=self.held(),
        )


def report(end: LinkDirection, record: DeliveryLog) -> EndReport:
    counters = {"drops": 0, "class_bytes": 10**7, "class_packets": 10**4, "direct_packets": 0}
    return EndReport(**end._asdict(), **counters, **measures(record), gso_max_segs=1, realtime=True)


def clean(seed: int, seconds: float = 6.0, every_s: float | None = 0.1) -> Replay:
    """A sound replay on a quiet machine: errors of some tenths of a percent, changes a fraction of a ms late."""
    random = Random(seed)
    count = 1 if every_s is None else round(seconds / every_s)
    changes = {
        end: [(n * (every_s or 0.0), random.randrange(50, 500) * MBIT) for n in range(count)]
        for end in ENDS
    }
    replay = Replay(seconds, changes)
    for end in ENDS:
        replay.records[end], replay.made[end] = followed(end, random, changes[end], seconds)
    tenths = [n / 10 for n in range(round(seconds * 10) + 1)]
    replay.host = [
        HostSample(a, b, 0.0, random.choice([0.05, *[random.uniform(0.1, 0.7)] * 40]), random.uniform(0.05, 0.6))
        for a, b in pairwise(tenths)
    ]  # fmt: skip
    return replay


def followed(
    end: LinkDirection, random: Random, steps: list[tuple[float, int]], seconds: float
) -> tuple[DeliveryLog, list[LinkChanged]]:
    """One link direction, and the records of its changes."""
    record, total = DeliveryLog(rates=list(steps), marks=[(0.0, 0)]), 0.0
    for n in range(round(seconds * 10)):
        from_s, to_s = n / 10, (n + 1) / 10
        asked = asked_between(steps, from_s, to_s)
        delivered = asked * (1 - abs(random.gauss(0.0, 0.003)))
        total += delivered / 8
        record.marks.append((to_s, round(total)))
        record.looks.append(Sample(from_s, to_s, asked, round(delivered), True))
    made = []
    for at, rate in steps[1:]:
        late = (
            random.expovariate(1 / 2e-4) if random.random() < 0.998 else random.uniform(2e-3, 2e-2)
        )
        record.lateness_s.append(late)
        made.append(LinkChanged(*end, at, at + late, rate, QUEUE))
    return record, made


def scaled(record: DeliveryLog, factor: float) -> None:
    """The link delivered another share of what was asked."""
    record.marks = [(at, round(size * factor)) for at, size in record.marks]
    record.looks = [
        look._replace(delivered_bits=round(look.delivered_bits * factor)) for look in record.looks
    ]


def held_instead(
    record: DeliveryLog, what: str, asked: int, held: int, from_s: float, to_s: float
) -> None:
    """The kernel held something else for a while."""
    record.mismatches.append(Mismatch(from_s, to_s, what, asked, held))
