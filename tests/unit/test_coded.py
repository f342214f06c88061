"""Coded exchange: what is decoded is the direct sum, bit by bit; formulas are the bytes of real packets."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from coded_rig import ALL, MOST, blocks, direct, exchanged, rounds

from testbed.errors import ExperimentError, InputError, WireError
from testbed.exchange.base import TransferTiming
from testbed.exchange.coded.exchange import column_order
from testbed.exchange.coded.round import CodedHeader, CodedNote, PacketLog, Round, header_bytes
from testbed.exchange.coded.schemes import (
    MatrixSizes,
    block_count,
    length,
    loads,
    most_work,
    scheme,
    total_load,
)
from testbed.node import Kind, Message


@pytest.mark.parametrize(("name", "nodes", "r"), ALL)
@pytest.mark.parametrize("size", [1, 7, 61])
def test_every_node_decodes_the_direct_sum(name: str, nodes: int, r: int, size: int) -> None:
    plan = scheme(name, nodes, r)
    gradients = blocks(plan, size, seed=nodes * 100 + r)
    taking_part = rounds(plan, gradients)
    exchanged(plan, taking_part, seed=r)
    expected = direct(plan, gradients)
    for node in taking_part:
        np.testing.assert_array_equal(node.total(), expected)


@pytest.mark.parametrize("extreme", [MOST, -MOST])
@pytest.mark.parametrize("name", ["literal", "replicated", "grouped", "combined"])
def test_sums_of_saturated_blocks_wrap_on_the_wire_and_not_in_the_total(
    name: str, extreme: int
) -> None:
    plan = scheme(name, 8, 3)
    gradients = np.full((len(plan.holders), 12), extreme, np.int32)
    taking_part = rounds(plan, gradients)
    sent = exchanged(plan, taking_part)
    many = len(plan.holders)
    if name in ("literal", "grouped", "combined"):  # three pieces of them: beyond 32 bits
        coded = next(body for packet, body in sent if len(packet.pieces) > 1)
        (wrapped,) = np.frombuffer(coded[header_bytes(3) :], np.int32)[:1]
        assert wrapped == np.int64(3 * extreme).astype(np.int32)
    assert all((node.total() == many * extreme).all() for node in taking_part)


@pytest.mark.parametrize(("name", "nodes", "r"), ALL)
def test_formulas_are_what_packets_take(name: str, nodes: int, r: int) -> None:
    plan, size = scheme(name, nodes, r), 840 * 24
    gradients = np.zeros((len(plan.holders), size), np.int32)
    sent = exchanged(plan, rounds(plan, gradients))
    for node, load in enumerate(loads(name, nodes, r)):
        own = [(packet, body) for packet, body in sent if packet.sender == node]
        assert len(own) == load.packets == len(plan.packets[node])
        payload = sum(len(body) - header_bytes(len(packet.pieces)) for packet, body in own)
        assert payload == load.sent * size * 4
        received = [p.elements(size) for p, _ in sent if node in p.destinations]
        assert sum(received) == load.received * size
        assert len(plan.holders) == block_count(name, nodes, r)
        assert plan.work(node, 840) == 840 * load.work / nodes


@pytest.mark.parametrize(("name", "nodes", "r"), ALL)
def test_sizes_that_do_not_divide_cost_at_most_an_element_per_packet(
    name: str, nodes: int, r: int
) -> None:
    plan = scheme(name, nodes, r)
    for size in (1, 13, 97):
        for node, load in enumerate(loads(name, nodes, r)):
            elements = sum(packet.elements(size) for packet in plan.packets[node])
            assert abs(elements - load.sent * size) < load.packets * 2


@pytest.mark.parametrize(("nodes", "r"), [(3, 2), (4, 2), (6, 3), (8, 1), (8, 3), (12, 2), (12, 5)])
def test_totals_are_those_of_the_literature(nodes: int, r: int) -> None:
    assert total_load("literal", nodes, r) == Fraction(nodes * comb(nodes - 1, r), r)
    assert total_load("replicated", nodes, r) == -(-nodes // r)
    if nodes % (r + 1) == 0:
        alone = r + 1 == nodes
        outside = 0 if alone else Fraction(1, r + 1)
        assert total_load("grouped", nodes, r) == nodes * (Fraction(1, r) + outside)
        assert total_load("combined", nodes, r) == Fraction(nodes, r)
        assert most_work("combined", nodes, r) == most_work("literal", nodes, r) == r


@pytest.mark.parametrize(("name", "nodes", "r"), ALL)
def test_each_sample_is_in_one_block_and_blocks_are_alike(name: str, nodes: int, r: int) -> None:
    plan = scheme(name, nodes, r)
    for count in (97, 1000):
        places = [plan.samples(block, count) for block in range(len(plan.holders))]
        assert [i for place in places for i in range(count)[place]] == list(range(count))
        sizes = {length(place) for place in places}
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("name", "nodes", "r"), ALL)
def test_each_destination_lacks_just_one_piece_of_a_packet(name: str, nodes: int, r: int) -> None:
    plan = scheme(name, nodes, r)
    for sent in plan.packets:
        for packet in sent:
            known = [plan.holders[p.vector.number] for p in packet.pieces if packet.phase == 0]
            for node in packet.destinations if known else ():
                assert sum(node not in holders for holders in known) == 1
            assert packet.sender not in packet.destinations


MATRICES = ((3, 5), (1, 7), (4, 2), (1, 1))


@pytest.mark.parametrize(("nodes", "r"), [(3, 1), (3, 2), (5, 2), (5, 3), (6, 4)])
def test_parts_are_columns_of_every_matrix(nodes: int, r: int) -> None:
    plan, size, order = (
        scheme("literal", nodes, r),
        MatrixSizes.of(MATRICES),
        column_order(MATRICES, r),
    )
    assert sorted(order) == list(range(size)) == list(range(31))
    places, begin = list[np.ndarray[Any, Any]](), 0
    for rows, columns in MATRICES:
        places.append(np.arange(begin, begin + rows * columns).reshape(rows, columns))
        begin += rows * columns
    for index in range(r):
        own = [p[:, p.shape[1] * index // r : p.shape[1] * (index + 1) // r] for p in places]
        assert list(order[size.part(index, r)]) == [i for matrix in own for i in matrix.flat]
    gradients = blocks(plan, size, seed=r)
    moved = np.take(gradients, order, axis=1)
    taking_part = [
        Round(plan, node, np.take(moved, plan.blocks[node], axis=0), size) for node in range(nodes)
    ]
    sent = exchanged(plan, taking_part)
    for packet, body in sent:
        elements = max(length(size.part(piece.part, r)) for piece in packet.pieces)
        assert len(body) == header_bytes(len(packet.pieces)) + 4 * elements
    for node in taking_part:
        np.testing.assert_array_equal(node.total(), direct(plan, gradients)[order])


@pytest.mark.parametrize(("name", "nodes", "r"), ALL)
def test_faster_nodes_get_more_samples(name: str, nodes: int, r: int) -> None:
    plan, speeds = scheme(name, nodes, r), [0.5 + 0.1 * node for node in range(nodes)]
    count = 5000
    places = [plan.samples(block, count, speeds) for block in range(len(plan.holders))]
    assert [i for place in places for i in range(count)[place]] == list(range(count))
    assert min(map(length, places)) >= 1
    if name == "literal":
        work = [sum(length(places[block]) for block in own) for own in plan.blocks]
        assert work == sorted(work)
        assert work[0] < plan.work(0, count) < work[-1]
        if r == 1:
            assert work == pytest.approx(
                [count * speed / sum(speeds) for speed in speeds], abs=nodes
            )


def test_packets_of_the_same_number_load_all_nodes_alike() -> None:
    plan = scheme("literal", 8, 3)
    for sent in zip(*plan.packets, strict=True):
        assert {sum(node in packet.destinations for packet in sent) for node in range(8)} == {3}


def test_literal_with_sixteen_nodes() -> None:
    plan = scheme("literal", 16, 2)
    gradients = blocks(plan, 5, seed=1)
    taking_part = rounds(plan, gradients)
    exchanged(plan, taking_part)
    np.testing.assert_array_equal(taking_part[15].total(), gradients.sum(0, np.int64))


@pytest.mark.parametrize("name", ["literal", "grouped", "combined", "replicated"])
def test_a_block_that_two_nodes_computed_differently_is_named(name: str) -> None:
    plan = scheme(name, 6, 2)
    gradients = blocks(plan, 30, seed=3)
    taking_part = rounds(plan, gradients)
    own = gradients[list(plan.blocks[1])]
    own[0, 0] ^= 1
    taking_part[1] = type(taking_part[1])(plan, 1, own)
    wrong = plan.blocks[1][0]
    with pytest.raises(
        ExperimentError, match=rf"block {wrong} is not the same at node \d and node \d"
    ) as caught:
        exchanged(plan, taking_part)
    assert "node 1" in str(caught.value)


@pytest.mark.parametrize("name", ["literal", "grouped", "combined", "replicated"])
def test_an_element_that_changed_on_its_way_is_found(name: str) -> None:
    plan = scheme(name, 6, 2)
    taking_part = rounds(plan, blocks(plan, 30, seed=4))
    with pytest.raises(WireError, match=r"(block|cluster) \d+, as node \d put it together"):
        for phase in range(plan.phases):
            for node in list(taking_part):
                for packet, body in node.packets(phase):
                    body[-4] ^= 1
                    for to in packet.destinations:
                        taking_part[to].take(packet.sender, body)


def test_packets_out_of_place_are_refused() -> None:
    plan = scheme("literal", 4, 2)
    taking_part = rounds(plan, blocks(plan, 10, seed=5))
    packet, body = next(taking_part[0].packets(0))
    to, other = sorted(packet.destinations)[0], min({1, 2, 3} - packet.destinations)
    with pytest.raises(WireError, match="node 0 sent packet 0 of phase 0 with r = 2, which node"):
        taking_part[other].take(0, body)
    with pytest.raises(WireError, match="has 16 B of elements, not 20"):
        taking_part[to].take(0, body[:-4])
    with pytest.raises(WireError, match="3 B are too few"):
        taking_part[to].take(0, body[:3])
    with pytest.raises(WireError, match="too few for a coded packet of 2 pieces"):
        taking_part[to].take(0, body[:36])
    taking_part[to].take(0, body)
    with pytest.raises(WireError, match="does not wait for"):
        taking_part[to].take(0, body)


def test_a_packet_of_another_redundancy_is_refused() -> None:
    ours, theirs = scheme("replicated", 4, 1), scheme("replicated", 4, 2)
    sender = rounds(theirs, blocks(theirs, 8, seed=1))[0]
    receiver = rounds(ours, blocks(ours, 8, seed=1))[3]
    _, body = next(sender.packets(0))
    with pytest.raises(WireError, match=r"with r = 2.*\(r = 1\)"):
        receiver.take(0, body)


def test_the_header_is_read_back() -> None:
    plan = scheme("literal", 5, 3)
    node = rounds(plan, blocks(plan, 10, seed=5))[2]
    packet, body = list(node.packets(0))[1]
    header, rest = CodedHeader.unpack(body)
    assert (header.phase, header.r, header.number, len(header.crcs)) == (0, 3, 1, 3)
    assert header.note.saturated == 0
    assert header.note.t_calc_s != header.note.t_calc_s
    assert len(rest) == 4 * packet.elements(10)
    assert header.pack() == bytes(body[: header_bytes(3)])


def test_nothing_is_told_too_early() -> None:
    plan = scheme("grouped", 6, 2)
    node = rounds(plan, blocks(plan, 6, seed=1))[0]
    with pytest.raises(RuntimeError, match="before all packets"):
        node.total()
    with pytest.raises(RuntimeError, match="phase 1 before"):
        list(node.packets(1))
    assert node.missing() == set(range(1, 6))


@pytest.mark.parametrize(
    ("name", "nodes", "r", "says"),
    [
        ("literl", 4, 2, "unknown scheme 'literl'"),
        ("literal", 4, 4, r"r = 4 with 4 workers.*at most 3"),
        ("grouped", 4, 0, "from 1 on"),
        ("grouped", 17, 2, "2 to 16"),
        ("grouped", 1, 1, "2 to 16"),
    ],
)
def test_what_makes_no_scheme_is_refused(name: str, nodes: int, r: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        scheme(name, nodes, r)


@pytest.mark.parametrize("turn", range(4))
def test_packets_of_a_step_are_logged_from_the_first_to_the_latest(turn: int) -> None:
    """In whichever order they are read. Communication counts from when the last one has begun to send."""
    now = iter([1.5, 2.0])
    node: Any = SimpleNamespace(
        now=lambda: next(now),
        endpoint=SimpleNamespace(frame_bytes=lambda message: len(message.body)),
    )
    log = PacketLog(node, 7, 1.0, CodedNote(saturated=3, t_calc_s=0.5))
    log.sent(100)
    packets = [  # sender, bytes, sent, first, arrived, last
        (1, 10, 1.2, 3.0, 9.0, 9.5),
        (1, 20, 2.4, 4.0, 5.0, 12.0),
        (2, 40, 3.5, 5.0, 6.0, 6.5),
        (2, 80, 2.0, 2.5, 7.0, 7.5),
    ]
    for sender, size, *times_s in packets[turn:] + packets[:turn]:
        log.received(Message(Kind.GRADIENT, 7, 0, sender, bytes(size), *times_s), CodedNote(sender))
    log.sent(200)
    assert log.travel() == TransferTiming(1.0, 1.5, 2.5, 9.0, 12.0, 300, 150)
    assert log.t_comm_s == 12.0 - 2.0, "node 1 began at 1.2 s, node 2 at 2 s"
    assert sorted(note.saturated for note in log.notes) == [1, 2, 3]
    record = log.record("worker-0", 2, {1: "worker-1", 2: "worker-2"})
    assert record.received == {"worker-1": 30, "worker-2": 120}
    assert (record.packets, record.bytes_sent, record.t_comm_s) == (2, 300, 10.0)
