"""The links agent of one host of a swarm, in a container: ``python -m testbed.links.agent.remote``.

It connects to the controller, says which host it is on, and serves that connection like any links
agent its pipes. It needs no engine: a task's network namespace is known by the task's address, and
the overlay's, with the other end of the task's cable, by the network's id. Both are files in a
folder of the engine's, which is mounted here.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError
from testbed.links.agent.protocol import Object, Place, read
from testbed.links.agent.server import AgentServer, main
from testbed.links.network import bridges, devices
from testbed.links.network.namespaces import inside
from testbed.links.tc.netlink import NetlinkChannel
from testbed.topology import NODE_ACTIONS_SOCKET, TOKEN_FILE, Interface

NETNS = Path("/netns")
"""Where the engine's folder of network namespaces is mounted."""
CONNECT_S, LOCATE_S = 60.0, 10.0
ACTION_S = 2.5
"""How long a node may take to be paused or killed: a host that is silent for 4 s counts as dead."""
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 6}
"""Seconds, seconds and probes: a task ends where its controller's host does."""
_NETWORK_DIGITS = 10
_CHUNK = bytes(1 << 18)
_MOST_ACTION = 64


class RemoteAgentServer(AgentServer):
    """A links agent that also finds tasks, tells its clock, and sends to measure a network."""

    def do_clock(self, _: Object) -> list[int]:
        """Monotonic and wall clock, ns."""
        return [time.monotonic_ns(), time.time_ns()]

    def do_locate_tasks(self, request: Object) -> dict[str, Place]:
        """The cables of this host's tasks, by node: ``addresses`` on the network ``network``."""
        overlay = _overlay(str(request["network"]))
        wanted = read(dict[str, str], request["addresses"])
        give_up, places = time.monotonic() + LOCATE_S, dict[str, Place]()
        while missing := {node: where for node, where in wanted.items() if node not in places}:
            if time.monotonic() > give_up:
                raise ExperimentError(f"no namespace of tasks {sorted(missing)} on this host")
            # some are files of namespaces that have ended, and are not to be entered
            for address, netns, index in _addresses(set(map(str, NETNS.iterdir())) - {overlay}):
                for node in [name for name, own in missing.items() if own == address]:
                    places[node] = _cable(netns, index, overlay)
        return places

    def do_senders(self, request: Object) -> None:
        """Have devices that are at no link's end send as nodes do, from the next ``prepare`` on."""
        devices_ = read(list[Interface], request["devices"])
        self._shaper.others = {(device.netns, device.index) for device in devices_}

    def do_neighbours(self, request: Object) -> None:
        """Have a device know its neighbours for good: ``[[address, link-layer address]]``."""
        device = read(Interface, request["device"])
        with NetlinkChannel(device.netns) as channel:
            for address, mac in request["neighbours"]:
                bridges.add_neighbour(channel, device.index, address, mac)

    def do_act(self, request: Object) -> None:
        """Have the first process of the task in ``netns`` do ``action`` with its node."""
        _act(str(request["netns"]), str(request["action"]))

    def do_attach(self, request: Object) -> None:
        """Give the first process of the task in ``netns`` a connection of its own to the controller
        at ``to``, for commands: the node's devices have no part in it."""
        with socket.create_connection(tuple(request["to"]), timeout=CONNECT_S) as connected:
            connected.sendall(_hello(request["host"], "attach"))
            connected.settimeout(None)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE.items():
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
            _act(str(request["netns"]), "attach", connected.fileno())

    def do_pour(self, request: Object) -> int:
        """Send to ``[address, port]`` for ``seconds`` as fast as the network takes it; bytes."""
        sent, give_up = 0, time.monotonic() + float(request["seconds"])
        with socket.create_connection(tuple(request["to"]), timeout=CONNECT_S) as connected:
            connected.sendall(_hello(request["host"], "pour"))
            while time.monotonic() < give_up:
                sent += connected.send(_CHUNK)
        return sent


def _act(netns: str, action: str, *given: int) -> None:
    """``given``: descriptors that go with it. Raises ExperimentError."""
    done = ""
    try:
        with inside(netns):
            connected = socket.socket(socket.AF_UNIX)
        with connected:
            connected.settimeout(ACTION_S)
            connected.connect(NODE_ACTIONS_SOCKET)
            socket.send_fds(connected, [action.encode()], given)
            done = connected.recv(_MOST_ACTION).decode()
    except TimeoutError:
        raise ExperimentError(
            f"{action} took more than {ACTION_S:g} s: a process of the node may wait for a disk"
        ) from None
    except OSError as error:
        raise ExperimentError(f"{action}: the node's task has ended: {error}") from None
    if done != action:
        raise ExperimentError(f"{action}: the node's task has ended, or does not know it")


def _overlay(network: str) -> str:
    """The namespace of an overlay on this host. Raises ExperimentError where there is none."""
    for path in sorted(NETNS.glob(f"*-{network[:_NETWORK_DIGITS]}")):
        return str(path)
    raise ExperimentError(f"the overlay network {network} is not on this host")


def _addresses(paths: set[str]) -> Iterator[tuple[str, str, int]]:
    """The IPv4 addresses of all devices, each with its namespace and the device's index."""
    for netns in sorted(paths):
        with suppress(OSError), NetlinkChannel(netns) as channel:
            for interface in devices.interfaces(channel):
                for address in interface.addresses:
                    yield str(ip_interface(address).ip), netns, interface.index


def _cable(netns: str, index: int, overlay: str) -> Place:
    """Both ends must name each other. Raises ExperimentError."""
    with NetlinkChannel(netns) as inner, NetlinkChannel(overlay) as outer:
        nic = devices.device(inner, index)
        port = devices.device(outer, nic.peer or 0)
        if port.peer != nic.index or port.kind != "veth":
            raise ExperimentError(f"{nic.name!r} in {netns} is no cable into the overlay's bridge")
        ends = Interface(netns, nic.index, nic.name), Interface(overlay, port.index, port.name)
    return (nic.mac, *ends)


def _hello(host: str, purpose: str) -> bytes:
    hello = {"token": TOKEN_FILE.read_text(), "host": host, "purpose": purpose}
    return json.dumps(hello).encode() + b"\n"


def connect(control: str, host: str) -> socket.socket:
    """Connect to the controller, again and again until it answers. Raises OSError."""
    address, _, port = control.rpartition(":")
    give_up = time.monotonic() + CONNECT_S
    while True:
        try:
            connected = socket.create_connection((address, int(port)), timeout=CONNECT_S)
            break
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.sendall(_hello(host, "agent"))
    return connected


def run(arguments: Sequence[str] | None = None) -> Any:
    """Connect, and serve."""
    parser = argparse.ArgumentParser(prog="testbed.links.agent.remote")
    parser.add_argument("--control", required=True, metavar="HOST:PORT")
    options = parser.parse_args(arguments)
    with connect(options.control, os.environ["NARROWS_HOST"]) as connected:
        for descriptor in (0, 1):
            os.dup2(connected.fileno(), descriptor)
    main(RemoteAgentServer)


if __name__ == "__main__":
    run()
