"""A job that goes around its links is caught by ``testbed exec``, and one that does not is left in peace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command
from verdict_rig import accepted_run

from testbed.records.run_directory import read_events

pytestmark = pytest.mark.timeout(400)
SCENARIO = """
name: around
nodes: {worker: {role: worker, count: 2}}
links:
  default: {up: {rate: 100 Mbit/s, queue: 50 ms}, down: {rate: 100 Mbit/s, queue: 50 ms}}
congestion: cubic
"""
RPC = """
import os, sys, torch, torch.distributed.rpc as rpc
rank, size = int(os.environ["RANK"]), 500_000
where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
chosen = {} if sys.argv[1] == "default" else {"_transports": ["uv"], "_channels": ["basic"]}
options = rpc.TensorPipeRpcBackendOptions(init_method=where, rpc_timeout=60, **chosen)
rpc.init_rpc(f"worker-{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 1:
    for _ in range(3):
        assert rpc.rpc_sync("worker-0", torch.neg, args=(torch.ones(size),)).sum() == -size
rpc.shutdown()
"""
RPC_BYTES = 3 * 4 * 500_000
TALK = """
import os, re, socket, subprocess, sys, threading, time
from pathlib import Path
network, folder, listens = sys.argv[1], Path(sys.argv[2]), os.environ["RANK"] == "0"
told = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True).stdout
known = {"127.0.0.1": "loopback", os.environ["NARROWS_ADDRESS"]: "data"}
mine = {known.get(a, "control"): a for a in re.findall(r"inet ([0-9.]+)", told)}
ready = folder / "ready"
def hear():
    with socket.create_server((mine[network], 4321)) as listener:
        (folder / "new").write_text(mine[network])
        (folder / "new").rename(ready)
        taken, _ = listener.accept()
        with taken:
            while taken.recv(1 << 16):
                pass
def speak():
    while not ready.exists():
        time.sleep(0.05)
    with socket.create_connection((ready.read_text(), 4321)) as sender:
        sender.sendall(bytes(3_000_000))
if listens:
    thread = threading.Thread(target=hear)
    thread.start()
if listens == (network == "loopback"):
    speak()
if listens:
    thread.join()
"""


def perform(
    folder: Path, script: str, *arguments: str, around: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The certificate, and the events by kind. ``around``: the run is to be invalid for what went around its links."""
    folder.chmod(0o777)
    scenario, program = folder / "scenario.yaml", folder / "job.py"
    scenario.write_text(SCENARIO)
    program.write_text(script)
    command = Command(folder, "exec", str(scenario), "--", "python", str(program), *arguments)
    code, _, err = command.finish(300.0)
    (directory,) = command.runs()
    certificate = json.loads((directory / "certificate.json").read_text())
    if around:
        assert (code, certificate["verdict"]) == (1, "invalid"), err
        assert certificate["measures"]["around"]["state"] == "invalid"
    else:
        accepted_run(directory, code)
        assert certificate["measures"]["around"]["state"] == "valid"
    processes = read_events(directory)["process"]
    assert [process["status"] for process in processes] == [0, 0], err
    return certificate, read_events(directory)


def said(certificate: dict[str, Any]) -> list[str]:
    """What went around; a busy machine may be blamed besides."""
    words = ("loopback", "control network")
    return [reason for reason in certificate["reasons"] if any(word in reason for word in words)]


# by default a job has these channels and others, of which the test is afraid
@pytest.mark.judged
@pytest.mark.parametrize("channels", ["default", pytest.param("links", marks=pytest.mark.nightly)])
def test_torch_rpc_goes_over_its_links_whatever_its_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: str
) -> None:
    """Of processes of one host it would copy memory, if they could see each other."""
    monkeypatch.chdir(tmp_path)
    certificate, events = perform(tmp_path, RPC, channels)
    assert said(certificate) == []
    identity = certificate["measures"]["byte_identity"]
    assert identity["state"] == "valid" and identity["judged"] == 4
    over = [one["bytes_sent"] for one in events["socket"] if one["interface"] == "data"]
    assert sum(over) >= 2 * RPC_BYTES  # there and back
    (way,) = certificate["ways"]
    assert {way["node"], way["peer"]} == {"worker-0", "worker-1"}


@pytest.mark.parametrize(
    ("network", "word"),
    [
        pytest.param("data", None, marks=pytest.mark.judged),
        ("loopback", "127.0.0.1"),
    ],  # over the control network nodes meet in containers only
)
def test_other_networks_than_the_shaped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, word: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    certificate, events = perform(tmp_path, TALK, network, str(tmp_path), around=network != "data")
    reasons = said(certificate)
    assert len(reasons) == (word is not None)
    assert all(network in reason and str(word) in reason for reason in reasons)
    large = [one for one in events["socket"] if one["bytes_sent"] >= 3_000_000]
    assert [one["interface"] for one in large] == [network]
    assert large[0]["bytes_sent"] - large[0]["bytes_retransmitted"] == 3_000_000
    carried = {one["role"]: one for one in events["carried"] if one["node"] == large[0]["node"]}
    assert [role for role, one in carried.items() if one["sent_bytes"] > 100_000] == [network]


MEET = """
import mmap, os, socket, sys, time
rank, found = int(os.environ["RANK"]), []
for number, folder in enumerate(("/tmp", "/var/tmp", "/dev/shm", "/run", os.environ["HOME"])):
    try:
        made = socket.socket(socket.AF_UNIX)
        made.bind(f"{folder}/narrows-{rank}")
        made.listen()
        with open(f"{folder}/narrows-memory-{rank}", "wb") as file:
            file.truncate(4096)
    except OSError:
        pass
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
here = libc.shmget(0x4E41, 4096, 0o1666 if rank == 0 else 0o666)
open(f"ready-{rank}", "w").close()
while not os.path.exists(f"ready-{1 - rank}"):
    time.sleep(0.05)
for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run", os.environ["HOME"]):
    for name in (f"narrows-{1 - rank}", f"narrows-memory-{1 - rank}"):
        if os.path.exists(f"{folder}/{name}"):
            found.append(f"{folder}/{name}")
if rank == 1 and libc.shmget(0x4E41, 4096, 0o666) >= 0:
    found.append("System V's memory")
own = {int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"}
strange = [pid for pid in own if f"RANK={1 - rank}".encode() in open(f"/proc/{pid}/environ", "rb").read().split(bytes(1))]
print("found", found, strange)
open(f"met-{rank}", "w").write(repr(found + strange))
while not os.path.exists(f"met-{1 - rank}"):
    time.sleep(0.05)
"""


def test_nodes_meet_nowhere_but_in_the_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    perform(tmp_path, MEET)
    assert [(tmp_path / f"met-{rank}").read_text() for rank in range(2)] == ["[]", "[]"]
