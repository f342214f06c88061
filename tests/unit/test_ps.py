"""The parameter-server exchange apart from training: order, buckets, errors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from virtual_links import LinkModel, network

from testbed.errors import InputError, NodeLost, WireError
from testbed.exchange.base import (
    Membership,
    ServerSide,
    TransferTiming,
    WorkerSide,
    exchanges,
    merge_timings,
    timing_of,
)
from testbed.exchange.parameter_server import PsServerExchange, PsWorkerExchange
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode
from testbed.node import Kind, Message

NAMES = {0: "server", 1: "worker-0", 2: "worker-1"}


class Bench:
    """A server and two workers without training."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        net = network(self.clock, dict.fromkeys(NAMES.values(), LinkModel(10e6, 10e6, 0.001)))
        self.nodes = [VirtualNode(VirtualEndpoint(net, n, NAMES[n]), 1) for n in NAMES]
        self.hub = PsServerExchange(self.nodes[0], self._peers(0))
        self.workers = [PsWorkerExchange(self.nodes[n], self._peers(n)) for n in (1, 2)]

    def run(self, *bodies: Callable[[], Any]) -> list[Any]:
        return list(self.clock.run({str(n): body for n, body in enumerate(bodies)}).values())

    def _peers(self, own: int) -> Membership:
        return Membership(own, (0,), (1, 2), NAMES, timeout_s=5.0)


def test_the_registry_knows_it_and_its_sides_keep_the_protocols() -> None:
    bench = Bench()
    worker: WorkerSide = bench.workers[0]
    server: ServerSide = bench.hub
    assert worker is not server
    assert exchanges.get("ps").worker is PsWorkerExchange
    with pytest.raises(InputError, match="unknown exchange 'pss'"):
        exchanges.get("pss")


def test_messages_come_by_rank_whoever_is_first() -> None:
    bench = Bench()

    def worker(rank: int, delay: float) -> Callable[[], bytes]:
        def body() -> bytes:
            bench.workers[rank].connect()
            bench.nodes[rank + 1].sleep_until(delay)
            ticket = bench.workers[rank].submit(1, 0, f"from {rank}".encode())
            return bytes(ticket.wait().payload)

        return body

    def server() -> list[bytes]:
        bench.hub.await_workers()
        gathered = [bytes(message.body) for message in bench.hub.gather(1, 0)]
        bench.hub.broadcast(1, 0, b"mean")
        return gathered

    results = bench.run(server, worker(0, 2.0), worker(1, 1.0))
    assert results == [[b"from 0", b"from 1"], b"mean", b"mean"]


def test_buckets_are_told_apart_whatever_the_order_of_waiting() -> None:
    bench = Bench()

    def worker(rank: int) -> Callable[[], list[bytes]]:
        def body() -> list[bytes]:
            tickets = [bench.workers[rank].submit(1, bucket, bytes([bucket])) for bucket in (0, 1)]
            return [bytes(ticket.wait().payload) for ticket in reversed(tickets)]

        return body

    def server() -> None:
        for bucket in (0, 1):
            messages = bench.hub.gather(1, bucket)
            bench.hub.broadcast(1, bucket, b"mean of " + bytes(messages[0].body))

    # workers submit one bucket after the other: both of bucket 0 come before any of bucket 1
    results = bench.run(server, worker(0), worker(1))
    assert results[1:] == [[b"mean of \1", b"mean of \0"]] * 2


def test_travel_tells_times_and_bytes() -> None:
    bench = Bench()

    def worker(rank: int) -> Callable[[], Any]:
        def body() -> Any:
            ticket = bench.workers[rank].submit(1, 0, bytes(1000))
            with pytest.raises(RuntimeError, match="after wait"):
                _ = ticket.travel
            ticket.wait()
            return ticket.travel

        return body

    def server() -> None:
        bench.hub.gather(1, 0)
        bench.hub.broadcast(1, 0, bytes(500))

    _, travel, _ = bench.run(server, worker(0), worker(1))
    assert (travel.bytes_up, travel.bytes_down) == (1040, 540)
    assert travel.start_s <= travel.sent_s < travel.first_s <= travel.last_s


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_buckets_together_last_from_the_first_begin_to_the_latest_end(order: tuple[int]) -> None:
    """A later one may be back before an earlier one; what came back while others left was not waited for."""
    timings = [
        TransferTiming(1.0, 2.0, 4.0, 9.0, 9.5, 100, 10),
        TransferTiming(2.0, 2.5, 3.5, 5.0, 5.5, 200, 20),
        TransferTiming(2.5, 4.5, 6.0, 7.0, 10.0, 300, 30),
    ]
    whole = TransferTiming(1.0, 3.5, 3.5, 9.0, 10.0, 600, 60)
    assert merge_timings([timings[at] for at in order]) == whole
    assert merge_timings([timings[order[0]]]) == timings[order[0]]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_step_of_several_messages_ends_with_the_latest(order: tuple[int]) -> None:
    times = [(3.0, 4.0, 8.0), (2.5, 7.0, 7.5), (5.0, 6.0, 6.5)]
    messages = [Message(Kind.UPDATE, 1, 0, 0, b"", 1.0, *times[at]) for at in order]
    whole = timing_of(1.0, 2.0, messages, 50, 60)
    assert whole == TransferTiming(1.0, 2.0, 2.5, 7.0, 8.0, 50, 60)
    assert timing_of(1.0, 9.0, messages, 50, 60) == TransferTiming(1.0, 9.0, 9.0, 9.0, 9.0, 50, 60)


def test_workers_learn_which_step_is_the_last() -> None:
    bench = Bench()

    def worker(rank: int) -> Callable[[], list[int | None]]:
        def body() -> list[int | None]:
            seen = []
            for step in (1, 2):
                bench.workers[rank].submit(step, 0, b"g").wait()
                seen.append(bench.workers[rank].last_step)
            bench.workers[rank].close()
            return seen

        return body

    def server() -> None:
        for step in (1, 2):
            bench.hub.gather(step, 0)
            bench.hub.broadcast(step, 0, b"u", last=step == 2)
        bench.hub.await_goodbyes(2)

    assert bench.run(server, worker(0), worker(1))[1:] == [[None, 2], [None, 2]]
    assert bench.hub.bytes_sent == sum(worker.bytes_received for worker in bench.workers)
    assert bench.hub.bytes_received == sum(worker.bytes_sent for worker in bench.workers)


def test_a_second_gradient_of_a_worker_is_refused() -> None:
    bench = Bench()

    def twice() -> None:
        for _ in range(2):
            bench.workers[0].submit(1, 0, b"g")

    with pytest.raises(WireError, match=r"worker-0 sent GRADIENT of step 1.*due from worker-1"):
        bench.run(lambda: bench.hub.gather(1, 0), twice)


def test_an_update_of_another_step_is_refused() -> None:
    bench = Bench()
    wrong = Message(Kind.UPDATE, 9, 0, 0, b"u")
    with pytest.raises(
        WireError, match=r"server sent UPDATE of step 9, bucket 0, while an update of step 1"
    ):
        bench.run(
            lambda: bench.nodes[0].endpoint.send([1], wrong),
            lambda: bench.workers[0].submit(1, 0, b"g").wait(),
        )


def test_the_silent_ones_are_named() -> None:
    bench = Bench()
    with pytest.raises(NodeLost, match="'worker-1' was lost at step 3") as lost:
        bench.run(lambda: bench.hub.gather(3, 0), lambda: bench.workers[0].submit(3, 0, b"g"))
    assert lost.value.step == 3


def test_a_broken_connection_is_blamed_on_its_peer() -> None:
    bench = Bench()

    def broken(timeout: float, awaited: object, waiting: object) -> Message:
        raise NodeLost("worker-0", None, "its connection was closed")

    bench.nodes[0].endpoint.receive = broken  # type: ignore[method-assign]
    with pytest.raises(
        NodeLost, match="'worker-0' was lost at step 3, while gathering: its connection"
    ):
        bench.run(lambda: bench.hub.gather(3, 0))


def test_a_silent_server_is_named_later_than_a_silent_worker() -> None:
    bench = Bench()
    with pytest.raises(NodeLost, match="at step 3"):
        bench.run(lambda: bench.workers[0].submit(3, 0, b"g").wait())
    assert bench.clock.now >= 1.25 * 5.0
