"""Who is waited for, and since when nothing has been heard of them.

Bytes of a peer's messages are a sign of life, as they come or as it takes in what it is sent,
however slowly. One that waits itself for a third has none to send. It says so now and then
(``Kind.WAIT_NOTICE``), and for how long whom it waits for has been silent: so whoever is at the end
of such a chain does not take it for lost, and it is the one next to a lost peer that finds out. If
nobody in a circle has anything to say, all of them know at about the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from testbed.transport.connection import LOOKS, FramedSocket

PATIENCE = 1.5
"""Times the timeout: for peers that say that they wait themselves, who know first."""


class LivenessMonitor:
    """The waits of one node. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._looked_s = 0.0

    def due(self, timeout_s: float, now_s: float) -> bool:
        """Return whether the last look was a while ago."""
        return now_s >= self._looked_s + timeout_s / LOOKS

    def look(self, awaited: Collection[int], begun_s: float, now_s: float) -> None:
        """``awaited`` are waited for since ``begun_s``, or since the looks before."""
        self._looked_s = now_s
        self._since = {peer: self._since.get(peer, begun_s) for peer in awaited}

    def on_message(self, peer: int) -> None:
        """A message of it: if there is to be another, the wait for it begins anew."""
        self._since.pop(peer, None)

    def lost(self, peers: Mapping[int, FramedSocket], timeout_s: float, now_s: float) -> list[int]:
        """Those of whom nothing has been heard for too long."""
        return [
            peer
            for peer in self._since
            if self._silent_s(peer, peers, now_s) >= self._limit_s(peer, peers, timeout_s, now_s)
        ]

    def next_check_s(
        self, peers: Mapping[int, FramedSocket], timeout_s: float, now_s: float
    ) -> float:
        """Until the next look: a while, or less if somebody will be lost before."""
        left_s = [
            self._limit_s(peer, peers, timeout_s, now_s) - self._silent_s(peer, peers, now_s)
            for peer in self._since
        ]
        return max(0.0, min([timeout_s / LOOKS, *left_s]))

    def waits_long(self, timeout_s: float, now_s: float) -> bool:
        """Return whether somebody is waited for so long that those who wait for this node are to be
        told."""
        return any(now_s >= since_s + timeout_s / LOOKS for since_s in self._since.values())

    def silent_s(self, peers: Mapping[int, FramedSocket], now_s: float) -> float:
        """Since when nothing has been heard of the one who has been silent for longest."""
        return max((self._silent_s(peer, peers, now_s) for peer in self._since), default=0.0)

    def _silent_s(self, peer: int, peers: Mapping[int, FramedSocket], now_s: float) -> float:
        last_s = self._since[peer]
        if (stream := peers.get(peer)) is not None:
            last_s = max(last_s, stream.last_progress_s(now_s), stream.wait_notice[1])
        return now_s - last_s

    def _limit_s(
        self, peer: int, peers: Mapping[int, FramedSocket], timeout_s: float, now_s: float
    ) -> float:
        stream = peers.get(peer)
        waits = stream is not None and now_s - stream.wait_notice[0] < 2 * timeout_s / LOOKS
        return timeout_s * PATIENCE if waits else timeout_s
