"""Evidence that a verdict rests on, from what was asked and what was recorded. Pure.

For every change of the scenario: was it made, when, and to what. For every lossy link: the share of
packets that its loss model should lose, against counts. What else was recorded of links and host.
Last, one measure at one place, held against its limit.

The interval that a share lies in, from counts, is that of C. J. Clopper and E. S. Pearson, "The use
of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26 (1934).
Counts need not be whole: what is correlated counts for less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.fidelity.reference import PathModel, RequestedLinks
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import Change, Changes, LinkLog, end_of
from testbed.records.manifest import THRESHOLDS, Thresholds
from testbed.records.stored import Records
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkDirection,
    LinkState,
)

SAME_S = 1e-6
"""A change is the one due if their times differ by no more: they come from the same numbers."""

STILL_S = 0.1
"""A change that was due so shortly before the last look may be on its way."""


@dataclass(slots=True)
class ChangeAudit:
    """How a link direction followed its changes. ``wrong``: sentences; times: seconds after t0."""

    expected: int = 0
    applied: int = 0
    missing: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """A sentence for everything that is not as asked."""
        said = list(self.wrong)
        if self.missing:
            first_s, count = self.missing[0], f"{len(self.missing)} of {self.expected}"
            said.append(f"{count} changes were never made, the first was due at {first_s:.3f} s")
        return said


def audit_changes(
    requested: RequestedLinks,
    recorded: Mapping[LinkDirection, Changes],
    until_s: Mapping[LinkDirection, float],
) -> dict[LinkDirection, ChangeAudit]:
    """Every direction's changes against ``recorded``: its ``change`` records in order of time.

    ``until_s``: the last look at each direction; what was due after it is not expected. Directions
    without one were not watched and are left out.
    """
    return {
        end: _follow(requested.changes(end), recorded.get(end, Changes()), until_s[end])
        for end in requested.ends
        if end in until_s
    }


def audit_initial_state(
    requested: RequestedLinks, links: Iterable[Mapping[str, Any]]
) -> dict[LinkDirection, list[str]]:
    """A sentence for everything that was wrong before t0; ``links``: the manifest's."""
    faults: dict[LinkDirection, list[str]] = {}
    for link in links:
        end = LinkDirection(link["link"], link["direction"])
        if end not in requested or not (shape := requested.initial(end)).rate_bits:
            continue
        wanted = (8 * -(-shape.rate_bits // 8), shape.queue_bytes)
        had = (link.get("rate_bits"), link.get("limit_bytes"))
        if None not in had and had != wanted:
            faults.setdefault(end, []).append(
                f"at t0 it had {had[0]} bit/s and a queue of {had[1]} B, not {wanted[0]} bit/s and "
                f"{wanted[1]} B"
            )
    return faults


def _follow(
    changes: Iterable[tuple[float, LinkState]], recorded: Iterable[Change], until_s: float
) -> ChangeAudit:
    audit, rest = ChangeAudit(), iter(recorded)
    following = next(rest, None)
    for time_s, shape in changes:
        if time_s > until_s:
            break
        while following is not None and following.due_s < time_s - SAME_S:
            audit.wrong.append(_unasked(following))
            following = next(rest, None)
        if following is not None and abs(following.due_s - time_s) <= SAME_S:
            audit.expected += 1
            audit.applied += 1
            audit.wrong += _differs(shape, following)
            following = next(rest, None)
        elif time_s <= until_s - STILL_S:
            audit.expected += 1
            audit.missing.append(time_s)
    more = rest if following is None else chain([following], rest)
    audit.wrong += [_unasked(change) for change in more if change.due_s <= until_s]
    return audit


def _unasked(change: Change) -> str:
    return f"a change was made for {change.due_s:.3f} s that nobody asked for"


def _differs(shape: LinkState, change: Change) -> Iterator[str]:
    wanted = (shape.rate_bits, shape.queue_bytes)
    was = (change.rate_bits, change.queue_bytes)
    if was != wanted:
        yield (
            f"the change at {change.due_s:.3f} s was to {was[0]} bit/s and {was[1]} B, "
            f"not to {wanted[0]} bit/s and {wanted[1]} B"
        )
    impairments = shape.impairments.to_json()
    if change.impairments not in (None, impairments):
        which = f"the change at {change.due_s:.3f} s"
        yield f"{which} was to {change.impairments}, not to {impairments}"


def interval(hits: float, trials: float, confidence: float) -> tuple[float, float]:
    """The least and the largest share that ``hits`` of ``trials`` leave likely enough."""
    from scipy.special import betaincinv  # scipy.stats takes whole counts only

    if trials <= 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if hits <= 0 else betaincinv(hits, trials - hits + 1, tail)
    high = 1.0 if hits >= trials else betaincinv(hits + 1, trials - hits, 1 - tail)
    return float(low), float(high)


_LONGEST_LAG, _FORGOTTEN = 100_000, 1e-9
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Expected:
    """``share`` of packets lost in the long run; ``weight`` of them tell as much as one alone."""

    share: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LossSeen:
    """Losses of a line. The true share lies in ``low`` to ``high``; None: not judged, ``why``."""

    packets: int
    lost: int
    asked: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None

    @property
    def used(self) -> float | None:
        """Distance of asked from seen, in widths of the interval to that side: up to 1 is right."""
        if self.asked is None or self.low is None or self.high is None:
            return None
        share = self.lost / self.packets
        bound = self.high if self.asked > share else self.low
        return (
            0.0 if self.asked == share else abs(self.asked - share) / max(abs(bound - share), 1e-12)
        )


def expected(impairments: Impairments) -> Expected | str:
    """Return the share a line should lose (or mark, with ``ecn``), or why that cannot be said."""
    if isinstance(impairments.loss, GilbertElliott):
        model = impairments.loss
        chain = ((1 - model.p, model.p), (model.r, 1 - model.r))
        return _of_chain(chain, (model.loss_good, model.loss_bad))
    if isinstance(impairments.loss, FourState):
        return _of_chain(_four(impairments.loss), (0.0, 0.0, 1.0, 1.0))
    return Expected(impairments.loss)


def losses_seen(
    packets: int, lost: int, shapes: Iterable[LinkState], confidence: float
) -> LossSeen:
    """``lost`` of ``packets`` against what ``shapes`` (all that the link had) asked for."""
    models = {shape.impairments.loss: shape.impairments for shape in shapes}
    if not packets:
        return LossSeen(packets, lost, why="no packets came to it")
    if len(models) != 1:
        return LossSeen(packets, lost, why="the loss asked for changed meanwhile")
    model = expected(next(iter(models.values())))
    if isinstance(model, str):
        return LossSeen(packets, lost, why=model)
    low, high = interval(lost / model.weight, packets / model.weight, confidence)
    return LossSeen(packets, lost, model.share, low, high)


def _four(model: FourState) -> Matrix:
    """Gap, burst gap, burst loss, gap loss, as netem goes from one to the next."""
    return (
        (1 - model.p13 - model.p14, 0.0, model.p13, model.p14),
        (0.0, 1 - model.p23, model.p23, 0.0),
        (model.p31, model.p32, 1 - model.p31 - model.p32, 0.0),
        (1.0, 0.0, 0.0, 0.0),
    )


def _of_chain(chain: Matrix, loss: Sequence[float]) -> Expected | str:
    """Mean loss of a Markov chain, and by how much its memory widens the mean's variance."""
    step, ahead = np.array(chain), np.array(loss)
    stay = _stationary(step)
    lost = stay * ahead
    mean = float(lost.sum())
    if mean in (0.0, 1.0):
        return Expected(mean)
    weight = 1.0
    for _ in range(_LONGEST_LAG):
        ahead = step @ ahead
        weight += 2 * (float(lost @ ahead) - mean**2) / (mean * (1 - mean))
        if np.abs(ahead - mean).max() < _FORGOTTEN:
            return Expected(mean, max(weight, 1.0))
    return "its losses remember too much of what was before"


def _stationary(step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stationary distribution, by two steps' means: they settle also where the chain alternates."""
    now = np.full(len(step), 1 / len(step))
    for _ in range(_LONGEST_LAG):
        later = (now + now @ step) / 2
        if np.abs(now - later).max() < 1e-15:
            break
        now = later
    return now


@dataclass(frozen=True, slots=True)
class PathSeen:
    """The least round-trip time from ``node`` to ``peer`` (None: the switch) and back;
    asked for: ``low_s`` to ``high_s``, which are equal where delays are constant."""

    node: str
    peer: str | None
    least_s: float
    low_s: float
    high_s: float

    @property
    def ends(self) -> str:
        """Both ends in words."""
        return f"{self.node} to {self.peer or 'the switch'}"

    @property
    def error_s(self) -> float:
        """How far it is from what was asked: positive above, negative below."""
        return max(0.0, self.least_s - self.high_s) - max(0.0, self.low_s - self.least_s)


@dataclass(frozen=True, slots=True)
class Starved:
    """How long the host was watched under traffic; the share without a free processor."""

    watched_s: float
    share: float


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """Node changes (pause, resume, kill, restart) asked for and made. ``faults``: a sentence for
    all that did not happen, or was not asked for. ``lateness_ms``: see ``intervals.quantiles``."""

    expected: int
    applied: int
    faults: Sequence[str]
    lateness_ms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Optional values: what is absent is reported as not measured. Places are ``worker-0 up``."""

    seconds: float = 0.0
    """Wall seconds that the run took."""
    links: Records = ()
    """The agent's report, one object per link direction."""
    steps: Records = ()
    """``StepRecord`` objects of all workers."""
    rests: Records = ()
    """``RestRecord`` objects of all workers."""
    rounds: Records = ()
    """``RoundRecord`` objects of the server."""
    sockets: Records = ()
    """Per data socket ``{"node", "peer", "bytes_sent", "segs_out"}``, node and peer by name.
    Of multicasts see ``run_checks.class_bytes_expected``."""
    unattributed: Mapping[str, str] = field(default_factory=dict)
    """Reasons why the sockets do not account for all bytes of a place, keyed by place."""
    completion: Mapping[str, Any] | None = None
    """The result of ``completion.measure_groups``."""
    followed: Mapping[str, ChangeAudit] | None = None
    """Audits of whether every change of the scenario was made, keyed by place."""
    starts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Sentences for everything that was not as asked at t0, keyed by place."""
    losses: Mapping[str, LossSeen] = field(default_factory=dict)
    """Losses of links that have a delay line, keyed by place."""
    paths: Sequence[PathSeen] = ()
    nodes: NodesSeen | None = None
    """None where nothing happens to nodes, as in a replay."""
    foreign_drops: Mapping[str, int] | None = None
    """Packets dropped outside the emulated queues, by place."""
    stolen_share: float | None = None
    """Share of the host's processor time that a hypervisor gave to others."""
    cpu_starvation: Starved | None = None
    bypasses: Sequence[str] | None = None
    """A sentence for every way of a job's bytes around the links; None where not looked for."""
    bypass_unwatched: Sequence[str] = ()
    """A sentence for every such way that could not be watched."""
    faults: Sequence[str] = ()
    """A sentence for everything in which the nodes' own counts and replicas do not agree."""


Trip = tuple[str, str | None, float]
"""Node, peer (None: the switch), and the least round-trip time between them, in seconds."""


def gather(
    links: Records,
    history: LinkLog,
    requested: RequestedLinks,
    *,
    seconds: float,
    processors: int,
    under_way: IntervalSet,
    initial: Iterable[Mapping[str, Any]] = (),
    trips: Sequence[Trip] = (),
    ways: PathModel | None = None,
    limits: Thresholds = THRESHOLDS,
) -> Evidence:
    """Collect the evidence of links and host.

    ``links``: the agent's report; ``initial``: what the manifest says that was read back before t0;
    ``under_way``: when there was traffic that could suffer.
    """
    until_s = {end_of(link): float(link["to_s"]) for link in links}
    watched_s, share = history.host.starved_share(under_way, limits)
    return Evidence(
        seconds=seconds,
        links=links,
        followed={
            str(end): audit
            for end, audit in audit_changes(requested, history.changes, until_s).items()
        },
        starts={str(end): said for end, said in audit_initial_state(requested, initial).items()},
        losses=_losses(links, requested, limits),
        paths=[] if ways is None else _paths(trips, ways),
        stolen_share=history.host.stolen_share(processors),
        cpu_starvation=Starved(watched_s, share) if history.host.moments else None,
    )


def unattributed_bytes(
    requested: RequestedLinks, crossed: Iterable[str], uncounted: Iterable[str] = ()
) -> dict[str, str]:
    """Return why the sockets' bytes are not all there is, keyed by place.

    ``crossed``: links with other traffic. ``uncounted``: nodes whose gradients a library carries.
    """
    names, without = set(crossed), set(uncounted)
    reasons = {
        str(end): "gloo keeps no count of its bytes"
        for end in requested.ends
        if end.link in without
    }
    for end in requested.ends:
        if end.link in names:
            reasons.setdefault(str(end), "other traffic goes over it")
    copying = {
        end for end in requested.ends if any(s.impairments.duplicate for s in requested.shapes(end))
    }
    for end in requested.ends if copying else []:
        if end in copying or end.direction == "down":
            reasons.setdefault(str(end), "packets are duplicated on the way")
    return reasons


def _losses(links: Records, requested: RequestedLinks, limits: Thresholds) -> dict[str, LossSeen]:
    lines = [link for link in links if link.get("line_packets") is not None]
    # Of many lines one is outside its interval sooner: together they have the confidence asked for.
    confidence = 1 - (1 - limits.loss_confidence) / max(1, len(lines))
    return {
        str(end_of(link)): losses_seen(
            int(link["line_packets"]),
            int(link["line_lost"] or 0),
            requested.shapes(end_of(link)),
            confidence,
        )
        for link in lines
    }


def _paths(trips: Iterable[Trip], ways: PathModel) -> list[PathSeen]:
    """One per pair, whichever of both ends has seen less."""
    least: dict[frozenset[str | None], Trip] = {}
    for node, peer, time_s in trips:
        pair = frozenset((node, peer))
        if pair not in least or time_s < least[pair][2]:
            least[pair] = (node, peer, time_s)
    return [
        PathSeen(node, peer, time_s, *ways.round_trip_s(node, peer))
        for node, peer, time_s in least.values()
    ]


State = Literal["valid", "degraded", "invalid"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One measure of one subject, such as ``worker-0 up``.

    ``deviation`` None: not measured, and ``sentence`` says why.
    """

    measure: str
    sentence: str
    deviation: float | None = None
    limit: float = 0.0
    subject: str | None = None

    def state(self, factor: float) -> State:
        """Valid within the limit, degraded within ``factor`` times it; not measured is no fault."""
        # The allowance is for the rounding of the deviation itself: 1.02 - 1 is above 0.02.
        if self.deviation is None or self.deviation <= self.limit * (1 + 1e-9):
            return "valid"
        return "degraded" if self.deviation <= factor * self.limit * (1 + 1e-9) else "invalid"
