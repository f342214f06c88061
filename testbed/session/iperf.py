"""iperf3 as cross traffic: its command lines, and what its JSON says of one test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from testbed.scenario.traffic import Flow

PROGRAM = "iperf3"
DATAGRAM_BYTES = 1400
"""Payload of a UDP packet."""
_DATAGRAM_HEADERS = 42
"""Ethernet 14, IPv4 20, UDP 8."""
_LONGEST_S = 86_400
"""The longest test that iperf3 accepts; a test is ended by a signal, since iperf3 counts whole seconds."""
_CONNECT_MS = 3_000
_ENDED = "interrupt"
"""How iperf3's message begins when a signal has ended it."""


@dataclass(frozen=True, slots=True)
class FlowEnds:
    """One flow as its two nodes need it. The rate of a UDP flow is meant at the link layer."""

    flow: Flow
    source_address: str
    sink_address: str
    port: int

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> FlowEnds:
        """Read what ``to_json`` wrote."""
        return cls(**{**given, "flow": Flow(**given["flow"])})


@dataclass(frozen=True, slots=True)
class Sent:
    """What a client says of one test. ``retransmits`` of TCP, ``packets`` of UDP."""

    bytes: int = 0
    retransmits: int = 0
    packets: int = 0
    cookie: str | None = None
    """Marks the test on both sides."""
    error: str | None = None
    """What went wrong; that it was ended on time is no error."""


def server(ends: FlowEnds) -> list[str]:
    """The sink's command: it takes one test after the other."""
    where = ["-B", ends.sink_address, "-p", str(ends.port)]
    return [PROGRAM, "-s", *where, "-J", "--forceflush"]


def client(ends: FlowEnds) -> list[str]:
    """The source's command: a test without end."""
    flow = ends.flow
    where = ["-c", ends.sink_address, "-p", str(ends.port), "-B", ends.source_address]
    common = ["-J", "-i", "0", "-t", str(_LONGEST_S), "--connect-timeout", str(_CONNECT_MS)]
    if flow.kind == "udp":
        each = payload_bits((flow.rate_bits or 0) // flow.streams)
        how = ["-u", "-b", str(each), "-l", str(DATAGRAM_BYTES)]
    else:
        how = ["-C", flow.congestion] if flow.congestion else []
    return [PROGRAM, *where, *common, *how, "-P", str(flow.streams)]


def payload_bits(link_bits: int) -> int:
    """The payload rate of UDP packets that take ``link_bits`` at the link layer; at least 1, 0 is no limit."""
    return max(1, link_bits * DATAGRAM_BYTES // (DATAGRAM_BYTES + _DATAGRAM_HEADERS))


def sent(output: str) -> Sent:
    """Read a client's output."""
    try:
        told = json.loads(output)
    except ValueError:
        return Sent(error=output.strip() or "it said nothing")
    error = told.get("error")
    if error is not None and error.startswith(_ENDED):
        error = None
    total = told.get("end", {}).get("sum_sent", {})
    return Sent(
        bytes=int(total.get("bytes", 0)),
        retransmits=int(total.get("retransmits", 0)),
        packets=int(total.get("packets", 0)),
        cookie=told.get("start", {}).get("cookie"),
        error=error,
    )


def received(told: dict[str, Any]) -> dict[str, Any] | None:
    """What a server says of one test: bytes, and of UDP packets, lost and jitter. None: there was no test.

    Not ``complete``: the client was killed, and what came in the last second is not counted.
    """
    total = told.get("end", {}).get("sum_received")
    parts = [total] if total else [part["sum"] for part in told.get("intervals", ())]
    if not parts:
        return None
    return {
        "cookie": told.get("start", {}).get("cookie"),
        "complete": bool(total),
        "bytes": sum(int(part.get("bytes", 0)) for part in parts),
        "packets": sum(int(part.get("packets", 0)) for part in parts),
        "lost": sum(int(part.get("lost_packets", 0)) for part in parts),
        "jitter_s": float(parts[-1].get("jitter_ms", 0.0)) / 1e3,
    }


def documents(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects that a server writes one after the other, each as soon as it is complete."""
    text: str | None = None
    for line in lines:
        if line.startswith("{"):  # what comes before is a remark, or broke off
            text = ""
        if text is None:
            continue
        text += line
        if line.startswith("}"):
            yield json.loads(text)
            text = None
