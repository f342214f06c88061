"""The virtual clock, its queues and links."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from virtual_links import LinkModel, lone_node, network

from testbed.errors import NodeLost
from testbed.fabric.sim.clock import Deadlock, VirtualClock, VirtualQueue
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.node import Kind, Message
from testbed.scenario.link_state import wire_bytes
from testbed.transport.frame import HEADER_BYTES


def test_activities_run_in_order_of_time_then_of_asking() -> None:
    clock, seen = VirtualClock(), []

    def body(name: str, *times: float) -> None:
        for time_s in times:
            clock.sleep_until(time_s)
            seen.append((clock.now, name))

    clock.run({"a": lambda: body("a", 1.0, 3.0), "b": lambda: body("b", 1.0, 2.0, 3.0)})
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "b"), (3.0, "a"), (3.0, "b")]


def test_only_one_activity_runs_at_a_time() -> None:
    clock, running, most = VirtualClock(), [0], [0]

    def body() -> None:
        for step in range(50):
            running[0] += 1
            most[0] = max(most[0], running[0])
            running[0] -= 1
            clock.sleep_until(step * 0.1)

    clock.run({str(number): body for number in range(20)})
    assert most == [1]


def test_a_queue_serves_those_who_wait_in_turn() -> None:
    clock, got = VirtualClock(), []
    queue: VirtualQueue[str] = VirtualQueue(clock, "letters")

    def taker(name: str) -> None:
        got.append((name, queue.get(), clock.now))

    def giver() -> None:
        for time_s, item in ((1.0, "x"), (2.0, "y")):
            clock.sleep_until(time_s)
            queue.put(item)

    clock.run({"first": lambda: taker("first"), "second": lambda: taker("second"), "g": giver})
    assert got == [("first", "x", 1.0), ("second", "y", 2.0)]


def test_a_queue_times_out_and_loses_nothing() -> None:
    clock = VirtualClock()
    queue: VirtualQueue[int] = VirtualQueue(clock, "numbers")

    def taker() -> tuple[float, int]:
        with pytest.raises(TimeoutError):
            queue.get(timeout=0.5)
        late = clock.now
        return late, queue.get(timeout=5.0)

    def giver() -> None:
        clock.sleep_until(0.75)
        queue.put(4)

    assert clock.run({"taker": taker, "giver": giver})["taker"] == (0.5, 4)
    assert clock.now == 0.75


def test_a_deadlock_says_who_waits_for_what() -> None:
    clock = VirtualClock()
    queue: VirtualQueue[int] = VirtualQueue(clock, "answers")
    with pytest.raises(Deadlock, match=r"asker waits for an item of answers"):
        clock.run({"asker": queue.get})


def test_the_first_error_ends_the_run_and_unwinds_the_others() -> None:
    clock = VirtualClock()
    closed = []

    def fail() -> None:
        clock.sleep_until(1.0)
        raise ValueError("at one")

    def wait() -> None:
        try:
            clock.sleep_until(9.0)
        finally:
            closed.append(clock.now)

    with pytest.raises(ValueError, match="at one"):
        clock.run({"fail": fail, "wait": wait})
    assert closed == [1.0]


def test_join_waits_and_raises() -> None:
    clock = VirtualClock()
    node = lone_node(clock)

    def well() -> None:
        node.sleep_until(2.0)

    def badly() -> None:
        raise KeyError("spawned")

    def body() -> float:
        node.spawn(well).join()
        with pytest.raises(KeyError, match="spawned"):
            node.spawn(badly).join()
        return node.now()

    assert clock.run({"main": body}) == {"main": 2.0}


def test_waiting_outside_an_activity_is_refused() -> None:
    with pytest.raises(RuntimeError, match="only an activity"):
        VirtualClock().sleep_until(1.0)


@pytest.mark.parametrize(("frame", "expected"), [(40, 106), (1448, 1514), (1449, 1581)])
def test_segments_carry_headers(frame: int, expected: int) -> None:
    assert wire_bytes(frame) == expected


def messages(links: dict[str, LinkModel], *sizes: int) -> list[Message]:
    """What arrives first to last at the first node of ``links`` when each other one sends so many bytes at 0."""
    clock = VirtualClock()
    net = network(clock, links)
    sink, *others = (VirtualEndpoint(net, number, name) for number, name in enumerate(links))

    def receive() -> list[Message]:
        return [sink.receive(60.0) for _ in others]

    def sender(number: int, size: int) -> Callable[[], int]:
        message = Message(Kind.GRADIENT, 1, 0, number, bytes(size - HEADER_BYTES))
        return lambda: others[number].send([0], message)

    bodies = {str(number): sender(number, size) for number, size in enumerate(sizes)}
    received: list[Message] = clock.run({"sink": receive, **bodies})["sink"]
    return received


def test_a_slow_link_behind_a_fast_one_decides() -> None:
    links = {"server": LinkModel(1e9, 1e6), "worker": LinkModel(1e9, 1e6)}
    (message,) = messages(links, 14480)
    packet = 1514 * 8
    assert message.last_s == pytest.approx(packet / 1e9 + 10 * packet / 1e6)
    assert message.first_s == pytest.approx(packet / 1e9 + packet / 1e6)


def test_a_slow_sender_does_not_hold_up_others() -> None:
    links = {
        "server": LinkModel(1e9, 100e6),
        "slow": LinkModel(1e6, 1e6),
        "fast": LinkModel(100e6, 1e6),
    }
    fast, slow = messages(links, 144800, 144800)
    assert slow.last_s > 1.2
    assert fast.last_s < 0.03


def test_messages_share_the_receivers_link() -> None:
    links = {"server": LinkModel(1e9, 10e6), "a": LinkModel(1e9, 1e6), "b": LinkModel(1e9, 1e6)}
    first, second = messages(links, 1448 * 50, 1448 * 50)
    whole = 2 * 50 * 1514 * 8 / 10e6
    assert first.last_s == second.last_s == pytest.approx(whole, rel=1e-3)


def test_an_endpoint_delivers_copies_with_times() -> None:
    clock = VirtualClock()
    names = ("server", "worker-0")
    net = network(clock, dict.fromkeys(names, LinkModel(8e6, 8e6, latency_s=0.01)))
    one, two = (VirtualEndpoint(net, n, name) for n, name in enumerate(names))
    buffer = bytearray(b"before")

    def sender() -> int:
        sent = two.send([0], Message(Kind.GRADIENT, 3, 1, 1, buffer))
        buffer[:] = b"after!"
        return sent

    def receiver() -> Message:
        return one.receive(1.0)

    results = clock.run({"sender": sender, "receiver": receiver})
    message = results["receiver"]
    assert results["sender"] == 46
    assert (message.kind, message.step, message.bucket, message.sender) == (Kind.GRADIENT, 3, 1, 1)
    assert bytes(message.body) == b"before"
    packet = (46 + 66) / 1e6
    assert message.sent_s == 0.0
    assert message.last_s == pytest.approx(2 * packet + 0.02)


def test_an_endpoint_names_its_peers_when_nothing_comes() -> None:
    clock = VirtualClock()
    net = network(clock, ("server", "worker-0"))
    one = VirtualEndpoint(net, 0, "server")
    VirtualEndpoint(net, 1, "worker-0")
    with pytest.raises(NodeLost, match=r"'worker-0' .* nothing was received for 2 s"):
        clock.run({"server": lambda: one.receive(2.0)})
    assert clock.now == 2.0
