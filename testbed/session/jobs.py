"""A node's part in one run: endpoint, role, barrier, result."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from testbed.exchange.choose import ENDPOINTS, Way, endpoint_for
from testbed.exchange.endpoint import TcpEndpoint
from testbed.exchange.loop import LoopEndpoint
from testbed.exchange.multicast.multicaster import Multicaster
from testbed.fabric.base import DATA_PORT, MULTICAST_PORT
from testbed.fabric.host import DataNetwork, HostClock, HostNode
from testbed.messages.part import Part
from testbed.session.garbage import seldom_collected
from testbed.session.lines import Lines
from testbed.session.message_sizes import expected_bytes, most_bytes, unsent_bytes
from testbed.session.traffic_node import Traffic
from testbed.train.job import Job
from testbed.train.peers import exchange_kind
from testbed.train.roles import role

if TYPE_CHECKING:
    from testbed.record.exporter import Exporter

CONNECT_S = 30.0
GREETING_S = 120.0
"""Workers connect, and introduce themselves once they are prepared: that may take them so long."""


@dataclass
class Assignment:
    """A job, or a part of a trace, and what its node needs to do it."""

    job: Job | Part
    role: str
    peers: dict[int, str]
    """Names of all peers by number."""
    addresses: dict[int, str]
    """Data addresses by number."""
    labels: dict[str, str]
    lines: Lines
    inbox: queue.SimpleQueue[dict[str, Any]]
    exporter: Exporter
    flows: dict[str, Any] = field(default_factory=dict)
    """What ``Traffic`` is made from."""
    clock: HostClock = field(default_factory=HostClock)
    traffic: Traffic | None = None
    node: HostNode | None = None

    @classmethod
    def from_json(
        cls,
        message: dict[str, Any],
        lines: Lines,
        inbox: queue.SimpleQueue[dict[str, Any]],
        exporter: Exporter,
    ) -> Assignment:
        """Read a ``job`` message."""
        return cls(
            job=_task(message),
            role=message["role"],
            peers={int(number): name for number, name in message["peers"].items()},
            addresses={int(number): where for number, where in message["addresses"].items()},
            labels=message["labels"],
            lines=lines,
            inbox=inbox,
            exporter=exporter,
            flows=message["traffic"],
        )

    def record(self, event: dict[str, object]) -> None:
        """Send an event to the session and show it to the exporter."""
        self.lines.send("event", event=event)
        self.exporter.observe(event)

    def burst(self, record: dict[str, Any]) -> None:
        """Send what came of cross traffic to the session."""
        self.lines.send("burst", record=record)

    def link(self, sample: dict[str, Any]) -> None:
        """Take in what the agent saw on this node's link, or on another one on its way."""
        if sample["link"] == self.job.node:
            self.exporter.link(sample)
        if self.node is not None and sample["to_s"] > sample["from_s"]:
            asked = sample["asked_bits"] / (sample["to_s"] - sample["from_s"])
            self.node.rates_bits[sample["link"], sample["direction"]] = asked


def run_assignment(assignment: Assignment) -> None:
    """Take part in cross traffic, and, but for a host, in the training."""
    assignment.exporter.begin(assignment.labels)
    assignment.traffic = Traffic(assignment.flows, assignment.clock, assignment.burst)
    if assignment.role == "host":
        assignment.lines.send("ready")
        await_start(assignment)
    elif isinstance(assignment.job, Part):
        from testbed.session.play_node import play

        play(assignment, assignment.job)
    else:
        _train(assignment, assignment.job)


def _task(message: dict[str, Any]) -> Job | Part:
    return Part.from_json(message["part"]) if "part" in message else Job.from_json(message["job"])


def _train(assignment: Assignment, job: Job) -> None:
    """Connect, prepare, report ready, wait for t0, run, report done."""
    way = _way(job, assignment.role)
    endpoint = ENDPOINTS[way](
        job.peer,
        job.run,
        names=assignment.peers,
        addresses=assignment.addresses,
        clock=assignment.clock.seconds,
        silence_s=job.peer_timeout_s,
        greeting_s=GREETING_S,
        most_bytes=most_bytes(job),
        lockstep=exchange_kind(job).lockstep,
        unsent_bytes=unsent_bytes(job),
    )
    node = assignment.node = HostNode(
        job.node, job.seed, endpoint, assignment.clock, assignment.record,
        DataNetwork(job.peer, assignment.peers, assignment.addresses),
    )  # fmt: skip
    multicaster = None
    try:
        multicaster = _multicaster(assignment, job, endpoint)
        _connect(assignment, job, endpoint)
        played = role(node, job, assignment.role)
        played.prepare()
        with seldom_collected():
            assignment.lines.send("ready")
            await_start(assignment)
            summary = played.run()
        carried = node.carried()
        node.close()
        assignment.lines.send(
            "done",
            summary=summary,
            counters=counters(assignment, endpoint),
            multicast=None if multicaster is None else _counted(assignment, multicaster),
            strangers=endpoint.strangers,
            excuses=endpoint.excuses,
            endpoint=way,
            interface=None if carried is None else carried.to_json(),
        )
    except BaseException:
        if multicaster is not None:
            multicaster.abandon()
        raise
    finally:
        endpoint.close()
        node.close()


def counters(assignment: Assignment, endpoint: TcpEndpoint | LoopEndpoint) -> dict[str, Any]:
    """What the kernel counted on the connection with each peer, by its name."""
    counted = endpoint.counters().items()
    return {assignment.peers[peer]: one.to_json() for peer, one in counted}


def _way(job: Job, role: str) -> Way:
    """Threads or one loop, by whom this node has connections with and how much is sent over them."""
    kind = exchange_kind(job)
    if kind.multicasts or not kind.lockstep:
        return (
            "threads"  # one of them multicasts, or several activities send while another receives
        )
    if kind.server is None:
        peers = job.workers - 1
    else:
        peers = job.workers if role == "server" else job.servers
    return endpoint_for(peers, expected_bytes(job))


def _multicaster(
    assignment: Assignment, job: Job, endpoint: TcpEndpoint | LoopEndpoint
) -> Multicaster | None:
    """What carries a worker's messages to groups, where the exchange has any."""
    multicasts = exchange_kind(job).multicasts and assignment.role == "worker"
    if not multicasts or not isinstance(endpoint, TcpEndpoint):
        return None
    endpoint.multicaster = Multicaster(
        job.peer,
        job.run,
        names=assignment.peers,
        clock=assignment.clock.seconds,
        silence_s=job.peer_timeout_s,
        addresses={peer: assignment.addresses[peer] for peer in job.worker_peers()},
        port=MULTICAST_PORT,
        most_bytes=most_bytes(job),
        deliver=endpoint.deliver,
    )
    return endpoint.multicaster


def _counted(assignment: Assignment, multicaster: Multicaster) -> dict[str, Any]:
    """What was multicast, peers by name."""
    counted = multicaster.counters().to_json()
    named = {assignment.peers[peer]: amount for peer, amount in counted["to"].items()}
    return {**counted, "to": named}


def _connect(assignment: Assignment, job: Job, endpoint: TcpEndpoint | LoopEndpoint) -> None:
    """Servers listen; workers connect to them. Without servers everybody listens, and connects to those before it."""
    addresses = assignment.addresses
    alone = exchange_kind(job).server is None
    if alone or assignment.role == "server":
        endpoint.listen(addresses[job.peer], DATA_PORT)
    if assignment.role == "worker":
        earlier = [peer for peer in job.worker_peers() if peer < job.peer]
        for peer in earlier if alone else job.server_peers():
            endpoint.connect(peer, addresses[peer], DATA_PORT, CONNECT_S)


def await_start(assignment: Assignment) -> None:
    """The barrier: everyone waits until the same instant of the host's clock."""
    message = assignment.inbox.get()
    if message["type"] != "start":
        raise RuntimeError(f"expected 'start' on the control network, got {message['type']!r}")
    assignment.clock.t0_ns = message["t0_ns"]
    assert assignment.traffic is not None
    assignment.traffic.start()
    if (left := -assignment.clock.now()) > 0:
        time.sleep(left)
