"""In containers: connections are followed to the byte, and what takes the unshaped network is caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_rig import Command

from testbed.record.directory import read_events

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
SCENARIO = """
name: around-containers
nodes: {worker: {role: worker, count: 2}}
links:
  default: {up: {rate: 100 Mbit/s, queue: 50 ms}, down: {rate: 100 Mbit/s, queue: 50 ms}}
congestion: cubic
"""
BYTES = 3_000_000
TALK = """
import fcntl, os, socket, struct, sys, time
from pathlib import Path
ready = Path("ready")
def address(name):
    with socket.socket() as any_socket:
        return socket.inet_ntoa(fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", name.encode()))[20:24])
if os.environ["RANK"] == "0":
    others = {"lo", os.environ["NARROWS_INTERFACE"]}
    (control,) = {name for _, name in socket.if_nameindex()} - others
    chosen = address(control) if sys.argv[1] == "control" else os.environ["NARROWS_ADDRESS"]
    with socket.create_server((chosen, 4321)) as listener:
        Path("new").write_text(chosen)
        Path("new").rename(ready)
        taken, _ = listener.accept()
        with taken:
            while taken.recv(1 << 16):
                pass
else:
    while not ready.exists():
        time.sleep(0.05)
    with socket.create_connection((ready.read_text(), 4321)) as sender:
        sender.sendall(bytes(3_000_000))
"""


@pytest.mark.parametrize("network", ["data", "control"])
def test_the_network_that_bytes_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, network: str
) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "talk.py").write_text(TALK)
    monkeypatch.chdir(tmp_path)
    options = ("--fabric", "docker", "--", "python", "talk.py", network)
    code, _, err = Command(tmp_path, "exec", "scenario.yaml", *options).finish(240.0)
    assert code in (0, 1), err
    (run,) = (tmp_path / "runs").iterdir()
    certificate, events = json.loads((run / "certificate.json").read_text()), read_events(run)
    (large,) = [one for one in events["socket"] if one["bytes_sent"] >= BYTES]
    assert (large["node"], large["peer_node"], large["interface"]) == (
        "worker-1",
        "worker-0",
        network,
    )
    assert large["bytes_sent"] - large["bytes_retransmitted"] == BYTES and large["ended_s"]
    said = [reason for reason in certificate["reasons"] if "control network" in reason]
    assert len(said) == (network == "control")
    assert all("$NARROWS_INTERFACE" in one and "of worker-0" in one for one in said)
    measures = certificate["measures"]
    assert measures["around"]["state"] == ("invalid" if said else "valid")
    if network == "data":
        assert measures["byte_identity"]["state"] == "valid"
