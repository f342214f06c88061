"""Chakra execution traces, written, read, and as other programs write and read them."""

from __future__ import annotations

import gzip
from io import BytesIO
from pathlib import Path

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClassesForFiles
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from testbed.comm_trace.chakra import (
    ChakraNode,
    Collective,
    NodeType,
    chakra_of,
    read_chakra,
    read_file,
    write_chakra,
    write_file,
)
from testbed.comm_trace.trace import MessageTrace, TraceOperation
from testbed.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden" / "chakra"
"""Written by MLCommons' own ``et_def_pb2`` and ``protolib`` (mlc-chakra 1.0.0). ``et_def.binpb``: the schema that it has in it."""


class Published:
    """The messages and the kinds of nodes of the published schema, as protobuf makes them of it."""

    def __init__(self) -> None:
        pool = DescriptorPool()
        schema = pool.AddSerializedFile((GOLDEN / "et_def.binpb").read_bytes())
        classes = GetMessageClassesForFiles([schema.name], pool)
        self.GlobalMetadata = classes["ChakraProtoMsg.GlobalMetadata"]
        self.Node = classes["ChakraProtoMsg.Node"]
        self.kinds = {
            value.name: value.number for value in schema.enum_types_by_name["NodeType"].values
        }


TRACE = MessageTrace(
    {
        "server": (
            TraceOperation("receive", peer="worker-0", bytes=70_000, tag=1, step=1),
            TraceOperation("compute", (0,), 0.001234, begin_s=0.5, step=1),
            TraceOperation("send", (0, 1), peer="worker-0", bytes=40, begin_s=0.501234, step=1),
        ),
        "worker-0": (
            TraceOperation("compute", seconds=0.25, begin_s=0.0, step=1),
            TraceOperation("send", (0,), peer="server", bytes=70_000, tag=1, begin_s=0.25, step=1),
            TraceOperation("receive", (1,), peer="server", bytes=40, step=1),
        ),
    },
    {"server": "server", "worker-0": "worker"},
    "a run",
)


def written(folder: Path, *nodes: ChakraNode, name: str = "t.0.et") -> Path:
    path = folder / name
    path.write_bytes(write_file("", {}, nodes))
    return path


def test_a_trace_comes_back_equal(tmp_path: Path) -> None:
    paths = write_chakra(TRACE, tmp_path / "job")
    assert [path.name for path in paths] == ["job.0.et", "job.1.et"]
    assert read_chakra(paths) == TRACE


def test_compressed_files_are_read_as_well(tmp_path: Path) -> None:
    paths = write_chakra(TRACE, tmp_path / "job")
    for path in paths:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_chakra(paths) == TRACE


def test_files_of_the_published_library_are_read() -> None:
    trace = read_chakra([GOLDEN / f"published.{rank}.et" for rank in range(3)])
    assert trace.nodes == ["node-0", "node-1", "node-2"]
    for own in trace.operations.values():
        ring = [one for one in own if one.kind == "send" and one.tag >= 1 << 20]
        assert [one.bytes for one in ring[:4]] == [1000] * 4
        assert sum(one.bytes for one in ring[4:]) in (132, 133, 134)
        assert own[0].seconds == 0.0015
    (sent,) = (one for one in trace.operations["node-0"] if one.tag == 5)
    assert (sent.kind, sent.peer, sent.bytes) == ("send", "node-2", 70_000)
    total = sum(one.bytes for own in trace.operations.values() for one in own if one.kind == "send")
    assert total == 2 * 2 * 3000 + 70_000 + 2 * 2 * 100


def test_every_kind_of_attribute_is_read() -> None:
    metadata, nodes = read_file((GOLDEN / "published.0.et").read_bytes())
    assert metadata == {"version": "1.0.0", "schema": "of the library", "pi": 3.5}
    assert nodes[0] == ChakraNode(
        7, "about", NodeType.METADATA_NODE,
        attributes={
            "f": 0.5, "s32": -3, "s64": -4, "x32": 5, "x64": 6, "sx32": -7, "sx64": -8, "u32": 9, "u64": 1 << 63,
            "i32": -10, "i64": -(1 << 40), "yes": True, "raw": b"\0\1", "zero": 0,
        },
    )  # fmt: skip


def test_the_published_schema_reads_what_is_written() -> None:
    published = Published()
    stream = BytesIO(chakra_of(TRACE, "worker-0"))
    metadata = parse_length_prefixed(published.GlobalMetadata, stream)
    assert metadata.version == "1.0.0"
    assert {a.name: a.string_val for a in metadata.attr}["node"] == "worker-0"
    computed, sent, received = iter(lambda: parse_length_prefixed(published.Node, stream), None)
    assert (computed.type, computed.duration_micros) == (published.kinds["COMP_NODE"], 250_000)
    assert (sent.type, list(sent.data_deps), sent.start_time_micros) == (
        published.kinds["COMM_SEND_NODE"],
        [0],
        250_000,
    )
    assert received.type == published.kinds["COMM_RECV_NODE"]
    told = {a.name: (a.WhichOneof("value"), getattr(a, a.WhichOneof("value"))) for a in sent.attr}
    assert told == {
        "is_cpu_op": ("bool_val", False), "comm_src": ("int32_val", 1), "comm_dst": ("int32_val", 0),
        "comm_tag": ("int32_val", 1), "comm_size": ("int64_val", 70_000), "step": ("int64_val", 1),
        "begin_us": ("int64_val", 250_000),
    }  # fmt: skip


def test_nodes_may_stand_before_those_they_wait_for(tmp_path: Path) -> None:
    later = ChakraNode(1, "b", NodeType.COMP_NODE, (5,), duration_us=3)
    trace = read_chakra(
        [written(tmp_path, later, ChakraNode(5, "a", NodeType.COMP_NODE, duration_us=2))]
    )
    assert trace.operations["node-0"] == (
        TraceOperation("compute", seconds=2e-6),
        TraceOperation("compute", (0,), 3e-6),
    )


def test_nodes_wait_for_control_and_for_data_alike(tmp_path: Path) -> None:
    """Each once, though it is both."""
    published = Published()
    stream = BytesIO()
    serialize_length_prefixed(published.GlobalMetadata(version="1.0.0"), stream)
    waits = ([], []), ([], []), ([0], []), ([], [1]), ([3, 2], [3])
    for number, (control, data) in enumerate(waits):
        node = published.Node(id=number, type=published.kinds["COMP_NODE"], duration_micros=1)
        node.ctrl_deps.extend(control)
        node.data_deps.extend(data)
        serialize_length_prefixed(node, stream)
    (tmp_path / "t.0.et").write_bytes(stream.getvalue())
    found = read_chakra([tmp_path / "t.0.et"]).operations["node-0"]
    assert [own.after for own in found] == [(), (), (0,), (1,), (2, 3)]


SEND = {"comm_src": 0, "comm_dst": 1, "comm_size": 9}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (ChakraNode(1, "x", NodeType.MEM_LOAD_NODE), "a MEM_LOAD_NODE cannot be replayed"),
        (ChakraNode(1, "x", 77), "a node of type 77 cannot"),
        (ChakraNode(1, "x", NodeType.COMP_NODE, attributes={"num_ops": 5}), "not how long"),
        (ChakraNode(1, "x", NodeType.COMP_NODE, attributes={"step": -1}), "step: .* equal to 0"),
        (ChakraNode(1, "x", NodeType.COMP_NODE, (2,)), "waits for one that is not there"),
        (ChakraNode(1, "x", NodeType.COMP_NODE, (1,)), "wait for themselves"),
        (
            ChakraNode(1, "x", NodeType.COMM_SEND_NODE, attributes={"comm_size": 5}),
            "'comm_dst' is None",
        ),
        (
            ChakraNode(1, "x", NodeType.COMM_SEND_NODE, attributes=SEND),
            "another of 1 ranks. Give the files of all ranks",
        ),
        (
            ChakraNode(
                1, "x", NodeType.COMM_COLL_NODE, attributes={"comm_type": Collective.BROADCAST}
            ),
            "the collective BROADCAST is not made into messages",
        ),
        (
            ChakraNode(
                1, "x", NodeType.COMM_COLL_NODE, attributes={"comm_type": 0, "pg_name": "7"}
            ),
            "within the group '7'",
        ),
    ],
)
def test_what_cannot_be_had_from_a_trace_is_refused(
    tmp_path: Path, node: ChakraNode, why: str
) -> None:
    with pytest.raises(InputError, match=rf"t\.0\.et.*{why}"):
        read_chakra([written(tmp_path, node)])


@pytest.mark.parametrize(
    ("kind", "attributes", "why"),
    [
        ("COMM_SEND_NODE", {**SEND, "comm_size": (4 << 30) + 1}, "bytes: .* equal to 4294967296"),
        ("COMM_SEND_NODE", {**SEND, "comm_tag": 1 << 31}, "tag: .* less than 2147483648"),
        ("COMM_SEND_NODE", {**SEND, "step": 1 << 31}, "step: .* less than 2147483648"),
        ("COMM_SEND_NODE", {**SEND, "begin_us": -1}, "begin_s: .* equal to 0"),
        ("COMM_COLL_NODE", {"comm_type": 0, "comm_size": 10**10}, "bytes: .* equal to 4294967296"),
    ],
)
def test_numbers_that_no_file_of_messages_may_have_are_refused(
    tmp_path: Path, kind: str, attributes: dict[str, int], why: str
) -> None:
    """A half of the all-reduce is one message between two ranks."""
    published, stream = Published(), BytesIO()
    node = published.Node(id=7, name="x", type=published.kinds[kind])
    for name, value in attributes.items():
        node.attr.add(name=name, int64_val=value)
    serialize_length_prefixed(published.GlobalMetadata(version="1.0.0"), stream)
    serialize_length_prefixed(node, stream)
    (tmp_path / "t.0.et").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match=rf"t\.0\.et: node 7 \(x\): {why}"):
        read_chakra([tmp_path / "t.0.et", written(tmp_path, name="t.1.et")])


@pytest.mark.parametrize("data", [b"\x05\x08", b"\xff" * 12, b"\x00\x02\x0f\x00", b"\x00\x03\x12\x05a", b"", b"\x1f\x8b1"])  # fmt: skip
def test_other_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.0.et").write_bytes(data)
    with pytest.raises(InputError, match=r"t\.0\.et: no Chakra execution trace"):
        read_chakra([tmp_path / "t.0.et"])


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 32) - 1, (1 << 63) - 1, -1, -(1 << 63)])  # fmt: skip
def test_numbers_of_any_size_come_back(value: int) -> None:
    node = ChakraNode(max(value, 0), "x", NodeType.COMP_NODE, attributes={"step": value})
    assert read_file(write_file("2", {"a": value}, [node])) == (
        {"version": "2", "a": value},
        [node],
    )


def test_metadata_of_the_first_versions_are_read() -> None:
    attribute = b"\n\x04step8\x07"
    data = bytes([len(attribute) + 2]) + b"\n" + bytes([len(attribute)]) + attribute
    assert read_file(data) == ({"step": 7}, [])
