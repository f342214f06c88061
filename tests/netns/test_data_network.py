"""A data network on which nobody asks for anything, nothing is remembered, and nobody stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from netns_rig import MBIT, Rig, make_rig, rate_of

from testbed.links.network import namespaces
from testbed.links.network.namespaces import setting
from testbed.process import environment
from testbed.runner.preflight import measure_veth


@pytest.fixture
def three(tmp_path: Path, state: Path) -> object:
    made = make_rig(tmp_path, workers=2)
    yield made
    made.fabric.destroy()


def packets(netns: str | None, device: str) -> tuple[int, int]:
    """That a device has received and sent."""
    with namespaces.inside(netns):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith(device))
    return int(fields[1]), int(fields[9])


def test_everyone_knows_everyone(three: Rig) -> None:
    addresses = {place.data_address for place in three.places.values()}
    addresses.add(three.networks.switch_address)
    for place in three.places.values():
        command = ["ip", "-j", "-4", "neigh", "show", "dev", place.nic.name, "nud", "permanent"]
        with namespaces.inside(place.nic.netns):
            listed = subprocess.run(command, capture_output=True, check=True).stdout
        known = {neighbour["dst"] for neighbour in json.loads(listed)}
        assert known == addresses - {place.data_address}


def test_packets_go_to_whom_they_are_for_and_to_nobody_else(three: Rig) -> None:
    server, worker, other = (three.places[n] for n in ("server", "worker-0", "worker-1"))
    with namespaces.inside(server.nic.netns):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((server.data_address, 9999))
        receiver.settimeout(60)
    with namespaces.inside(worker.nic.netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        for _ in range(3):
            sender.sendto(b"one", (server.data_address, 9999))
            receiver.recv(100)
    assert packets(server.nic.netns, "data") == (3, 0)
    assert packets(worker.nic.netns, "data") == (0, 3)
    assert packets(other.nic.netns, "data") == (0, 0)


def test_connections_leave_nothing_for_later_ones(three: Rig) -> None:
    for netns in [three.networks.switch_netns, *(p.nic.netns for p in three.places.values())]:
        assert setting("net.ipv4.tcp_no_metrics_save", netns) == "1"
    held = three.prepare({end: rate_of(10 * MBIT) for end in three.ends()})
    assert not any(link["tcp_metrics_saved"] for link in held["links"])


def test_a_message_fits_into_the_kernel(three: Rig) -> None:
    """4 MiB at once at either end, whoever is slow to hand over the rest or to take it."""
    with namespaces.inside(three.places["worker-0"].nic.netns), socket.socket() as made:
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            assert made.getsockopt(socket.SOL_SOCKET, buffer) == 4 << 20


def test_who_is_left_in_a_namespace_ends_with_it() -> None:
    path = namespaces.make("nw-inhabited")
    program = (
        "import sys, time; from testbed.links.network.namespaces import enter; enter(sys.argv[1]); "
        "print('in', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, env=environment()
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        assert namespaces.inhabitants(path) == [process.pid]
        os.kill(process.pid, signal.SIGSTOP)
        assert namespaces.remove("nw-inhabited")
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
        namespaces.remove("nw-inhabited")


@pytest.mark.timed
def test_a_veth_is_measured_quickly_and_leaves_nothing() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    began = time.monotonic()
    large = measure_veth(1, 43)
    assert time.monotonic() - began < 5.0  # a fifth of a second where nobody else runs
    assert large > measure_veth(1, 1) > 10 * MBIT
    assert measure_veth(2, 43) > 10 * MBIT
    assert before == len(list(Path("/proc/self/fd").iterdir()))
    assert not {"near", "far"} & {path.name for path in Path("/sys/class/net").iterdir()}
