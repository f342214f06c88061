"""The stack of a run on a swarm, where its nodes are, and what hosts' clocks and networks must be like."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from testbed.errors import ExperimentError, InputError, MachineError
from testbed.fabric.base import START_S, ExecEnvironment
from testbed.fabric.docker.compose_file import Document, load_templates, to_yaml
from testbed.fabric.swarm.agents import AgentListener, ClockReading, HostAgents, best, moved_ns
from testbed.fabric.swarm.engine import SwarmTask, _gpus, _runs
from testbed.fabric.swarm.stack_file import (
    AGENT,
    CONTROLLER,
    StackPlan,
    SwarmHost,
    Underlay,
    assign,
    check_underlay,
    render,
    without_nodes,
)
from testbed.host.paths import ROOT
from testbed.links.agent.protocol import error_to_json
from testbed.links.network.namespaces import OWN, SETTINGS
from testbed.scenario.link_state import LinkDirection
from testbed.topology import NodeSpec, RackSpec, RequestedLimits

SPECS = [
    NodeSpec("server", "server", "server", 0, 0),
    *(NodeSpec(f"worker-{rank}", "worker", "worker", rank, rank + 1) for rank in range(4)),
]
HOSTS = [
    SwarmHost("id-a", "a", processors=2, manager=True),
    SwarmHost("id-b", "b", processors=2, labels={"gpu": "a100"}),
    SwarmHost("id-c", "c", processors=4, labels={"gpu": "a100"}, gpus=1),
]

NETWORK = IPv4Network("10.208.4.0/24")


def names(places: dict[str, SwarmHost]) -> str:
    return "".join(host.name for host in places.values())


def document(**changes: object) -> Document:
    specs = [
        replace(SPECS[0], limits=RequestedLimits(processes=99, memory_bytes=1 << 30)),
        *SPECS[1:],
    ]
    data, control = IPv4Network("10.208.4.0/24"), IPv4Network("10.208.5.0/24")
    hosts = assign(SPECS, HOSTS, {})
    plan = StackPlan("a1b2", "sha256:ab", data, control, hosts, "id-a", control="10.208.5.9")
    return render(specs, replace(plan, **changes), load_templates(ROOT / "compose"))  # type: ignore[arg-type]


def test_nodes_are_spread_by_processors() -> None:
    assert names(assign(SPECS, HOSTS, {})) == "cabcc"


def test_a_group_is_where_its_label_is() -> None:
    assert set(names(assign(SPECS, HOSTS, {"worker": "gpu=a100"}))[1:]) == {"b", "c"}
    with pytest.raises(InputError, match=r"rack=7.*label-add rack=7"):
        assign(SPECS, HOSTS, {"server": "rack=7"})


def test_a_rack_is_on_one_host() -> None:
    racks = [RackSpec("r", ("worker-0", "worker-2")), RackSpec("s", ("worker-1", "worker-3"))]
    hosts = assign(SPECS, HOSTS, {}, racks)
    assert names(hosts) == "ccaca"
    with pytest.raises(InputError, match=r"worker-0.*rack.*host 'a'.*gpu=a100"):
        assign(
            SPECS,
            [HOSTS[0], HOSTS[1]],
            {"worker": "gpu=a100"},
            [RackSpec("r", ("server", "worker-0"))],
        )


def test_nodes_of_a_rack_count_once_for_its_host() -> None:
    """Those of two hosts with 2 processors are taken until the third, with 4, is as free again."""
    workers = [NodeSpec(f"worker-{n}", "worker", "worker", n, n + 1) for n in range(8)]
    rack = RackSpec("r", ("worker-0", "worker-1", "worker-2"))
    assert names(assign([SPECS[0], *workers], HOSTS, {}, [rack])) == "cccc" + "ababc"


def test_every_gpu_is_given_once() -> None:
    cuda = [replace(spec, device="cuda") for spec in SPECS]
    assert names(assign(cuda[:1], HOSTS, {})) == "c"
    with pytest.raises(MachineError, match="worker-0"):
        assign(cuda[:2], HOSTS, {})


def test_gpus_of_an_engine_are_counted_however_it_names_them() -> None:
    named = [{"NamedResourceSpec": {"Kind": "NVIDIA-GPU", "Value": f"gpu{n}"}} for n in range(2)]
    counted = {"DiscreteResourceSpec": {"Kind": "NVIDIA-GPU", "Value": 3}}
    other = {"DiscreteResourceSpec": {"Kind": "SSD", "Value": 9}}
    assert _gpus([*named, counted, other]) == 5


def test_nothing_is_started_again_or_reached_from_outside() -> None:
    whole = document()
    for service in whole["services"].values():
        assert service["deploy"]["restart_policy"] == {"condition": "none"}
        assert service["deploy"]["endpoint_mode"] == "dnsrr"
        assert "ports" not in service
    assert all(network["internal"] for network in whole["networks"].values())


def test_only_the_agent_has_rights_and_nobody_the_engine() -> None:
    services = document()["services"]
    assert services[AGENT]["cap_add"] == ["NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]
    assert services[AGENT]["deploy"]["mode"] == "global"
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"]
        assert name == AGENT or "cap_add" not in service
        assert "docker.sock" not in str(service)
    assert services["worker-0"]["user"] == "10001:10001"
    assert services["worker-0"]["sysctls"] == SETTINGS


def test_a_node_is_bounded_and_bound_to_its_host() -> None:
    deploy = document()["services"]["server"]["deploy"]
    assert deploy["placement"] == {"constraints": ["node.id == id-c"]}
    assert deploy["resources"]["limits"] == {"memory": str(1 << 30), "pids": 99}


def test_a_task_for_commands_knows_no_secret_and_has_a_copy_of_the_folder() -> None:
    offered = ExecEnvironment(Path("/root/job"), Path("/run/marks"), "1000:1000")
    noise = NodeSpec("noise", "noise", "host", 0, 5)
    specs = [*SPECS, noise]
    hosts = assign(specs, HOSTS, {})
    plan = StackPlan("a1b2", "sha256:ab", NETWORK, NETWORK, hosts, "id-a", exec_environment=offered)
    services = render(specs, plan, load_templates(ROOT / "compose"))["services"]
    own = services["worker-0"]
    assert "secrets" not in own
    assert (own["init"], own["user"], own["read_only"]) == (False, "1000:1000", True)
    assert own["command"][-3:-1] == ["--commands", "/root/job"]
    assert int(own["command"][-1]) > START_S
    targets = {volume["target"]: volume["type"] for volume in own["volumes"]}
    assert targets == dict.fromkeys(("/tmp", "/dev/shm", "/root", "/root/job", "/output"), "tmpfs")
    assert services["noise"]["secrets"] == ["token"]


def test_the_secret_is_in_no_text() -> None:
    """It is the swarm's; and the file says everything as text that every version reads alike."""
    text = to_yaml(document())
    assert YAML(typ="safe").load(text)["secrets"] == {
        "token": {"external": True, "name": "narrows-a1b2-token"}
    }
    assert "NARROWS_TOKEN" not in text


def test_the_controller_comes_first_and_alone() -> None:
    first = without_nodes(document())
    assert list(first["services"]) == [CONTROLLER]
    assert first["services"][CONTROLLER]["deploy"]["placement"] == {
        "constraints": ["node.id == id-a"]
    }
    assert set(first["networks"]) == {"data", "control"}


def placed(whole: Document) -> list[str]:
    """The constraints of the controller's task."""
    constraints: list[str] = whole["services"][CONTROLLER]["deploy"]["placement"]["constraints"]
    return constraints


def test_the_controllers_task_is_where_the_session_is_whoever_else_manages() -> None:
    """The session enters the task's network by its process, which it sees on its own host alone."""
    elsewhere = assign(SPECS, HOSTS[1:], {})
    assert "id-a" not in {host.id for host in elsewhere.values()}
    assert placed(document(hosts=elsewhere)) == ["node.id == id-a"]
    assert placed(document(manager="")) == ["node.role == manager"], "of a plan made elsewhere"


RATES = {LinkDirection("server", "up"): 400_000_000, LinkDirection("worker-0", "up"): 200_000_000}
PLACES = {"server": HOSTS[1], "worker-0": HOSTS[1], "worker-1": HOSTS[0]}


def test_links_take_at_most_seven_tenths_of_the_real_network() -> None:
    """600 Mbit/s on one host, and 50 B more in each frame of 1514."""
    shares = check_underlay([Underlay("a", None, 0.0), Underlay("b", 1e9, 2e-4)], PLACES, RATES)
    assert shares == {"b": pytest.approx(0.6 * 1564 / 1514)}
    with pytest.raises(MachineError, match=r"host b.*620 Mbit/s.*850 Mbit/s"):
        check_underlay([Underlay("b", 0.85e9, 2e-4)], PLACES, RATES)


def test_a_host_that_is_far_away_is_refused() -> None:
    with pytest.raises(MachineError, match=r"host a takes 1\.50 ms") as refused:
        check_underlay([Underlay("a", 1e9, 1.5e-3)], PLACES, RATES)
    assert "dilation" not in refused.value.fix, "round trips of hosts do not grow with it"


def test_the_shortest_round_trip_tells_the_clock() -> None:
    readings = [ClockReading(900, 400, 0), ClockReading(510, 20, 0), ClockReading(100, 600, 0)]
    assert best(readings).ahead_ns == 510
    assert moved_ns(ClockReading(500, 10, 0), ClockReading(470, 20, 0)) == 60


def task(state: str, error: str = "") -> SwarmTask:
    return SwarmTask("worker-0", "worker-0", "id-b", state, error, 1, "", {})


def test_a_task_that_will_not_run_says_why() -> None:
    hosts = {"id-b": "b"}
    assert _runs(task("running"), hosts)
    assert not _runs(task("preparing"), hosts)
    with pytest.raises(
        ExperimentError, match=r"on host b .*save narrows/node:\w+ \| ssh b docker load"
    ):
        _runs(task("rejected", "No such image: sha256:ab"), hosts)
    with pytest.raises(ExperimentError, match=r"`docker pull registry:5000/node@sha256:ab`"):
        _runs(task("rejected", "No such image: registry:5000/node@sha256:ab"), hosts)


def greet(address: str, **said: object) -> socket.socket:
    from testbed.topology import AGENT_PORT

    connected = socket.create_connection((address, AGENT_PORT))
    connected.sendall(json.dumps(said).encode() + b"\n")
    return connected


def test_only_who_has_the_token_is_an_agent() -> None:
    listener = AgentListener("127.0.0.77", OWN, "right", {host.id: host for host in HOSTS[:1]})
    try:
        strangers = [
            greet("127.0.0.77", token="wrong", host="id-a", purpose="agent"),
            greet("127.0.0.77", token="right", host="id-x", purpose="agent"),
            greet("127.0.0.77", token="right", host="id-a", purpose="pour"),
        ]
        with pytest.raises(ExperimentError, match="connected from a"):
            listener.agents(0.3)
        real = greet("127.0.0.77", token="right", host="id-a", purpose="agent")
        (agent,) = listener.agents(5.0)
        answers = threading.Thread(target=answer_clock, args=(real,))
        answers.start()
        reading = agent.clock()
        answers.join()
        assert abs(reading.ahead_ns - 10**12) <= reading.error_ns
        agent.close()
        assert not agent.alive()
        for each in (*strangers, real):
            each.close()
    finally:
        listener.close()


def test_a_task_whose_first_process_is_still_starting_is_attached_to_later() -> None:
    listener = AgentListener("127.0.0.78", OWN, "right", {host.id: host for host in HOSTS[:1]})
    try:
        connected = greet("127.0.0.78", token="right", host="id-a", purpose="agent")
        (agent,) = listener.agents(5.0)
        agents = HostAgents([agent], {"worker-0": "id-a"})
        agents._netns["worker-0"] = "/netns/worker-0"
        answers = threading.Thread(target=attach_late, args=(connected, "127.0.0.78"))
        answers.start()
        with agents.attach("worker-0", listener) as attached:
            assert attached.recv(5) == b"begun"
        agent.close()
        answers.join(20)
        assert not answers.is_alive()
    finally:
        listener.close()


def attach_late(connected: socket.socket, address: str) -> None:
    """An agent that finds nobody in the task before it is asked for the third time."""
    asked = 0
    with connected, connected.makefile() as requests:
        for line in requests:
            request, answer = json.loads(line), dict[str, object]()
            if request["op"] == "clock":
                answer = {"ok": [time.monotonic_ns(), time.time_ns()]}
            else:
                asked += 1
                given = greet(address, token="right", host="id-a", purpose=request["op"])
                if asked == 3:
                    given.sendall(b"begun")
                    answer = {"ok": None}
                else:
                    answer = {"error": error_to_json(ExperimentError("Connection refused"))}
                given.close()
            connected.sendall(json.dumps({"id": request["id"], **answer}).encode() + b"\n")


def answer_clock(connected: socket.socket) -> None:
    """An agent of a host whose clock is 1000 s ahead."""
    request = json.loads(connected.makefile().readline())
    now = [time.monotonic_ns() + 10**12, time.time_ns()]
    connected.sendall(json.dumps({"id": request["id"], "ok": now}).encode() + b"\n")
