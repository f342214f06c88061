"""Every TCP connection of a node is seen, to the byte, however short it lived."""

from __future__ import annotations

import errno
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns_rig import Rig, rate_of

from testbed.links.agent.protocol import Watched
from testbed.links.network import connections, namespaces
from testbed.links.network.connections import SocketWatch
from testbed.scenario.link_state import LinkDirection, LinkState

PORT, BYTES = 9100, 3_000_000


@pytest.fixture
def nodes(rig: Rig) -> dict[str, str]:
    return {name: place.nic.netns or "" for name, place in rig.places.items()}


def listen(netns: str, address: str, family: int = socket.AF_INET) -> socket.socket:
    with namespaces.inside(netns):
        return socket.create_server((address, PORT), family=family, dualstack_ipv6=address == "::")


def allow_ipv6(netns: str, device: str) -> None:
    with namespaces.inside(netns):
        Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6").write_text("0")


def exchange(listener: socket.socket, sender: socket.socket, size: int) -> None:
    """So many bytes one way, and the end of both sockets."""

    def swallow() -> None:
        taken, _ = listener.accept()
        with taken:
            while taken.recv(1 << 16):
                pass

    thread = threading.Thread(target=swallow)
    thread.start()
    with sender:
        sender.sendall(bytes(size))
        sender.shutdown(socket.SHUT_WR)
        thread.join(20)
    assert not thread.is_alive()


def connect(netns: str, address: str, family: int = socket.AF_INET) -> socket.socket:
    with namespaces.inside(netns):
        made = socket.socket(family, socket.SOCK_STREAM)
    made.connect((address, PORT))
    return made


def to(found: Watched, port: int) -> Iterator[connections.SocketSeen]:
    return (seen for seen in found.sockets if seen.peer.endswith(f":{port}"))


def test_bytes_of_a_transfer_agree_at_both_ends_and_with_the_link(
    rig: Rig, nodes: dict[str, str]
) -> None:
    rig.prepare({end: rate_of(1_000_000_000) for end in rig.ends()})
    before = rig.agent.watch(nodes)
    rig.start([], lead_s=0.0)
    server = rig.places["server"]
    with listen(nodes["server"], server.data_address) as listener:
        exchange(listener, connect(nodes["worker-0"], server.data_address), BYTES)
    report = rig.stop()
    found = rig.agent.watched()
    (sent,) = to(found["worker-0"], PORT)
    (came,) = found["server"].sockets
    assert (sent.own, sent.peer) == (came.peer, came.own)
    assert sent.bytes_sent - sent.bytes_retransmitted == BYTES
    assert came.bytes_received == BYTES + 1  # the end counts as one
    assert sent.least_rtt_us and sent.ended_ns and came.ended_ns
    up = next(e for e in report.links if (e.link, e.direction) == ("worker-0", "up"))
    assert abs(sent.bytes_sent + 66 * sent.segments_out - up.class_bytes) <= 200
    first = {seen.name: seen for seen in before["worker-0"]}
    carried = {seen.name: seen.since(first[seen.name]) for seen in found["worker-0"].interfaces}
    assert abs(carried["data"].sent_bytes - up.class_bytes) <= 200
    assert carried["lo"].loopback and carried["lo"].sent_bytes == 0
    assert rig.places["worker-0"].data_address in carried["data"].addresses


def test_short_lives_open_ends_and_other_families(rig: Rig, nodes: dict[str, str]) -> None:
    rig.agent.watch(nodes)
    place = rig.places["worker-0"]
    netns, address = nodes["worker-0"], place.data_address
    allow_ipv6(netns, "lo")
    with listen(netns, "::", socket.AF_INET6) as listener:
        exchange(listener, connect(netns, address), 1)
        exchange(listener, connect(netns, f"::ffff:{address}", socket.AF_INET6), 22)
        exchange(listener, connect(netns, "::1", socket.AF_INET6), 333)
        with connect(netns, address) as still, listener.accept()[0]:
            still.sendall(bytes(4444))
            found = rig.agent.watched()["worker-0"]
    seen = {one.bytes_sent: one for one in to(found, PORT)}
    assert seen.keys() == {1, 22, 333, 4444} and found.missed is None
    assert seen[22].peer == f"{address}:{PORT}"  # IPv4, whatever kind of socket spoke it
    assert seen[333].peer == f"[::1]:{PORT}"
    assert seen[4444].ended_ns is None and all(seen[size].ended_ns for size in (1, 22, 333))


TOLD = r"\b(bytes_sent|bytes_received|bytes_retrans|segs_out|minrtt):([\d.]+)"


def read_ss(said: str) -> dict[str, float]:
    """Numbers of one connection; what is 0 is not told."""
    found = {name: float(number) for name, number in re.findall(TOLD, said)}
    again = re.findall(r"\bretrans:\d+/(\d+)", said)
    cookie = int(re.findall(r"\bsk:([0-9a-f]+)", said)[0], 16)
    return {"bytes_retrans": 0, "bytes_received": 0, "bytes_sent": 0, "minrtt": 0, **found, "retrans": int(again[0]) if again else 0, "cookie": cookie}  # fmt: skip


def by_ss(netns: str, *which: str) -> dict[str, float]:
    command = ["nsenter", f"--net={netns}", "ss", "-tieOnH", *which]
    return read_ss(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def same(seen: connections.SocketSeen, told: dict[str, float]) -> None:
    names = {
        "bytes_sent": seen.bytes_sent,
        "bytes_received": seen.bytes_received,
        "bytes_retrans": seen.bytes_retransmitted,
        "retrans": seen.retransmitted,
        "segs_out": seen.segments_out,
        "cookie": seen.cookie,
    }
    assert names == {name: told[name] for name in names}
    assert abs((seen.least_rtt_us or 0) - 1000 * told["minrtt"]) <= 1


def hears(pid: int) -> bool:
    """Whether a process has a netlink socket in a multicast group."""
    lines = Path(f"/proc/{pid}/net/netlink").read_text().splitlines()[1:]
    return any(one.split()[2] == str(pid) and int(one.split()[3], 16) for one in lines)


def test_what_ss_says_of_connections(rig: Rig, nodes: dict[str, str]) -> None:
    """iproute2 reads the same of the kernel, of both ends while they are open and as one is destroyed.

    The queue to the server is too short for so many bytes at once, so that some are sent again.
    """
    rig.prepare({LinkDirection("server", "down"): LinkState(100_000_000, 20_000)})
    netns, far, address = nodes["worker-0"], nodes["server"], rig.places["server"].data_address
    while_open, watch = SocketWatch(nodes), SocketWatch(nodes)
    listening = ["nsenter", f"--net={netns}", "stdbuf", "-oL", "ss", "-EtieOnH"]
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as destroyed:
        try:
            while not hears(destroyed.pid):
                time.sleep(0.01)
            with listen(far, address) as listener, connect(netns, address) as sender:
                taken, _ = listener.accept()
                sending = threading.Thread(target=sender.sendall, args=(bytes(BYTES),))
                sending.start()
                received = 0
                while received < BYTES:
                    received += len(taken.recv(1 << 18))
                sending.join()
                own, settled = f":{sender.getsockname()[1]}", {"bytes_retrans": -1.0}
                here = by_ss(netns, "dst", f"{address}:{PORT}")
                while here != settled:  # the last acknowledgement may be on its way
                    settled, here = here, by_ss(netns, "dst", f"{address}:{PORT}")
                there = by_ss(far, "src", f"{address}:{PORT}")
                found = while_open.end()
                taken.close()
            line = next(one for one in destroyed.stdout or () if f"{own} " in one)
        finally:
            destroyed.kill()
    (seen,) = to(found["worker-0"], PORT)
    (peer,) = (one for one in found["server"].sockets if one.peer.endswith(own))
    (ended,) = to(watch.end()["worker-0"], PORT)
    assert seen.retransmitted > 0 and seen.bytes_sent > BYTES == peer.bytes_received
    same(seen, here)
    same(peer, there)
    same(ended, read_ss(line))
    assert ended.ended_ns and not seen.ended_ns


def test_ipv6_between_nodes(rig: Rig, nodes: dict[str, str]) -> None:
    for number, netns in enumerate(nodes.values(), start=1):
        allow_ipv6(netns, "data")
        add = ["ip", "-6", "addr", "add", f"fd00:9::{number}/64", "dev", "data", "nodad"]
        subprocess.run(["nsenter", f"--net={netns}", *add], check=True)
    rig.agent.watch(nodes)
    with listen(nodes["server"], "fd00:9::1", socket.AF_INET6) as listener:
        exchange(listener, connect(nodes["worker-0"], "fd00:9::1", socket.AF_INET6), BYTES)
    found = rig.agent.watched()
    (sent,) = to(found["worker-0"], PORT)
    assert sent.peer == f"[fd00:9::1]:{PORT}"
    assert sent.bytes_sent - sent.bytes_retransmitted == BYTES
    assert sent.own.startswith("[fd00:9::2]:")
    data = next(seen for seen in found["worker-0"].interfaces if seen.name == "data")
    assert "fd00:9::2" in data.addresses and data.sent_bytes > BYTES


def test_hundreds_at_once_and_what_could_not_be_noted_is_said(
    rig: Rig, nodes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    netns, address, many = nodes["server"], rig.places["server"].data_address, 300
    for most, said in ((many * 3, None), (10, "more than 10 connections ended")):
        monkeypatch.setattr(connections, "MOST", most)
        watch = SocketWatch({"server": netns})
        with listen(netns, address) as listener:
            for _ in range(many):
                connect(netns, address).close()
                listener.accept()[0].close()
        found = watch.end()["server"]
        assert found.missed == said
        assert len(list(to(found, PORT))) == (many if said is None else 5)


def test_a_node_whose_connections_can_no_longer_be_followed_is_told_of_and_the_others_go_on(
    rig: Rig, nodes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = connections.Listening.take

    def broken(listening: connections.Listening) -> None:
        if listening is watch._listening["worker-0"]:
            raise OSError(errno.EBADF, "broken")
        take(listening)

    monkeypatch.setattr(connections.Listening, "take", broken)
    address = rig.places["server"].data_address
    watch = SocketWatch(nodes)
    with listen(nodes["server"], address) as listener:
        for _ in range(3):
            connect(nodes["worker-0"], address).close()
            listener.accept()[0].close()
    ended = watch.end()
    assert "broken" in str(ended["worker-0"].missed)
    assert ended["server"].missed is None
    assert len([seen for seen in ended["server"].sockets if seen.ended_ns]) == 3


def test_what_is_kept_is_bounded_for_all_nodes_together(
    rig: Rig, nodes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST", 10)
    address = rig.places["server"].data_address
    watch = SocketWatch(nodes)
    with listen(nodes["server"], address) as listener:
        for _ in range(10):
            connect(nodes["worker-0"], address).close()
            listener.accept()[0].close()
    ended = watch.end()
    kept = [seen for node in ended.values() for seen in node.sockets if seen.ended_ns]
    assert len(kept) == 10
    assert "more than 10 connections ended" in [node.missed for node in ended.values()]


def dropped(netns: str) -> int:
    """Notifications for which netlink sockets of that namespace had no room."""
    command = ["nsenter", f"--net={netns}", "cat", "/proc/net/netlink"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    table = done.stdout.splitlines()
    column = table[0].split().index("Drops")
    return sum(int(line.split()[column]) for line in table[1:])


def test_notifications_that_the_kernel_dropped_are_said(
    rig: Rig, nodes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_BUFFER_BYTES", 2048)
    all_ended = threading.Event()
    monkeypatch.setattr(connections.Listening, "take", lambda _: all_ended.wait(30.0) and None)
    netns, address = nodes["server"], rig.places["server"].data_address
    watch = SocketWatch({"server": netns})
    with listen(netns, address) as listener:
        for _ in range(100):
            connect(netns, address).close()
            listener.accept()[0].close()
        give_up = time.monotonic() + 20
        while not dropped(netns):  # the kernel tells of sockets when it finds the time
            assert time.monotonic() < give_up
            time.sleep(0.02)
        monkeypatch.undo()
        all_ended.set()
        time.sleep(0.5)
    assert watch.end()["server"].missed == "connections ended faster than they could be noted"
