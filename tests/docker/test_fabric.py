"""The docker fabric: what it makes, that it carries traffic, how it sees death, and that nothing is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from standing import Standing, left_of

from testbed.fabric.base import new_id
from testbed.fabric.docker.engine import clean
from testbed.journal import journals

pytestmark = pytest.mark.docker

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


def test_places_are_the_ends_of_each_data_link(plain: Standing) -> None:
    assert set(plain.places) == {"server", "worker-0"}
    for place in plain.places.values():
        assert place.nic.netns is not None and place.port.netns is None
        sysfs = Path("/sys/class/net", place.port.name)
        assert int((sysfs / "ifindex").read_text()) == place.port.index
        assert int((sysfs / "iflink").read_text()) == place.nic.index
        shown = plain.inside(place.spec.name, "cat", f"/sys/class/net/{place.nic.name}/address")
        assert shown == _data_mac(plain, place.spec.name)


def test_nodes_have_no_rights(plain: Standing) -> None:
    status = plain.inside("worker-0", "cat", "/proc/self/status")
    held = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    assert set(held) == {"0" * 16}
    assert "NoNewPrivs:\t1" in status
    assert plain.inside("worker-0", "id", "-u") == "10001"
    assert plain.inside("worker-0", "touch", "/tmp/written") == ""
    for path in ("/opt/narrows/x", "/x", "/etc/x"):
        refused = plain.inside("worker-0", "sh", "-c", f"touch {path} && echo wrote", check=False)
        assert refused == ""


def test_token_reaches_the_nodes_but_no_file(plain: Standing) -> None:
    assert plain.inside("worker-0", "printenv", "NARROWS_TOKEN") == "a-token"
    assert "a-token" not in (plain.fabric.context.directory / "compose.yaml").read_text()


def test_nodes_reach_each_other_and_the_switch(plain: Standing) -> None:
    server = plain.places["server"].data_address
    with subprocess.Popen(
        ["docker", "exec", f"narrows-{plain.id}-server", "python", "-c", LISTEN, server],
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "up\n"
        plain.inside("worker-0", "python", "-c", CONNECT, server, "7079")
        assert listener.wait(30) == 0


@pytest.mark.parametrize("network", ["control_host", "switch_address"])
def test_nodes_reach_the_host_on_both_networks(plain: Standing, network: str) -> None:
    address = getattr(plain.networks, network)
    with socket.create_server((address, 0)) as listening:
        port = str(listening.getsockname()[1])
        plain.inside("worker-0", "python", "-c", CONNECT, address, port)


@pytest.mark.parametrize("node", ["server", "worker-0"])
def test_nodes_connect_from_the_addresses_that_they_are_known_by(
    plain: Standing, node: str
) -> None:
    known = {
        plain.networks.control_host: plain.networks.control_addresses[node],
        plain.networks.switch_address: plain.places[node].data_address,
    }
    assert plain.networks.control_addresses[node] == plain.places[node].control_address
    for host, expected in known.items():
        with socket.create_server((host, 0)) as listening:
            port = str(listening.getsockname()[1])
            plain.inside(node, "python", "-c", CONNECT, host, port)
            calling, (address, _) = listening.accept()
            calling.close()
        assert address == expected


def test_two_at_once_do_not_reach_each_other(plain: Standing, casting: Standing) -> None:
    places = [place for made in (plain, casting) for place in made.places.values()]
    assert len({place.data_address for place in places}) == 6
    elsewhere, here = casting.places["worker-1"], plain.places["server"]
    for address in (elsewhere.data_address, elsewhere.control_address):
        assert plain.inside("worker-0", "python", "-c", CUT_OFF, address) == "cut off"
    reached = plain.inside("worker-0", "python", "-c", CUT_OFF, here.data_address)
    assert reached == "reached"


def test_nothing_is_left_and_twice_is_safe(plain: Standing, own: Standing) -> None:
    """Also where one is paused, and another fabric loses nothing."""
    assert len(left_of(own.id)) == 4
    own.fabric.pause("worker-0")
    assert own.fabric.objects.containers()["worker-0"].status == "paused"
    own.fabric.destroy()
    assert left_of(own.id) == []
    own.fabric.destroy()
    assert not any(journal.run == own.id for journal in journals())
    logs = sorted(path.name for path in (own.fabric.context.directory / "log").iterdir())
    assert logs == ["server.log", "worker-0.log"]
    assert plain.fabric.dead() == {} and len(left_of(plain.id)) == 4


def test_death_is_seen_with_its_cause_and_clean_removes_what_is_left(
    plain: Standing, own: Standing
) -> None:
    assert own.fabric.dead() == {}
    own.fabric.pause("worker-0")
    own.fabric.kill("worker-0")  # what is frozen would not end before it is thawed
    assert own.fabric.objects.containers()["worker-0"].status == "running"
    subprocess.run(["docker", "kill", f"narrows-{own.id}-worker-0"], check=True)
    assert own.fabric.dead() == {"worker-0": "killed by signal 9"}
    assert (own.fabric.context.directory / "log" / "worker-0.log").exists()
    removed = clean({"kind": "docker", "run": own.id})
    assert len(removed) == 4 and clean({"kind": "docker", "run": own.id}) == []
    assert left_of(own.id) == []
    assert plain.fabric.dead() == {} and len(left_of(plain.id)) == 4


def test_a_network_that_is_still_in_use_is_removed_once_it_is_not(image: str) -> None:
    """As where a busy engine has not seen yet that a container has ended."""
    run = new_id()
    network, stranger = f"narrows-{run}-late", f"narrows-{run}-stranger"
    _said("docker", "network", "create", "--internal", "--label", f"narrows.run={run}", network)
    try:
        begin = ["docker", "run", "--detach", "--init", "--network", network, "--name", stranger]
        _said(*begin, image, "sleep", "2")
        assert clean({"kind": "docker", "run": run}) == [f"network {network}"]
        assert left_of(run) == []
    finally:
        for left in (["rm", "--force", stranger], ["network", "rm", network]):
            subprocess.run(["docker", *left], capture_output=True, check=False)


def test_volumes_that_an_image_declares_go_with_the_container(image: str) -> None:
    """The engine makes one without a label, whose name only the container knows."""
    run = new_id()
    declared = ["--label", f"narrows.run={run}", "--volume", "/declared"]
    container = _said("docker", "create", *declared, image, "true")
    volume = _said("docker", "inspect", "--format", "{{(index .Mounts 0).Name}}", container)
    try:
        assert _said("docker", "volume", "ls", "--quiet", "--filter", f"name={volume}") == volume
        assert len(clean({"kind": "docker", "run": run})) == 1
        assert _said("docker", "volume", "ls", "--quiet", "--filter", f"name={volume}") == ""
    finally:
        for left in (["rm", container], ["volume", "rm", volume]):
            subprocess.run(["docker", *left, "--force"], capture_output=True, check=False)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _data_mac(made: Standing, node: str) -> str:
    done = subprocess.run(
        ["docker", "inspect", f"narrows-{made.id}-{node}"],
        check=True,
        capture_output=True,
        env=os.environ,
    )
    networks = json.loads(done.stdout)[0]["NetworkSettings"]["Networks"]
    return str(networks[f"narrows-{made.id}-data"]["MacAddress"])
