"""A short replay made by calculation: every link filled, followed almost exactly, and what can go wrong with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from testbed.links.bins import Look, asked_between
from testbed.links.fidelity import EndReport, Record, measures
from testbed.links.held import Mismatch
from testbed.record.asked import Asked
from testbed.record.events import HostSample, LinkChanged, LinkMismatch, LinkSample
from testbed.record.evidence import Evidence
from testbed.record.gather import gather
from testbed.record.history import LinkHistory
from testbed.record.spans import Spans
from testbed.scenario.shape import End, LinkChange, Shape

MBIT = 1_000_000
PROCESSORS = 2
ENDS = [End(link, way) for link in ("server", "worker-0") for way in ("up", "down")]  # type: ignore[arg-type]
QUEUE = 100_000


@dataclass
class Replay:
    """What was asked, and what was seen of it; a test changes the latter."""

    seconds: float
    changes: dict[End, list[tuple[float, int]]]
    """Asked rates; the first holds at t0."""
    records: dict[End, Record] = field(default_factory=dict)
    made: dict[End, list[LinkChanged]] = field(default_factory=dict)
    host: list[HostSample] = field(default_factory=list)

    @property
    def asked(self) -> Asked:
        initial = {end: Shape(steps[0][1], QUEUE) for end, steps in self.changes.items()}
        later = [
            LinkChange(at, end, Shape(rate, QUEUE))
            for end, steps in self.changes.items()
            for at, rate in steps[1:]
        ]
        return Asked(initial, sorted(later, key=lambda change: change.time_s))

    @property
    def history(self) -> LinkHistory:
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
        return LinkHistory(lines)

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
            under_way=Spans([(0.0, self.seconds)]),
            held=self.held(),
        )


def report(end: End, record: Record) -> EndReport:
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
    end: End, random: Random, steps: list[tuple[float, int]], seconds: float
) -> tuple[Record, list[LinkChanged]]:
    """One link direction, and the records of its changes."""
    record, total = Record(rates=list(steps), marks=[(0.0, 0)]), 0.0
    for n in range(round(seconds * 10)):
        from_s, to_s = n / 10, (n + 1) / 10
        asked = asked_between(steps, from_s, to_s)
        delivered = asked * (1 - abs(random.gauss(0.0, 0.003)))
        total += delivered / 8
        record.marks.append((to_s, round(total)))
        record.looks.append(Look(from_s, to_s, asked, round(delivered), True))
    made = []
    for at, rate in steps[1:]:
        late = (
            random.expovariate(1 / 2e-4) if random.random() < 0.998 else random.uniform(2e-3, 2e-2)
        )
        record.lateness_s.append(late)
        made.append(LinkChanged(*end, at, at + late, rate, QUEUE))
    return record, made


def scaled(record: Record, factor: float) -> None:
    """The link delivered another share of what was asked."""
    record.marks = [(at, round(size * factor)) for at, size in record.marks]
    record.looks = [
        look._replace(delivered_bits=round(look.delivered_bits * factor)) for look in record.looks
    ]


def held_instead(
    record: Record, what: str, asked: int, held: int, from_s: float, to_s: float
) -> None:
    """The kernel held something else for a while."""
    record.mismatches.append(Mismatch(from_s, to_s, what, asked, held))
