"""The one table of thresholds that a verdict is found by. It goes into every manifest as it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares and deviations are fractions, unless a name ends in a unit."""

    ratio_deviation: float = 0.02
    """|delivered / asked - 1| over the intervals in which the link was backlogged throughout."""
    mape_1s: float = 0.02
    """Mean error per 1 s bin over the same intervals."""
    busy_floor_s: float = 2.0
    """Backlogged time below which the two above are not judged: a few looks are no statistics."""
    excess_share: float = 0.02
    """Delivered bits beyond what was asked and one bundle, of all that was delivered, in whole seconds, backlogged or not."""
    lateness_p99_ms: float = 10.0
    """How late a link change took effect …"""
    lateness_max_ms: float = 50.0
    """… and the latest of them: a single one of a short run is no statistics, but can be a fault."""
    node_lateness_ms: float = 250.0
    """How late a node was paused, killed or started again: a container engine takes some tens of ms for it."""
    unwatched_share: float = 0.01
    """Time in which nobody looked at a link, beyond the 50 ms that two looks may be apart."""
    outage_bundles: int = 4
    """Offload bundles that may leave in an outage: those on their way, and the one that the link falls silent by."""
    outage_recharged_s: float = 50.0
    """After so long in an outage one more bundle leaves: the kernel keeps no charge for longer."""
    resume_ms: float = 20.0
    """How late service was back after an outage, beyond one bundle's own time."""
    loss_confidence: float = 0.999
    """Of the interval in which a line's loss must lie, for all lines of a run together."""
    rtt_ms: float = 1.0
    """Error of the least round-trip time …"""
    rtt_share: float = 0.02
    """… plus this share of what was asked."""
    starved_share: float = 0.05
    """Time, while traffic was under way, in which no processor was free and something waited for one: …"""
    starved_idle: float = 0.05
    """… idle for at most this share of about 100 ms, …"""
    starved_pressure: float = 0.5
    """… in at least this share of which something waited."""
    direct_share: float = 0.001
    """Packets that passed a link outside its shaped class."""
    foreign_drops: int = 0
    """Packets dropped anywhere but in the emulated queues."""
    stolen_share: float = 0.01
    """Processor time of this host that others on the same hardware took."""
    overrun_share: float = 0.01
    """Steps whose computation took longer than its pace."""
    contended_share: float = 0.01
    """Compress and apply phases that waited for a processor."""
    contended_ratio: float = 1.5
    """Wall over CPU time above which a phase counts as having waited."""
    contended_loss: float = 0.01
    """Share of its step that a phase must have lost besides: less does not move a result."""
    completion_share: float = 0.01
    """Error of a message's completion against the service curve of the asked rates …"""
    completion_packets: int = 2
    """… plus so many packet times at the slowest link on its way."""
    completion_floor_s: float = 0.01
    """Messages that the links could carry in less are not judged: waking a thread would decide."""
    completion_rtt_s: float = 0.002
    """Messages on ways with longer round trips are not judged: there TCP's own start decides."""
    identity_deviation: float = 0.005
    """|bytes at a link's class / bytes that the sockets sent through it - 1|."""
    identity_slack_bytes: int = 1024
    """Allowed besides per connection: address resolution and handshakes are in no socket's count."""
    around_floor_bytes: int = 65_536
    """Of a job: what a node may move without its link, through memory, the control network or its loopback, so that
    processes can meet (some kB for each); …"""
    around_share: float = 0.01
    """… or this share of what its link's interface carried, if that is more: less moves no result."""
    degraded_factor: float = 3.0
    """Up to so many times a threshold a run is degraded; beyond it, invalid."""


THRESHOLDS = Thresholds()
