"""The docker fabric: what it makes, that it carries traffic, how it sees death, and that nothing is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from standing import Standing, left_of

from testbed.fabric.docker import fabric as module
from testbed.fabric.docker.clean import clean
from testbed.fabric.docker.render import SHAPER
from testbed.links.journal import journals

pytestmark = pytest.mark.docker

Stand = Callable[[], Standing]
CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"
LISTEN = (
    "import socket,sys; s = socket.create_server((sys.argv[1], 7079)); print('up', flush=True); "
    "s.settimeout(20); s.accept()"
)

CUT_OFF = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 1)
except ConnectionRefusedError:
    print("reached")
except OSError:
    print("cut off")
"""


def test_places_are_the_ends_of_each_data_link(stand: Stand) -> None:
    made = stand()
    assert set(made.places) == {"server", "worker-0"}
    for place in made.places.values():
        assert place.nic.netns is not None and place.port.netns is None
        sysfs = Path("/sys/class/net", place.port.name)
        assert int((sysfs / "ifindex").read_text()) == place.port.index
        assert int((sysfs / "iflink").read_text()) == place.nic.index
        shown = made.inside(place.spec.name, "cat", f"/sys/class/net/{place.nic.name}/address")
        assert shown == _data_mac(made, place.spec.name)


def test_nodes_have_no_rights(stand: Stand) -> None:
    made = stand()
    status = made.inside("worker-0", "cat", "/proc/self/status")
    held = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    assert set(held) == {"0" * 16}
    assert "NoNewPrivs:\t1" in status
    assert made.inside("worker-0", "id", "-u") == "10001"
    assert made.inside("worker-0", "touch", "/tmp/written") == ""
    for path in ("/opt/narrows/x", "/x", "/etc/x"):
        refused = made.inside("worker-0", "sh", "-c", f"touch {path} && echo wrote", check=False)
        assert refused == ""


def test_token_reaches_the_nodes_but_no_file(stand: Stand) -> None:
    made = stand()
    assert made.inside("worker-0", "printenv", "NARROWS_TOKEN") == "a-token"
    assert "a-token" not in made.fabric.compose.file.read_text()


def test_nodes_reach_each_other_and_the_switch(stand: Stand) -> None:
    made = stand()
    server = made.places["server"].data_address
    with subprocess.Popen(
        ["docker", "exec", f"narrows-{made.id}-server", "python", "-c", LISTEN, server],
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "up\n"
        made.inside("worker-0", "python", "-c", CONNECT, server, "7079")
        assert listener.wait(30) == 0


@pytest.mark.parametrize("network", ["control_host", "switch_address"])
def test_nodes_reach_the_host_on_both_networks(stand: Stand, network: str) -> None:
    made = stand()
    address = getattr(made.networks, network)
    with socket.create_server((address, 0)) as listening:
        port = str(listening.getsockname()[1])
        made.inside("worker-0", "python", "-c", CONNECT, address, port)


def test_death_is_seen_with_its_cause(stand: Stand) -> None:
    made = stand()
    assert made.fabric.dead() == {}
    subprocess.run(["docker", "kill", f"narrows-{made.id}-worker-0"], check=True)
    assert made.fabric.dead() == {"worker-0": "killed by signal 9"}
    assert (made.fabric.context.directory / "log" / "worker-0.log").exists()


def test_nothing_is_left_and_twice_is_safe(stand: Stand) -> None:
    made = stand()
    assert len(left_of(made.id)) == 4
    made.fabric.destroy()
    assert left_of(made.id) == []
    made.fabric.destroy()
    assert not any(journal.run == made.id for journal in journals())
    logs = sorted(path.name for path in (made.fabric.context.directory / "log").iterdir())
    assert logs == ["server.log", "worker-0.log"]


def test_two_at_once_do_not_touch_each_other(stand: Stand) -> None:
    first, second = stand(), stand()
    addresses = {place.data_address for made in (first, second) for place in made.places.values()}
    assert len(addresses) == 4
    elsewhere = second.places["server"]
    for address in (elsewhere.data_address, elsewhere.control_address):
        assert first.inside("worker-0", "python", "-c", CUT_OFF, address) == "cut off"
    first.fabric.destroy()
    assert left_of(first.id) == []
    assert second.fabric.dead() == {} and len(left_of(second.id)) == 4


def test_clean_removes_what_a_killed_run_left(stand: Stand) -> None:
    abandoned, other = stand(), stand()
    removed = clean({"kind": "docker", "run": abandoned.id})
    assert len(removed) == 4 and clean({"kind": "docker", "run": abandoned.id}) == []
    assert left_of(abandoned.id) == []
    assert len(left_of(other.id)) == 4


def test_without_root_the_agent_is_a_service(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What members of the docker group get: the agent finds links from inside the shaper's container."""
    monkeypatch.setattr(module, "_is_root", lambda: False)
    made = stand()
    shaper = f"narrows-{made.id}-{SHAPER}"
    assert shaper in left_of(made.id)
    assert made.fabric.agent.alive()
    for place in made.places.values():
        index = Path("/sys/class/net", place.port.name, "ifindex").read_text()
        assert int(index) == place.port.index
    made.fabric.destroy()
    assert left_of(made.id) == []


def _data_mac(made: Standing, node: str) -> str:
    done = subprocess.run(
        ["docker", "inspect", f"narrows-{made.id}-{node}"],
        check=True,
        capture_output=True,
        env=os.environ,
    )
    networks = json.loads(done.stdout)[0]["NetworkSettings"]["Networks"]
    return str(networks[f"narrows-{made.id}-data"]["MacAddress"])
