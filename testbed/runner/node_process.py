"""A node's process: ``python -m testbed.runner.node_process --name worker-0 --control
10.0.0.1:7077``; and its parts in training, in replays of traces, and in ``testbed replay``.

It lives for a whole ``testbed run`` (torch is imported once) and takes one job after the other over
the control network. When that connection closes, or the session reads nothing of it for
``UNREAD_S``, it ends: nothing survives its run.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.comm_trace.replay_role import NodeScript, ReplayRole
from testbed.compress.kernels import compilation
from testbed.errors import NarrowsError, NodeLost
from testbed.fabric.host_node import DataNetwork, HostClock, HostNode, HostTask
from testbed.runner.bulk_flow import FlowSent, blast, serve
from testbed.runner.control_channel import HEARTBEAT_S, UNREAD_S, JsonLines
from testbed.runner.cross_traffic_node import NodeTraffic
from testbed.runner.experiment import expected_bytes, most_bytes, unsent_bytes
from testbed.runner.signals import seldom_collected
from testbed.topology import DATA_PORT, METRICS_PORT, MULTICAST_PORT, TOKEN_FILE
from testbed.training.job import Job
from testbed.training.membership import exchange_kind
from testbed.training.roles import Role, role
from testbed.transport import ENDPOINTS, EndpointKind, endpoint_for
from testbed.transport.endpoint import connect_patiently
from testbed.transport.epoll_endpoint import EpollEndpoint
from testbed.transport.frame import MAX_BODY
from testbed.transport.multicast.endpoint import Multicaster
from testbed.transport.threaded_endpoint import ThreadedEndpoint

if TYPE_CHECKING:
    from testbed.records.exporter import Exporter


CONNECT_S = 30.0
GREETING_S = 120.0
"""Workers connect, and introduce themselves once they are prepared: that may take them so long."""
_BESIDE = 4096
"""Room for what is not a message of the trace."""


@dataclass
class Assignment:
    """A job, or a part of a trace, and what its node needs to do it."""

    job: Job | NodeScript
    role: str
    peers: dict[int, str]
    """Names of all peers by number."""
    addresses: dict[int, str]
    """Data addresses by number."""
    labels: dict[str, str]
    lines: JsonLines
    inbox: queue.SimpleQueue[dict[str, Any]]
    exporter: Exporter
    ahead_ns: int = 0
    """Nanoseconds by which this host is ahead of the session's (monotonic)."""
    flows: dict[str, Any] = field(default_factory=dict)
    """Flows from which ``NodeTraffic`` is made."""
    clock: HostClock = field(default_factory=HostClock)
    traffic: NodeTraffic | None = None
    node: HostNode | None = None

    @classmethod
    def from_json(
        cls,
        message: dict[str, Any],
        lines: JsonLines,
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
            ahead_ns=message.get("ahead_ns", 0),
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
            rate_bits = sample["asked_bits"] / (sample["to_s"] - sample["from_s"])
            self.node.rates_bits[sample["link"], sample["direction"]] = rate_bits


def run_assignment(assignment: Assignment) -> None:
    """Take part in cross traffic, and, but for a host, in the training."""
    assignment.exporter.begin(assignment.labels)
    assignment.traffic = NodeTraffic(assignment.flows, assignment.clock, assignment.burst)
    if assignment.role == "host":
        _await_others(assignment, assignment.traffic)
    else:
        _play_role(assignment, assignment.job, assignment.traffic)


def _await_others(assignment: Assignment, traffic: NodeTraffic) -> None:
    """Say that this node is ready for its run, once it would receive every flow to it, and wait for
    t0."""
    traffic.await_sinks()
    assignment.lines.send("ready", run=assignment.labels["run"])
    await_start(assignment)


def _task(message: dict[str, Any]) -> Job | NodeScript:
    if "part" in message:
        return NodeScript.from_json(message["part"])
    return Job.from_json(message["job"])


def _play_role(assignment: Assignment, job: Job | NodeScript, traffic: NodeTraffic) -> None:
    """Connect, prepare, report ready, wait for t0, run, report done."""
    connections, network = _connections(job, assignment.role), None
    endpoint = ENDPOINTS[connections.kind](
        job.peer,
        job.run,
        names=assignment.peers,
        addresses=assignment.addresses,
        clock=assignment.clock.seconds,
        silence_s=job.peer_timeout_s,
        greeting_s=GREETING_S,
        most_bytes=connections.most_bytes,
        lockstep=connections.lockstep,
        unsent_bytes=connections.unsent_bytes,
        ahead_ns=assignment.ahead_ns,
    )
    if isinstance(job, Job):
        network = DataNetwork(job.peer, assignment.peers, assignment.addresses)
    node = assignment.node = HostNode(
        job.node, job.seed, endpoint, assignment.clock, assignment.record, network
    )
    multicaster = None
    try:
        multicaster = _multicaster(assignment, job, endpoint)
        if connections.listens:
            endpoint.listen(assignment.addresses[job.peer], DATA_PORT)
        for peer in connections.connects_to:
            endpoint.connect(peer, assignment.addresses[peer], DATA_PORT, CONNECT_S)
        played: Role = (
            ReplayRole(node, job)
            if isinstance(job, NodeScript)
            else role(node, job, assignment.role)
        )
        if isinstance(job, Job) and not job.sizes:
            compilation.all()  # any may be needed in a later step; virtual time can wait for it
        played.prepare()
        with seldom_collected():
            _await_others(assignment, traffic)
            summary = played.run()
        carried = node.carried()
        node.close()
        assignment.lines.send(
            "done",
            summary=summary,
            counters=counters(assignment, endpoint),
            multicast=None if multicaster is None else _multicast_counts(assignment, multicaster),
            strangers=endpoint.rejected_connections,
            excuses=endpoint.wait_notice_bytes,
            endpoint=connections.kind,
            interface=None if carried is None else carried.to_json(),
        )
    except BaseException:
        if multicaster is not None:
            multicaster.abandon()
        raise
    finally:
        endpoint.close()
        node.close()


class _Connections(NamedTuple):
    """How a node is connected with its peers; limits as ``SocketEndpoint`` takes them."""

    kind: EndpointKind
    listens: bool
    connects_to: Sequence[int]
    most_bytes: int
    lockstep: bool = True
    unsent_bytes: int | None = None


def _connections(job: Job | NodeScript, role: str) -> _Connections:
    """Servers listen; workers connect to them. Without servers everybody listens, and connects to
    those before it. Of two partners in a trace, the one with the lower number listens."""
    if isinstance(job, NodeScript):
        earlier = [peer for peer in job.partners if peer < job.peer]
        listens, most = len(earlier) < len(job.partners), job.most_bytes + _BESIDE
        return _Connections("threads", listens, earlier, min(MAX_BODY, most))
    kind = exchange_kind(job)
    alone, connects_to = kind.server is None, list[int]()
    if role == "worker":
        earlier = [peer for peer in job.worker_peers() if peer < job.peer]
        connects_to = earlier if alone else list(job.server_peers())
    return _Connections(
        _endpoint_kind(job, role),
        alone or role == "server",
        connects_to,
        most_bytes(job),
        kind.lockstep,
        unsent_bytes(job),
    )


def counters(assignment: Assignment, endpoint: ThreadedEndpoint | EpollEndpoint) -> dict[str, Any]:
    """Return the kernel's counts on the connection with each peer, keyed by its name."""
    peers = endpoint.counters().items()
    return {assignment.peers[peer]: counts.to_json() for peer, counts in peers}


def _endpoint_kind(job: Job, role: str) -> EndpointKind:
    """Threads or one loop, by a node's connections and how much is sent over them."""
    kind = exchange_kind(job)
    # one of them multicasts, or several activities send while another receives
    if kind.multicasts or not kind.lockstep:
        return "threads"
    if kind.server is None:
        peers = job.workers - 1
    else:
        peers = job.workers if role == "server" else job.servers
    return endpoint_for(peers, expected_bytes(job))


def _multicaster(
    assignment: Assignment, job: Job | NodeScript, endpoint: ThreadedEndpoint | EpollEndpoint
) -> Multicaster | None:
    """Return a worker's multicaster; None where the exchange has none."""
    if not isinstance(job, Job) or not isinstance(endpoint, ThreadedEndpoint):
        return None
    if not exchange_kind(job).multicasts or assignment.role != "worker":
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


def _multicast_counts(assignment: Assignment, multicaster: Multicaster) -> dict[str, Any]:
    """Return the counts of what was multicast, peers by name."""
    counts = multicaster.counters().to_json()
    named = {assignment.peers[peer]: amount for peer, amount in counts["to"].items()}
    return {**counts, "to": named}


class Superseded(Exception):
    """The next job came, ``message``, where this one was to start: its trial has ended."""

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__("the next job came before this one's start")
        self.message = message


def await_start(assignment: Assignment) -> None:
    """The barrier: everyone waits until the same instant of the host's clock.

    Raises Superseded for another job: that of the next trial, where a host was ready, after its
    restart, too late for this one.
    """
    message = assignment.inbox.get()
    if message["type"] == "job":
        raise Superseded(message)
    if message["type"] != "start":
        raise RuntimeError(f"expected 'start' on the control network, got {message['type']!r}")
    assignment.clock.t0_ns = message["t0_ns"]
    assert assignment.traffic is not None
    assignment.traffic.start()
    if (left := -assignment.clock.now()) > 0:
        time.sleep(left)


TOKEN_VARIABLE = "NARROWS_TOKEN"


class NodeProcess:
    """Takes messages from the session and does what they say, one job at a time."""

    def __init__(self, name: str, role: str, lines: JsonLines, *, trains: bool = True) -> None:
        from testbed.records.exporter import Exporter

        self.name, self.lines = name, lines
        self.trains = trains and role != "host"
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.assignment: Assignment | None = None
        self.kept = False
        """True to stay when the session ends, for inspection."""
        self.exporter = Exporter({"node": name})
        self.exporter.serve(lines.socket.getsockname()[0], METRICS_PORT)

    def serve(self) -> None:
        """Until the session is gone."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        if self.trains:
            import torch

            torch.set_num_threads(1)
        self.lines.send("up")
        while True:
            self._do(self.inbox.get())

    def _do(self, message: dict[str, Any]) -> None:
        try:
            if message["type"] == "job":
                self._take(message)
            elif message["type"] == "flow":
                self.lines.send("done", summary=run_flows(message))
        except NarrowsError as error:
            self._report(error, str(error))
        except Exception as error:  # the session decides; here it would only be lost
            sys.stderr.write(traceback.format_exc())
            self._report(error, f"{type(error).__name__}: {error}")

    def _take(self, message: dict[str, Any]) -> None:
        """Do a job, or that which supersedes it. Flows of an earlier trial are over by then."""
        if self.assignment is not None and (earlier := self.assignment.traffic) is not None:
            earlier.end_sources()
            earlier.end_sinks({})
        self.assignment = Assignment.from_json(message, self.lines, self.inbox, self.exporter)
        try:
            run_assignment(self.assignment)
        except Superseded as later:
            following = later.message
        else:
            return
        self._take(following)

    def _end_traffic(self, message: dict[str, Any]) -> None:
        """In a thread of its own: the role may still work, and links are heard of meanwhile."""
        traffic = self.assignment.traffic if self.assignment is not None else None
        try:
            if traffic is not None and message["part"] == "sources":
                traffic.end_sources()
            elif traffic is not None:
                traffic.end_sinks(message["tests"])
            self.lines.send("ended", part=message["part"])
        except Exception as error:
            self._report(error, f"{type(error).__name__}: {error}")

    def _report(self, error: Exception, text: str) -> None:
        about = {}
        if isinstance(error, NodeLost):
            about = {"node": error.node, "step": error.step, "phase": error.phase}
        code = getattr(error, "exit_code", 1)
        self.lines.send("error", message=text, error=type(error).__name__, exit_code=code, **about)

    def _read(self) -> None:
        """Control messages; those about links are taken in at once, the others in order."""
        try:
            for message in self.lines:
                if message["type"] == "keep":
                    self.kept = True
                elif message["type"] == "end":
                    HostTask(partial(self._end_traffic, message))
                elif message["type"] != "link":
                    self.inbox.put(message)
                elif self.assignment is not None:
                    self.assignment.link(message["sample"])
        finally:
            if self.kept:
                threading.Event().wait()
            os._exit(1)  # the session is gone, and a role may be blocked anywhere

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            with suppress(OSError):  # the reader notices that the session is gone
                self.lines.send("alive")


def main(arguments: Sequence[str] | None = None) -> None:
    """Connect to the session and serve it."""
    parser = argparse.ArgumentParser(prog="testbed.runner.node_process")
    parser.add_argument("--name", required=True)
    parser.add_argument("--role", default="worker")
    parser.add_argument("--control", required=True, metavar="HOST:PORT")
    parser.add_argument("--untrained", action="store_true", help="nothing will be trained")
    options = parser.parse_args(arguments)
    host, _, port = options.control.rpartition(":")
    session = connect_patiently((host, int(port)), CONNECT_S, CONNECT_S)
    lines = JsonLines(session, patience_s=UNREAD_S)
    lines.send("hello", node=options.name, token=_token())
    NodeProcess(options.name, options.role, lines, trains=not options.untrained).serve()


def _token() -> str:
    """Read the session's secret: from the environment, or from a file of the container's."""
    return os.environ.get(TOKEN_VARIABLE) or TOKEN_FILE.read_text()


def run_flows(message: dict[str, Any]) -> dict[str, int | None]:
    """Send to and receive from the switch until ``stop_at_ns``; sending begins at ``begin_at_ns``.

    Returns payload bytes each way, and the least round-trip time to the switch before (µs; None:
    not known).
    """
    sent, received, stop_at_ns = FlowSent(0), 0, message["stop_at_ns"]

    def up() -> None:
        nonlocal sent
        sent = blast(message["switch"], message["switch_port"], stop_at_ns, message["begin_at_ns"])

    def down() -> None:
        nonlocal received
        received = serve(message["address"], DATA_PORT, stop_at_ns)

    for task in [HostTask(up), HostTask(down)]:
        task.join()
    return {"up": sent.bytes, "down": received, "least_rtt_us": sent.least_rtt_us}


if __name__ == "__main__":
    main()
