"""Nodes that play parts of a trace on a virtual clock: order, what goes on side by side, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from virtual_links import LinkModel, network

from testbed.comm_trace.replay_role import NodeScript, ReplayRole, acts_of
from testbed.comm_trace.trace import MessageTrace, TraceOperation
from testbed.errors import WireError
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode, play
from testbed.transport.frame import HEADER_BYTES

LINK = LinkModel(up_bits=80e6, down_bits=80e6, latency_s=0.0)


def parts(trace: MessageTrace) -> list[NodeScript]:
    numbers = {name: number for number, name in enumerate(trace.nodes)}
    return [
        NodeScript(
            7, name, numbers[name], 1, tuple(trace.nodes), 10.0, acts_of(trace, name, numbers, 1)
        )
        for name in trace.nodes
    ]


def outcome(given: list[NodeScript]) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Summaries by node, and all records by the time at which they came."""
    net = network(VirtualClock(), dict.fromkeys((part.node for part in given), LINK))
    nodes = [VirtualNode(VirtualEndpoint(net, part.peer, part.node), 1) for part in given]
    players = {p.node: ReplayRole(n, p) for n, p in zip(nodes, given, strict=True)}
    summaries = play(net, players)
    records: list[Any] = [record for node in nodes for record in node.records]
    return summaries, sorted(records, key=lambda record: record["arrived_s"])


def send(peer: str, size: int, *after: int, tag: int = 0) -> TraceOperation:
    return TraceOperation("send", after, peer=peer, bytes=size, tag=tag)


def receive(peer: str, size: int, *after: int, tag: int = 0) -> TraceOperation:
    return TraceOperation("receive", after, peer=peer, bytes=size, tag=tag)


def compute(seconds: float, *after: int) -> TraceOperation:
    return TraceOperation("compute", after, seconds)


def test_everything_waits_for_what_it_comes_after() -> None:
    trace = MessageTrace(
        {
            "a": (compute(1.0), send("b", 1000, 0), receive("b", 1000), compute(0.5, 2)),
            "b": (receive("a", 1000), compute(2.0, 0), send("a", 1000, 1)),
        }
    )
    summaries, records = outcome(parts(trace))
    assert [(m["sender"], m["receipt"]) for m in records] == [("a", 0), ("b", 2)]
    assert [m["sent_s"] for m in records] == pytest.approx([1.0, 3.0], abs=0.01)
    assert summaries["a"]["end_s"] == pytest.approx(3.5, abs=0.01)
    greetings = summaries["a"]["bytes_sent"] - 1000
    assert greetings in (HEADER_BYTES, 2 * HEADER_BYTES)
    assert summaries["b"]["bytes_received"] == summaries["a"]["bytes_sent"]


def test_a_node_computes_one_thing_at_a_time_and_sends_meanwhile() -> None:
    trace = MessageTrace(
        {"a": (compute(1.0), compute(1.0), send("b", 100)), "b": (receive("a", 100),)}
    )
    summaries, records = outcome(parts(trace))
    assert summaries["a"]["end_s"] == pytest.approx(2.0)
    assert records[0]["arrived_s"] < 0.1


def test_a_message_may_come_before_it_is_waited_for() -> None:
    trace = MessageTrace(
        {"a": (send("b", 100),), "b": (compute(1.0), receive("a", 100, 0), compute(1.0, 1))}
    )
    summaries, records = outcome(parts(trace))
    assert records[0]["arrived_s"] < 0.1
    assert summaries["b"]["end_s"] == pytest.approx(2.0)


def test_two_that_send_to_each_other_at_once_do_not_wait_for_each_other() -> None:
    size = 10_000_000
    both = {
        one: (send(other, size), receive(other, size)) for one, other in (("a", "b"), ("b", "a"))
    }
    summaries, _ = outcome(parts(MessageTrace(both)))
    assert summaries["a"]["end_s"] == pytest.approx(8 * size / 80e6, rel=0.1)


def test_messages_to_a_peer_keep_their_order_whoever_else_gets_them() -> None:
    """Two go to b and c side by side, the last to b alone: it waits for the second."""
    size = 5_000_000
    trace = MessageTrace(
        {
            "a": tuple(send(peer, size) for peer in ("b", "c", "b", "c", "b")),
            "b": (receive("a", size),) * 3,
            "c": (receive("a", size),) * 2,
        }
    )
    _, records = outcome(parts(trace))
    came = {name: [m["receipt"] for m in records if m["node"] == name] for name in ("b", "c")}
    assert came == {"b": [0, 1, 2], "c": [0, 1]}


def test_a_message_to_several_waits_for_all_that_was_ready_before() -> None:
    """b and c get one of their own each, c's the larger, then one side by side, then b another."""
    size = 5_000_000
    trace = MessageTrace(
        {
            "a": (
                send("b", size),
                send("c", 3 * size),
                *(send(peer, size) for peer in ("b", "c", "b")),
            ),
            "b": (receive("a", size),) * 3,
            "c": (receive("a", 3 * size), receive("a", size)),
        }
    )
    _, records = outcome(parts(trace))
    came = {name: [m["receipt"] for m in records if m["node"] == name] for name in ("b", "c")}
    assert came == {"b": [0, 1, 2], "c": [0, 1]}
    sent = {(m["node"], m["receipt"]): m["sent_s"] for m in records}
    assert sent["b", 1] == sent["c", 1] > 1.9


def test_what_is_shorter_than_a_header_is_padded() -> None:
    trace = MessageTrace({"a": (send("b", 1),), "b": (receive("a", 1),)})
    summaries, records = outcome(parts(trace))
    assert records[0]["bytes"] == HEADER_BYTES
    assert summaries["a"]["bytes_sent"] == summaries["b"]["bytes_received"] > HEADER_BYTES


def test_who_has_nothing_to_play_ends_at_once() -> None:
    trace = MessageTrace({"a": (compute(1.0),), "b": ()})
    summaries, _ = outcome(parts(trace))
    assert (summaries["a"]["end_s"], summaries["b"]["end_s"]) == (pytest.approx(1.0), 0.0)


@pytest.mark.parametrize("wrong", [{"bytes": 200}, {"number": 1}])
def test_a_message_that_nothing_receives_ends_the_run(wrong: dict[str, int]) -> None:
    one, other = parts(MessageTrace({"a": (send("b", 100),), "b": (receive("a", 100),)}))
    other = replace(other, acts=tuple(replace(act, **wrong) for act in other.acts))
    with pytest.raises(WireError, match="a sent GRADIENT 0 of 100 B, which nothing here receives"):
        outcome([one, other])


def test_a_part_travels_as_it_is() -> None:
    for part in parts(MessageTrace({"a": (compute(1.0), send("b", 9, 0)), "b": (receive("a", 9),)})):  # fmt: skip
        assert NodeScript.from_json(part.to_json()) == part
