"""Racks where nodes are containers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from standing import SPECS, Standing, left_of, standing

from testbed.fabric.docker import fabric as module
from testbed.fabric.docker.compose_file import SHAPER
from testbed.fabric.netns import run_tag
from testbed.topology import NodeSpec, RackSpec

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

NODES = [*SPECS, NodeSpec("worker-1", "worker", "worker", 1, 2)]
RACKS = [RackSpec("a", ("worker-0", "worker-1"))]
REACH = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.create_connection((address, 9), 3)
    except ConnectionRefusedError:
        print("reached", address)
"""


def host_state() -> str:
    """Rules of the firewall, and what bridges do about it."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    settings = [path.read_text() for path in sorted(Path("/proc/sys/net/bridge").glob("*"))]
    return "\n".join(line.partition("[")[0] for line in rules.splitlines() if line[0] != "#") + (
        "".join(settings)
    )


@pytest.mark.parametrize("root", [True, False])
def test_racks_stand_where_no_firewall_looks(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    """``root`` False: the agent is in the shaper's container, as members of the docker group have it."""
    monkeypatch.setattr(module, "_is_root", lambda: root)
    with standing(tmp_path, NODES, RACKS) as made:
        assert (f"narrows-{made.id}-{SHAPER}" in left_of(made.id)) == (not root)
        assert made.fabric.agent.alive()
        index = Path("/sys/class/net", made.places["server"].port.name, "ifindex").read_text()
        assert int(index) == made.places["server"].port.index
        assert_racked(made)


def assert_racked(made: Standing) -> None:
    """Everybody is reached past the racks' bridges, which go with the fabric."""
    tag = run_tag(made.id)
    before = host_state()
    cable = made.fabric.racks["a"]
    assert cable.port.netns is None and Path("/sys/class/net", cable.port.name).exists()
    for name in ("worker-0", "worker-1"):
        assert str(made.places[name].port.netns).endswith(f"nw-{tag}-racks")
        assert not Path("/sys/class/net", made.places[name].port.name).exists()
    everybody = [place.data_address for place in made.places.values()]
    everybody.append(made.networks.switch_address)
    for source in made.places:
        reached = made.inside(source, "python", "-c", REACH, *everybody)
        assert reached.splitlines() == [f"reached {address}" for address in everybody]
    assert host_state() == before
    made.fabric.destroy()
    assert left_of(made.id) == []
    assert not Path("/sys/class/net", cable.port.name).exists()
    assert not Path(f"/run/netns/nw-{tag}-racks").exists()
