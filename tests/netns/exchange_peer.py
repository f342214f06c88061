"""A node of an exchange, in a process of its own (``exchange_nodes``), without torch, in any namespace.

Does rounds as a run's nodes do, and says on standard output what becomes of them, an object a line. At the phase of
the step that the plan names it says ``halted``, and waits for a line on standard input where it can. Before the step of
a phase that lasts it says ``near``, and waits, so that the phase can be made to last for long enough.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from bucketed_rounds import SUFFIX, BucketedRounds

from testbed.errors import NarrowsError
from testbed.exchange.base import ExchangeSpec, Membership, ServerSide, WorkerSide, exchanges
from testbed.fabric.host_node import HostClock, HostNode
from testbed.topology import DATA_PORT, MULTICAST_PORT
from testbed.transport import ENDPOINTS
from testbed.transport.multicast.endpoint import Multicaster
from testbed.transport.threaded_endpoint import ThreadedEndpoint

SHORT = 1 << 14
"""Values of the rounds in which nothing is to happen."""
SOON_S = 0.1
"""After the beginning of a phase that lasts."""
SAMPLES = 60
"""Of a coded exchange's mini-batch."""
LASTING = ("send", "receive")
"""Phases that take their time; in all others a node stands still."""


def say(kind: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, "at_s": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


class Halts:
    """Where the plan has the process stop."""

    def __init__(self, step: int, phase: str) -> None:
        self._where = step, phase
        self._over = False

    def at(self, step: int, phase: str) -> None:
        """Stop here until a line comes in."""
        if (step, phase) == self._where:
            say("halted", within=True)
            sys.stdin.readline()

    def near(self, step: int) -> None:
        """A step begins: if the phase is one of it that lasts, wait for a line."""
        if step == self._where[0] and self._where[1] in LASTING:
            say("near")
            sys.stdin.readline()

    def during(self, step: int, phase: str) -> None:
        """Say so while the phase that begins now goes on."""
        if (step, phase) == self._where:
            threading.Timer(SOON_S, lambda: say("halted", within=not self._over)).start()

    def after(self, step: int, phase: str) -> None:
        """The phase is over: go no further before a line comes in."""
        if (step, phase) == self._where and not self._over:
            self._over = True
            sys.stdin.readline()


def vector(rank: int, step: int, values: int) -> Any:
    """What worker ``rank`` sends in ``step``, where a mean is made of everybody's."""
    return np.random.default_rng((rank, step)).standard_normal(values, np.float32)


class Rounds:
    """Steps of an exchange, whose results are known beforehand."""

    def __init__(self, plan: dict[str, Any], halts: Halts, kind: ExchangeSpec) -> None:
        self._plan, self._halts, self._kind = plan, halts, kind

    def values(self, step: int) -> int:
        return int(self._plan["values"]) if step == self._plan["long"] else SHORT

    def vector(self, rank: int, step: int) -> Any:
        """Out of lockstep all values are rank + 1 + step, which says whose it is."""
        if not self._kind.lockstep:
            return np.full(self.values(step), rank + 1 + step, np.float32)
        return vector(rank, step, self.values(step))

    def work(self, side: WorkerSide, rank: int) -> None:
        step = 0
        while step != side.last_step:
            step += 1
            time.sleep(self._plan["pace_s"])
            self._halts.near(step)
            self._halts.at(step, "before")
            self._halts.during(step, "send")
            ticket = side.submit(step, 0, self._payload(side, rank, step))
            self._halts.after(step, "send")
            self._halts.during(step, "receive")
            update = ticket.wait()
            self._halts.after(step, "receive")
            parts = [part.body for part in update.parts] or [update.payload]
            mean = np.mean([np.frombuffer(part, np.float32) for part in parts], 0)
            self._check(mean, step)
            self._halts.at(step, "aggregate")
            step += len(update.later_updates)
            say("step", step=step, crc=zlib.crc32(mean))
        side.close()

    def serve(self, side: ServerSide) -> None:
        last, self._told = self._plan["steps"], 0
        for step in range(1, last + 1):
            self._halts.near(step)
            self._halts.at(step, "before")
            self._halts.during(step, "receive")
            came = side.gather(step, 0)
            self._halts.after(step, "receive")
            self._halts.at(step, "aggregate")
            mean = np.mean([np.frombuffer(one.body, np.float32) for one in came], 0)
            self._halts.during(step, "send")
            side.broadcast(step, 0, mean.tobytes(), last=step == last)
            self._halts.after(step, "send")
            say("step", step=step, crc=zlib.crc32(mean))
            for lost in getattr(side, "lost", [])[self._told :]:
                self._told += 1
                say("lost", node=lost.node, step=lost.step, phase=lost.phase)
        side.await_goodbyes(last)

    def _payload(self, side: WorkerSide, rank: int, step: int) -> Any:
        """Vectors; or blocks, which are the same wherever they are made."""
        if self._kind.unit != "blocks":
            return self.vector(rank, step).tobytes()
        blocks = [
            np.random.default_rng((part.start, step)).integers(
                -999, 999, self.values(step), np.int32
            )
            for part in side.samples(SAMPLES)  # type: ignore[attr-defined]
        ]
        return np.stack(blocks).data.cast("B")

    def _check(self, mean: Any, step: int) -> None:
        if self._kind.unit == "blocks":
            return  # compared with others' and with an undisturbed run's
        if not self._kind.lockstep:
            if len(set(mean)) != 1:
                raise AssertionError(f"step {step}: {mean[:4]} of {mean.shape}")
            return
        expected = np.mean([self.vector(rank, step) for rank in range(self._plan["workers"])], 0)
        if mean.shape != expected.shape or not np.allclose(mean, expected, atol=1e-6):
            raise AssertionError(f"step {step}: {mean[:4]} of {mean.shape}, not {expected[:4]}")


def take_part_as(plan: dict[str, Any]) -> None:
    """The node that ``plan`` describes, from its endpoint on to what it has counted."""
    names = {int(number): name for number, name in plan["names"].items()}
    kind = exchanges.get(plan["exchange"].removesuffix(SUFFIX))
    clock = HostClock()
    endpoint: Any = ENDPOINTS[plan["way"]](
        plan["own"],
        plan["run"],
        names=names,
        addresses={int(peer): address for peer, address in plan["addresses"].items()},
        clock=clock.seconds,
        silence_s=plan["timeout_s"],
        most_bytes=1 << 27,
        lockstep=kind.lockstep,
    )
    if kind.multicasts:
        multicast(endpoint, plan, names, clock)
    node = HostNode(names[plan["own"]], 1, endpoint, clock, list[object]().append)
    try:
        ended_well = guarded(lambda: take_part(plan, names, node))
        if kind.multicasts and not ended_well:
            endpoint.multicaster.abandon()
        datagrams = endpoint.multicaster.counters().strangers if kind.multicasts else 0
        say("counts", strangers=endpoint.rejected_connections, datagrams=datagrams)
    finally:
        endpoint.close()


def multicast(
    endpoint: ThreadedEndpoint, plan: dict[str, Any], names: dict[int, str], clock: HostClock
) -> None:
    """All nodes are workers."""
    endpoint.multicaster = Multicaster(
        plan["own"],
        plan["run"],
        names=names,
        clock=clock.seconds,
        silence_s=plan["timeout_s"],
        addresses={int(peer): address for peer, address in plan["addresses"].items()},
        port=MULTICAST_PORT,
        most_bytes=1 << 27,
        deliver=endpoint.deliver,
    )


def take_part(plan: dict[str, Any], names: dict[int, str], node: HostNode) -> None:
    kind, servers = exchanges.get(plan["exchange"].removesuffix(SUFFIX)), plan["servers"]
    workers = list(range(servers, servers + plan["workers"]))
    own, addresses = plan["own"], plan["addresses"]
    peers = Membership(
        own, list(range(servers)), workers, names, plan["timeout_s"], plan["options"], plan["steps"]
    )
    alone, serves = kind.server is None, own < servers
    if alone or serves:
        node.endpoint.listen(addresses[str(own)], DATA_PORT)
    if not serves:
        for peer in [peer for peer in workers if peer < own] if alone else range(servers):
            node.endpoint.connect(peer, addresses[str(peer)], DATA_PORT, 60.0)
    halts = Halts(plan["halt_step"], plan["halt_phase"])
    rounds: Any = Rounds(plan, halts, kind)
    if plan["exchange"].endswith(SUFFIX):
        rounds = BucketedRounds(plan, halts, node, say)
    if serves:
        assert kind.server is not None
        hub = kind.server(node, peers)
        hub.await_workers()
        begin()
        rounds.serve(hub)
    else:
        side = kind.worker(node, peers)
        side.connect()
        begin()
        rounds.work(side, workers.index(own))


def begin() -> None:
    """As the barrier of a run."""
    say("ready")
    sys.stdin.readline()


def guarded(work: Callable[[], None]) -> bool:
    """Say how it ended; whether it ended well."""
    try:
        work()
        say("done")
        return True
    except NarrowsError as error:
        about = {name: getattr(error, name, None) for name in ("node", "step", "phase")}
        say("error", type=type(error).__name__, message=str(error), **about)
        return False
