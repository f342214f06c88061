"""Which Unix sockets join two nodes: out of the kernel's own list, and out of lists of ours."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY

from testbed.links.channel import SOCK_DIAG, Channel
from testbed.links.diag import UNIX_QUERY, Joined, Joins, UnixSeen, decode_unix

LISTENS = UnixSeen(1, path="/shared/s", file=b"f", listens=True)
CALLS, TAKEN = UnixSeen(8, 9), UnixSeen(9, 8, "/shared/s", b"f")


def listed() -> dict[int, UnixSeen]:
    with Channel(None, SOCK_DIAG) as channel:
        return {
            seen.inode: seen
            for seen in map(decode_unix, channel.dump_raw(UNIX_QUERY, SOCK_DIAG_BY_FAMILY))
        }


def inode(of: socket.socket) -> int:
    return os.fstat(of.fileno()).st_ino


def joined(*looks: dict[str, list[UnixSeen]]) -> list[Joined]:
    joins = Joins()
    for look in looks:
        joins.take(look)
    return joins.found


def test_the_kernel_lists_both_ends_and_their_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        listener.bind(str(path))
        listener.listen()
        caller.connect(str(path))
        taken, _ = listener.accept()
        with taken:
            seen = listed()
            calls, held, listens = (seen[inode(one)] for one in (caller, taken, listener))
    assert (calls.peer, calls.path, calls.file, calls.listens) == (held.inode, "", b"", False)
    assert (held.peer, held.path, held.listens) == (calls.inode, str(path), False)
    assert (listens.peer, listens.path, listens.listens) == (0, str(path), True)
    assert held.file == listens.file != b""


def test_a_name_without_a_file() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        named.bind(f"\0narrows-{os.getpid()}")
        seen = listed()[inode(named)]
    assert (seen.path, seen.file) == (f"@narrows-{os.getpid()}", b"")


def test_a_caller_has_both_ends_in_its_namespace() -> None:
    nodes = {"a": [CALLS, TAKEN], "b": [LISTENS]}
    assert joined(nodes, nodes) == [Joined("a", "b", "/shared/s", (8, 9))]
    swapped = {"a": [LISTENS], "b": [CALLS, TAKEN]}
    assert joined(swapped) == [Joined("a", "b", "/shared/s", (8, 9))]


def test_who_listened_is_remembered() -> None:
    assert len(joined({"a": [LISTENS], "b": []}, {"a": [], "b": [CALLS, TAKEN]})) == 1


def test_what_stays_within_a_node_or_leads_to_none_joins_nobody() -> None:
    assert joined({"a": [LISTENS, CALLS, TAKEN], "b": [UnixSeen(4, path="/shared/s")]}) == []
    assert joined({"a": [UnixSeen(3, 99, "y", b"y")], "b": [LISTENS]}) == []


def test_a_name_without_a_file_leads_out_of_no_namespace() -> None:
    named, pair = UnixSeen(1, path="@cuda", listens=True), [UnixSeen(5, 6), UnixSeen(6, 5)]
    assert joined({"a": [named], "b": pair}) == []


def test_a_file_that_had_another_name_is_another() -> None:
    """Numbers of files are given anew when one is gone."""
    elsewhere = UnixSeen(9, 8, "/shared/other", b"f")
    assert joined({"a": [LISTENS], "b": []}, {"a": [], "b": [CALLS, elsewhere]}) == []


def test_who_only_calls_joins_too() -> None:
    """A datagram socket that another has connected to knows nothing of it."""
    nodes = {"b": [UnixSeen(7, path="/shared/x", file=b"x")], "a": [UnixSeen(9, 7)]}
    assert joined(nodes) == [Joined("b", "a", "/shared/x", (7, 9))]
