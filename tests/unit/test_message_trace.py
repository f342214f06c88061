"""Traces of messages: what can happen, and how it stands in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.comm_trace import from_records
from testbed.comm_trace.from_records import RunRecords
from testbed.comm_trace.replay_role import acts_of, mapped
from testbed.comm_trace.trace import MessageTrace, NodeLog, TraceOperation, contents, read, write
from testbed.errors import InputError
from testbed.fidelity.verdict import Verdict
from testbed.runner import comm_replay
from testbed.transport.frame import HEADER_BYTES

SEND = TraceOperation("send", (0,), peer="b", bytes=1000, tag=3, begin_s=0.5, step=1)
RECEIVE = TraceOperation("receive", peer="a", bytes=1000, tag=3)
TRACE = MessageTrace(
    {
        "a": (TraceOperation("compute", seconds=0.5, step=1), SEND),
        "b": (RECEIVE, TraceOperation("compute", (0,), 0.25)),
    },
    {"a": "worker"},
    "by hand",
)
HEAD = '{"format": "narrows-messages", "version": 1, "nodes": [{"name": "a"}, {"name": "b"}]}\n'


def test_a_file_reads_back_equal(tmp_path: Path) -> None:
    write(TRACE, tmp_path / "a.jsonl")
    assert read(tmp_path / "a.jsonl") == TRACE


def test_the_last_line_needs_no_newline_and_may_not_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(TRACE, path)
    text = path.read_text().removesuffix("\n")
    path.write_text(text)
    assert read(path) == TRACE
    path.write_text(text[:-1])
    with pytest.raises(InputError, match=r"a\.jsonl:5: not JSON"):
        read(path)


def test_what_it_holds() -> None:
    found = contents(TRACE)
    assert (found["messages"], found["bytes"], found["least_s"]) == (1, 1000, 0.75)
    assert [node["sent"] for node in found["nodes"]] == [1, 0]


def test_the_first_sent_is_the_first_received_of_a_tag() -> None:
    one, two = (TraceOperation("send", peer="b", bytes=size, tag=1) for size in (10, 20))
    first, second = (TraceOperation("receive", peer="a", bytes=size, tag=1) for size in (10, 20))
    trace = MessageTrace({"a": (one, two), "b": (first, second)})
    assert trace.received_as == {("a", 0): ("b", 0), ("a", 1): ("b", 1)}
    with pytest.raises(InputError, match="sends 10 B, which operation 0 of b receives as 20 B"):
        MessageTrace({"a": (one, two), "b": (second, first)})


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ({"a": (SEND, SEND), "b": (RECEIVE,)}, "2 messages with tag 3, and 1 are received"),
        ({"a": (), "b": (RECEIVE,)}, "0 messages with tag 3, and 1 are received"),
        ({"a": (TraceOperation("send", peer="a", bytes=1),)}, "names 'a', no other node"),
        ({"a": (TraceOperation("compute", (1,)),)}, "waits for one that is not there"),
        ({"a": (TraceOperation("compute", (0,)),)}, "it waits for itself"),
        (
            {
                "a": (TraceOperation("receive", peer="b", bytes=1), TraceOperation("send", (0,), peer="b", bytes=1)),
                "b": (TraceOperation("receive", peer="a", bytes=1), TraceOperation("send", (0,), peer="a", bytes=1)),
            },
            "operation 0 of a can never begin",
        ),
    ],
)  # fmt: skip
def test_what_cannot_happen_is_refused(
    operations: dict[str, tuple[TraceOperation, ...]], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        MessageTrace(operations)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"1: format: Field required"),
        (HEAD.replace("1,", "2,"), r"1: version: Input should be 1"),
        (HEAD + '{"node": "c", "op": "compute"}\n', "2: the first line names no node 'c'"),
        (HEAD + '{"node": "a", "op": "wait"}\n', "2: op: Input should be 'compute'"),
        (HEAD + '{"node": "a", "op": "compute", "seconds": -1}\n', "2: seconds: .* greater"),
        (HEAD + '{"node": "a", "op": "send", "peer": "b", "bytes": true}\n', "2: bytes: .* integer"),
        (HEAD + '{"node": "a", "op": "compute", "when": 1}\n', "2: when: Extra inputs"),
        (HEAD + '{"node": "a", "op": "compute", "peer": "x"}\n', "2: peer: a compute has none"),
        (HEAD + '{"node": "a", "op": "compute", "bytes": 5}\n', "2: bytes: a compute has none"),
        (HEAD + '{"node": "a", "op": "compute", "tag": 1}\n', "2: tag: a compute has none"),
        (HEAD + '{"node": "a", "op": "send", "peer": "b", "seconds": 1}\n', "2: seconds: a send has none"),
        (HEAD + '{"node": "a", "op": "receive", "peer": "b", "seconds": 1}\n', "2: seconds: a receive has none"),
        (HEAD + '{"node": "a", "op": "send", "peer": "b", "bytes": 5}\n', "1 messages with tag 0"),
        (HEAD + "[]\n", "2: a JSON object was expected"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(InputError, match=rf"bad\.jsonl:?.*{why}"):
        read(tmp_path / "bad.jsonl")


def test_nodes_are_found_by_name_or_else_in_order() -> None:
    assert mapped(TRACE, ["b", "a", "c"]) == {"a": "a", "b": "b"}
    assert mapped(TRACE, ["server", "worker-0", "worker-1"]) == {"server": "a", "worker-0": "b"}
    with pytest.raises(InputError, match="2 nodes, the scenario 1"):
        mapped(TRACE, ["server"])


def test_acts_are_in_wall_time_and_sends_may_have_their_own() -> None:
    numbers = {"a": 7, "b": 8}
    computed, sent = acts_of(TRACE, "a", numbers, 10.0)
    assert (computed.seconds, sent.after, sent.begin_s, sent.peer) == (5.0, (0,), 0.0, 8)
    _, timed = acts_of(TRACE, "a", numbers, 10.0, timed=True)
    assert (timed.after, timed.begin_s) == ((), 5.0)
    unknown = MessageTrace({"a": (TraceOperation("send", peer="b", bytes=9),), "b": (TraceOperation("receive", peer="a", bytes=9),)})  # fmt: skip
    with pytest.raises(InputError, match="--timed: the trace does not say when a sent"):
        acts_of(unknown, "a", numbers, 1.0, timed=True)


@pytest.mark.parametrize(
    ("up", "down", "said"),
    [
        (30, 7, None),
        (31, 7, "come to 30 B, and the records have 31 B as bytes_up"),
        (30, 8, "come to 7 B, and the records have 8 B as bytes_down"),
    ],
)
def test_messages_come_to_what_the_records_have_both_ways(
    up: int, down: int, said: str | None
) -> None:
    moved = (("send", 10), ("receive", 7), ("send", 20))
    messages = [TraceOperation(kind, peer="b", bytes=size) for kind, size in moved]  # type: ignore[arg-type]
    record = {"step": 3, "bytes_up": up, "bytes_down": down}
    if said is None:
        from_records._check_sums("a", record, messages)
    else:
        with pytest.raises(InputError, match=said):
            from_records._check_sums("a", record, messages)


def test_a_replayed_step_ends_with_the_last_of_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In model time; greetings, of step 0, are none. Bytes up are those that no server sent."""
    nodes = {"server": {"role": "server"}, "worker-0": {"role": "worker"}}
    manifest = {"nodes": nodes, "dilation": 2.0, "algorithm": {"name": "none"}, "seed": 1}

    def message(step: int, sender: str, size: int, arrived_s: float) -> dict[str, object]:
        node = next(name for name in nodes if name != sender)
        return {"step": step, "sender": sender, "node": node, "bytes": size, "arrived_s": arrived_s}

    messages = [
        message(0, "worker-0", 1, 0.5), message(2, "server", 10, 9.0), message(1, "worker-0", 100, 4.0),
        message(1, "server", 1000, 6.0), message(1, "worker-0", 10_000, 5.0), message(2, "worker-0", 100_000, 8.0),
    ]  # fmt: skip
    monkeypatch.setattr(comm_replay, "read_json", lambda _: manifest)
    monkeypatch.setattr(comm_replay, "read_events", lambda _: {"message": messages})
    done = {"a": {"summary": {"end_s": 9.5}}, "b": {"summary": {"end_s": 9.0}}}
    found = comm_replay.summarise_replay(tmp_path, Verdict("valid", []), done)
    assert (found["step_ends_s"], found["steps"]) == ([3.0, 4.5], 2)
    assert (found["bytes_up"], found["bytes_down"]) == (110_101, 1010)
    assert (found["wall_s"], found["time_s"], found["messages"]) == (9.5, 4.75, 6)


@pytest.mark.parametrize("exchange", ["peers", "ring", "ps"])
def test_a_worker_computes_from_when_it_has_read_all_until_it_sends(exchange: str) -> None:
    """To decode is part of it; in model time, half of the wall's here."""
    parts: dict[str, float] = {"bytes_up": 84 + 2 * HEADER_BYTES, "bytes_down": 84 + 2 * HEADER_BYTES, "size": 21}  # fmt: skip
    first = {"start_s": 1, "compute_s": 2, "compress_s": 0.5, "stall_s": 0.5, "decompress_s": 0.5, "apply_s": 0.75, "end_s": 9}  # fmt: skip
    second = {"start_s": 9, "compute_s": 1, "compress_s": 0.25, "decompress_s": 0.75, "apply_s": 0.25, "end_s": 12.25}  # fmt: skip
    steps = [
        {"kind": "step", "node": node, "step": number, **parts, **times}
        for node in ("a", "b")
        for number, times in ((1, first), (2, second))
    ]
    rounds = [
        {"node": "server", "step": number, "bytes_down": 20, "send_start_s": last_s + 1, "messages":
         [{"sender": n, "bytes": 9, "sent_s": sent_s, "last_s": last_s} for n in (1, 2)]}
        for number, sent_s, last_s in ((1, 4.0, 5.0), (2, 10.25, 10.5))
    ]  # fmt: skip
    numbers, events = {0: "server", 1: "a", 2: "b"}, {"step": steps, "round": rounds}
    records = RunRecords({"exchange": exchange}, 2.0, ["server"], ["a", "b"], numbers, events)
    nodes = from_records._MAKE[exchange](records)
    for worker in ("a", "b"):
        own = [operation for operation in nodes[worker] if operation.kind == "compute"]
        found = [(each.seconds, each.begin_s, each.step) for each in own]
        assert found == [(2.0, 0.0, 1), (1.25, 3.875, 2), (0.5, 5.625, 2)]
        waits = [{nodes[worker][place].step for place in each.after} for each in own]
        assert waits == [set(), {1}, {2}]
    served = [each for each in nodes.get("server", ()) if each.kind == "compute"]
    expected = [(0.5, 2.5), (0.5, 5.25)] if exchange == "ps" else []
    assert [(each.seconds, each.begin_s) for each in served] == expected


def test_of_a_bucket_a_server_computes_the_sum_alone() -> None:
    """Its answer may have waited for others' to be sent, as it will again."""
    records = RunRecords({}, 2.0, ["server"], ["a"], {0: "server", 1: "a"}, {})
    part = {"node": "server", "step": 1, "bucket": 3, "bytes_down": 7, "send_start_s": 9.0,
            "aggregate_s": 0.5, "messages": [{"sender": 1, "bytes": 5, "last_s": 4.0}]}  # fmt: skip
    log = NodeLog()
    from_records._serve(records, log, part)
    came, summed, sent = log.operations
    assert (summed.seconds, summed.begin_s, summed.after) == (0.25, 2.0, (0,))
    assert (came.tag, sent.tag, sent.begin_s, sent.bytes) == (3, 3, 4.5, 7)
