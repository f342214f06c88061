"""An engine that setup starts, with a network, processes and a /run of its own: what it changes, and what is restored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.host import images
from testbed.host.paths import ROOT
from testbed.process import environment

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.timeout(200)]
ALONE = ["sh", str(ROOT / "tests" / "alone.sh")]
LIFE = '''
import json, os, subprocess, sys, time
from pathlib import Path
from testbed.host import docker_engine as engine, docker_engine as own_engine
folder, flags, forwards, during = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], sys.argv[4:]
OUTSIDE = """ip netns add outside; ip link add way type veth peer name out netns outside; ip link set way up
ip address add 192.0.2.254/24 dev way; ip -n outside link set out up; ip -n outside address add 192.0.2.1/24 dev out
ip -n outside route add 10.208.77.0/24 via 192.0.2.254"""
options = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host=unix://{folder}/sock"]
os.environ["DOCKER_HOST"] = f"unix://{folder}/sock"
places = {"state": folder / "state.json"}
def look():
    rules = [subprocess.run([tool, "-S"], capture_output=True, text=True).stdout for tool in ("iptables", "ip6tables")]
    nat = subprocess.run(["iptables", "-t", "nat", "-S"], capture_output=True, text=True).stdout
    # looking makes empty tables
    return {"links": sorted(os.listdir("/sys/class/net")), "rules": rules, "nat": nat, **own_engine.host().settings}
Path("/proc/sys/net/ipv4/ip_forward").write_text(forwards)  # a new namespace has the host's
subprocess.run(OUTSIDE, shell=True, check=True)
found = {"before": look()}
process = own_engine.start(options, flags, log=folder / "log", **places)
while engine.version() is None:
    if process.poll() is not None:
        sys.exit((folder / "log").read_text())
    time.sleep(0.1)
own_engine.note_up(**places)
found["up"] = look()
if during:
    exec(during[0])
import threading
threading.Thread(target=process.wait).start()
found["done"] = own_engine.stop(**places)
found["after"] = look()
found["again"] = own_engine.stop(**places)
found["kept"] = (folder / "state.json").exists()
print("found", json.dumps(found))
'''
TALK = """
def docker(*words):
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()
tag = docker("load", "--quiet", "--input", str(folder / "image.tar")).rpartition(": ")[2].replace("Loaded image: ", "")
docker("network", "create", "--internal", "--subnet", "10.208.77.0/24", "inside")
docker("run", "--detach", "--name", "listens", "--network", "inside", "--ip", "10.208.77.5", tag,
       "python3", "-m", "http.server", "--bind", "10.208.77.5", "8000")
ask = "import socket, time\\nfor _ in range(100):\\n    try:\\n        socket.create_connection(('10.208.77.5', 8000)).close(); print('reached'); break\\n    except OSError: time.sleep(0.1)\\ntry:\\n    socket.create_connection(('192.0.2.1', 80), 2)\\nexcept OSError as error: print(type(error).__name__)"
found["talk"] = docker("run", "--rm", "--network", "inside", tag, "python3", "-c", ask)
found["talking"] = look()
docker("rm", "--force", "listens")
docker("network", "rm", "inside")
"""


def life(
    folder: Path, flags: list[str] | None, *during: str, forwards: str = "0"
) -> dict[str, Any]:
    """Start an engine and stop it again; what was found meanwhile. ``flags``: None for setup's own.

    A packet that the host forwards comes to somebody outside, who refuses the connection.
    """
    script = [sys.executable, "-c", LIFE, str(folder), json.dumps(flags), forwards, *during]
    done = subprocess.run(
        [*ALONE, *script], env=environment(), capture_output=True, text=True, check=False, timeout=150
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found")]
    found: dict[str, Any] = json.loads(line.removeprefix("found"))
    return found


@pytest.mark.parametrize("forwards", ["0", "1"])
def test_containers_of_ours_reach_each_other_and_nobody_outside(
    tmp_path: Path, image: str, forwards: str
) -> None:
    save = ["docker", "save", "--output", str(tmp_path / "image.tar"), images.tags().base]
    subprocess.run(save, check=True, capture_output=True)
    found = life(tmp_path, None, TALK, forwards=forwards)
    assert found["talk"].splitlines() == ["reached", "TimeoutError"]
    assert found["after"] == found["before"]
    assert found["talking"]["net/ipv4/ip_forward"] == forwards
    assert found["done"][0].startswith("stopped the engine")
    assert (found["again"], found["kept"]) == ([], False)
    if forwards == "0":
        for what in ("rules", "nat"):
            assert found["talking"][what] == found["up"][what] == found["before"][what]
        assert len(found["done"]) == 1


def test_what_an_engine_with_its_own_defaults_changes_is_restored(tmp_path: Path) -> None:
    """As the distribution's service does."""
    found = life(tmp_path, [])
    before, up = found["before"], found["up"]
    assert (before["net/ipv4/ip_forward"], up["net/ipv4/ip_forward"]) == ("0", "1")
    assert "DOCKER" in up["rules"][0] and "-P FORWARD DROP" in up["rules"][0]
    assert "docker0" in up["links"]
    assert found["after"] == before
    assert "set net.ipv4.ip_forward to 0 again" in found["done"]


def test_what_somebody_else_has_changed_since_is_left(tmp_path: Path) -> None:
    other = "Path('/proc/sys/net/ipv4/ip_forward').write_text('1')"
    found = life(tmp_path, None, other)
    assert found["after"]["net/ipv4/ip_forward"] == "1"
    assert len(found["done"]) == 1
