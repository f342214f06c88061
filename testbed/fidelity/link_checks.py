"""Checks of links against limits: rates, outages, delays, loss and lateness, each as a result with
a sentence. How much loss can be chance: ``evidence.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from testbed.fidelity.evidence import CheckResult, Evidence, LossSeen, State
from testbed.fidelity.run_checks import run_findings
from testbed.records.manifest import Thresholds
from testbed.scenario.link_state import FRAME_BYTES

__all__ = ["CheckResult", "Evidence", "State", "all_findings", "beside_rates"]

_OF_LINKS = (
    *("link_ratio", "link_mape_1s", "link_excess", "lateness_p99_ms", "lateness_max_ms"),
    *("unwatched_share", "direct_share", "outage_bytes", "resume_ms"),
)


def all_findings(evidence: Evidence, limits: Thresholds) -> list[CheckResult]:
    """Every measure of every subject: of links here, of the run in ``run_checks``."""
    return [
        *_read_back(evidence),
        *_changes(evidence),
        *_links(evidence, limits),
        *_losses(evidence),
        *_room(evidence),
        *_round_trips(evidence, limits),
        *run_findings(evidence, limits),
    ]


def beside_rates(
    link: Mapping[str, Any], loss: LossSeen | None, limits: Thresholds
) -> Iterator[CheckResult]:
    """Measures of one link direction that are of neither its rate nor its changes. ``link``: an
    object of the agent's report; ``loss``: of its delay line."""
    checks = _LinkChecks(link, limits)
    yield checks.unwatched()
    yield checks.direct()
    yield from checks.outages()
    if link.get("line_limit") is not None:
        yield _line_room(link)
    if loss is not None:
        yield _loss(f"{link['link']} {link['direction']}", loss)


def _losses(evidence: Evidence) -> Iterator[CheckResult]:
    if not evidence.losses:
        yield CheckResult("loss", "no link has a line that could lose packets")
    for end, loss in evidence.losses.items():
        yield _loss(end, loss)


def _loss(end: str, loss: LossSeen) -> CheckResult:
    if (used := loss.used) is None or loss.low is None or loss.high is None:
        return CheckResult("loss", f"{end}: {loss.why}", subject=end)
    text = (
        f"{end} lost {loss.lost} of {loss.packets} packets, which puts its loss between "
        f"{loss.low:.4%} and {loss.high:.4%}; {loss.asked:.4%} was asked for"
    )
    return CheckResult("loss", text, used, 1.0, end)


def _room(evidence: Evidence) -> Iterator[CheckResult]:
    lines = [link for link in evidence.links if link.get("line_limit") is not None]
    if not lines:
        yield CheckResult("line_room", "no delay line counts what it has no room for")
    for link in lines:
        yield _line_room(link)


def _line_room(link: Mapping[str, Any]) -> CheckResult:
    end, refused = f"{link['link']} {link['direction']}", link["line_limit"]
    text = f"the delay line of {end} had no room for {refused} packets; there must be for all"
    return CheckResult("line_room", text, float(refused), 0.0, end)


def _round_trips(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    if not evidence.paths:
        yield CheckResult("min_rtt", "no round-trip times were counted")
    for path in evidence.paths:
        off, near = path.error_s, path.high_s if path.error_s > 0 else path.low_s
        limit_s = limits.rtt_ms / 1e3 + limits.rtt_share * near
        text = (
            f"the least round-trip time from {path.ends} was {path.least_s * 1e3:.2f} ms, "
            f"{abs(off) * 1e3:.2f} ms {'above' if off > 0 else 'below'} what was asked "
            f"({near * 1e3:.2f} ms); at most {limit_s * 1e3:.2f} ms is right"
        )
        yield CheckResult("min_rtt", text, abs(off), limit_s, path.ends)


def _read_back(evidence: Evidence) -> Iterator[CheckResult]:
    for end, sentences in evidence.starts.items():
        for sentence in sentences:
            yield CheckResult("read_back", f"{end}: {sentence}", 1.0, 0.0, end)
    for link in evidence.links:
        end = f"{link['link']} {link['direction']}"
        if link.get("failure"):
            text = f"{end} failed after t0: {link['failure']}"
            yield CheckResult("read_back", text, 1.0, 0.0, end)
        for wrong in link.get("mismatches") or ():
            actual, requested = (_in_words(wrong["what"], wrong[key]) for key in ("held", "asked"))
            text = (
                f"from {wrong['from_s']:.2f} to {wrong['to_s']:.2f} s the kernel held {actual} for "
                f"{end}, not the {requested.removeprefix('a ')} that was asked"
            )
            yield CheckResult("read_back", text, 1.0, 0.0, end)


def _in_words(what: str, value: float | str) -> str:
    """A value of the kernel's: a delay line says itself what it is."""
    if what == "line":
        return str(value)
    return f"a {what} of {value} {'bit/s' if what == 'rate' else 'B'}"


def _changes(evidence: Evidence) -> Iterator[CheckResult]:
    if evidence.followed is None:
        text = "the changes that were made were not held against the scenario"
        yield CheckResult("changes", text)
        return
    for end, audit in evidence.followed.items():
        faults = audit.faults
        said = faults[0] if faults else f"all {audit.expected} changes were made as asked"
        more = f" (and {len(faults) - 1} more faults of its changes)" if len(faults) > 1 else ""
        yield CheckResult("changes", f"{end}: {said}{more}", float(len(faults)), 0.0, end)


def _links(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    if not evidence.links:
        for measure in _OF_LINKS:
            yield CheckResult(measure, "there is no report of the links")
    for link in evidence.links:
        checks = _LinkChecks(link, limits)
        yield from checks.busy(evidence.seconds)
        yield checks.excess()
        yield from checks.lateness()
        yield checks.unwatched()
        yield checks.direct()
        yield from checks.outages()


class _LinkChecks:
    """The checks of one link direction. ``link``: an object of the agent's report."""

    def __init__(self, link: Mapping[str, Any], limits: Thresholds) -> None:
        self._link, self._limits = link, limits
        self._end = f"{link['link']} {link['direction']}"

    def _judged(self, measure: str, text: str, deviation: float, limit: float) -> CheckResult:
        return CheckResult(measure, text, deviation, limit, self._end)

    def _unjudged(self, measure: str, text: str) -> CheckResult:
        return CheckResult(measure, text, subject=self._end)

    def busy(self, seconds: float) -> Iterator[CheckResult]:
        """Rates while the link was backlogged."""
        link, limits, end = self._link, self._limits, self._end
        ratio, mape = link.get("busy_ratio"), link.get("busy_mape_1s")
        busy_s = (link.get("busy_share") or 0.0) * seconds
        short = f"{end} was backlogged for {busy_s:.1f} s, under {limits.busy_floor_s:g} s"
        if ratio is None or busy_s < limits.busy_floor_s:
            yield self._unjudged("link_ratio", short)
        else:
            text = (
                f"{end} delivered {ratio:.4f} of what was asked while it was backlogged; "
                f"{1 - limits.ratio_deviation:g} to {1 + limits.ratio_deviation:g} is right"
            )
            deviation = max(0.0, abs(ratio - 1) - link.get("busy_ratio_slack", 0.0))
            yield self._judged("link_ratio", text, deviation, limits.ratio_deviation)
        if busy_s < limits.busy_floor_s:
            yield self._unjudged("link_mape_1s", short)
        elif mape is None:
            yield self._unjudged("link_mape_1s", f"{end} was backlogged for no whole second")
        else:
            text = (
                f"{end} was off by {mape:.2%} on average per second while it was backlogged; "
                f"at most {limits.mape_1s:.2%} is right"
            )
            yield self._judged("link_mape_1s", text, mape, limits.mape_1s)

    def excess(self) -> CheckResult:
        """More than was asked, which a link may not deliver even while nothing waits at it."""
        if (share := self._link.get("excess_share")) is None:
            text = f"{self._end} delivered nothing in a whole second"
            return self._unjudged("link_excess", text)
        limit = self._limits.excess_share
        text = (
            f"{share:.2%} of what {self._end} delivered is beyond what was asked in the same "
            f"second; at most {limit:.2%} may be"
        )
        return self._judged("link_excess", text, share, limit)

    def lateness(self) -> Iterator[CheckResult]:
        """Lateness of the changes."""
        late, limits, end = self._link.get("lateness_ms") or {}, self._limits, self._end
        if late.get("p99") is None:
            yield self._unjudged("lateness_p99_ms", f"{end} never changed")
            yield self._unjudged("lateness_max_ms", f"{end} never changed")
            return
        sure, worst = late.get("p99_at_least", late["p99"]), late.get("max", late["p99"])
        if sure is None:
            yield self._unjudged("lateness_p99_ms", f"{end} changed once: that shows no p99")
        else:
            text = (
                f"changes of {end} came at least {sure:.1f} ms late (p99, 95 % confidence); "
                f"at most {limits.lateness_p99_ms:g} ms is right"
            )
            yield self._judged("lateness_p99_ms", text, sure, limits.lateness_p99_ms)
        text = (
            f"a change of {end} came {worst:.1f} ms late; none may by more than "
            f"{limits.lateness_max_ms:g} ms"
        )
        yield self._judged("lateness_max_ms", text, worst, limits.lateness_max_ms)

    def unwatched(self) -> CheckResult:
        """Time in which nobody looked at the link."""
        link, limit = self._link, self._limits.unwatched_share
        watched_s = float(link.get("to_s") or 0.0) - float(link.get("from_s") or 0.0)
        if watched_s <= 0:
            return self._unjudged("unwatched_share", f"{self._end} was not looked at")
        share = float(link["unwatched_s"]) / watched_s
        text = (
            f"nobody looked at {self._end} for {link['unwatched_s']:.2f} s ({share:.1%}) of the "
            f"time; at most {limit:.1%} may be unwatched"
        )
        return self._judged("unwatched_share", text, share, limit)

    def direct(self) -> CheckResult:
        """Packets that passed the link outside its shaped class."""
        direct, shaped = (
            int(self._link.get(f"{which}_packets") or 0) for which in ("direct", "class")
        )
        share, limit = direct / max(1, direct + shaped), self._limits.direct_share
        text = (
            f"{direct} of {direct + shaped} packets ({share:.2%}) passed {self._end} outside its "
            f"shaped class; at most {limit:.2%} may"
        )
        return self._judged("direct_share", text, share, limit)

    def outages(self) -> Iterator[CheckResult]:
        """Bytes that left in outages, and when service was back after them."""
        link, limits, end = self._link, self._limits, self._end
        if not (outages := int(link.get("outages") or 0)):
            yield self._unjudged("outage_bytes", f"{end} had no outage that ended")
            yield self._unjudged("resume_ms", f"{end} had no outage that ended")
            return
        together = f"its {outages} outages", outages, link["outage_bytes"], link.get("outage_s")
        yield self._leaked(*together)
        if (worst := link.get("outage_worst_bytes")) is not None:
            yield self._leaked("one outage", 1, worst, link.get("outage_worst_s"))
        if (resume := link.get("resume_ms")) is None:
            yield self._unjudged("resume_ms", f"nothing waited at {end} when its outages ended")
            return
        text = (
            f"service of {end} was back {resume:.1f} ms late after an outage; at most "
            f"{limits.resume_ms:g} ms is right"
        )
        yield self._judged("resume_ms", text, resume, limits.resume_ms)

    def _leaked(self, where: str, outages: int, leaked: int, seconds: float | None) -> CheckResult:
        """Bytes that left in one outage or in several that took so long together."""
        limits = self._limits
        bundle = FRAME_BYTES * int(self._link.get("gso_max_segs") or 1)
        renewed = int((seconds or 0.0) // limits.outage_recharged_s)
        most = (outages * limits.outage_bundles + renewed) * bundle
        text = (
            f"{leaked} B left {self._end} in {where}; at most {most} B may, "
            f"{limits.outage_bundles} bundles each and one every {limits.outage_recharged_s:g} s"
        )
        return self._judged("outage_bytes", text, float(leaked), float(most))
