"""The Compose file of a run: what it says, and that it says it in data every version reads alike."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from testbed.errors import MachineError
from testbed.fabric.docker.compose_file import (
    SHAPER,
    ComposePlan,
    Document,
    Templates,
    load_templates,
    render,
    to_yaml,
)
from testbed.fabric.docker.engine import how_ended
from testbed.host.checks import POOL, free_subnets, parse_route, routed
from testbed.host.paths import ROOT
from testbed.links.network.namespaces import SETTINGS
from testbed.scenario.link_state import MTU_BYTES
from testbed.topology import Machine, NodeSpec, RequestedLimits

GOLDEN = Path(__file__).parents[1] / "golden" / "compose.yaml"
SPECS = [
    NodeSpec("server", "server", "server", 0, 0),
    NodeSpec("worker-0", "worker", "worker", 0, 1),
    NodeSpec("worker-1", "worker", "worker", 1, 2, "cuda"),
]
PLAN = ComposePlan(
    id="a1b2",
    image="narrows/node:0123456789ab",
    data=IPv4Network("10.208.4.0/24"),
    control=IPv4Network("10.208.5.0/24"),
    machine=Machine(processes=32_768, memory_bytes=16 << 30),
)


@pytest.fixture(scope="module")
def templates() -> Templates:
    return load_templates(ROOT / "compose")


@pytest.fixture
def document(templates: Templates) -> Document:
    return render(SPECS, PLAN, templates)


def test_file_is_the_golden_one(document: Document) -> None:
    assert to_yaml(document) == GOLDEN.read_text()


def test_every_node_has_no_rights(document: Document) -> None:
    assert set(document["services"]) == {"server", "worker-0", "worker-1"}
    for service in document["services"].values():
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
        assert service["read_only"] and service["init"]
        assert service["user"] == "10001:10001"
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service and "volumes" not in service


def test_every_node_is_bounded(templates: Templates) -> None:
    modest = replace(SPECS[1], limits=RequestedLimits(100, 1 << 30, 1 << 20))
    services = render([SPECS[0], modest], replace(PLAN, shaper=True), templates)["services"]
    server, worker = services["server"], services["worker-0"]
    assert (server["pids_limit"], server["mem_limit"]) == (16_384, 14 << 30)
    assert server["tmpfs"] == [f"/tmp:size={7 << 30}"]
    assert (worker["pids_limit"], worker["mem_limit"]) == (100, 1 << 30)
    assert worker["memswap_limit"] == 1 << 30 and worker["tmpfs"] == [f"/tmp:size={1 << 20}"]
    assert "mem_limit" not in services[SHAPER]


def test_token_is_in_no_file(document: Document) -> None:
    for service in document["services"].values():
        assert service["environment"] == {"NARROWS_TOKEN": None}


def test_addresses_are_distinct_and_inside(document: Document) -> None:
    for name, subnet in (("data", PLAN.data), ("control", PLAN.control)):
        given = [s["networks"][name]["ipv4_address"] for s in document["services"].values()]
        assert len(set(given)) == len(SPECS)
        assert all(IPv4Network(address).subnet_of(subnet) for address in given)
        assert str(subnet[1]) not in given


def test_only_cuda_nodes_get_a_device(templates: Templates) -> None:
    services = render(SPECS, replace(PLAN, gpus=2), templates)["services"]
    assert "deploy" not in services["server"] and "deploy" not in services["worker-0"]
    (device,) = services["worker-1"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "capabilities": ["gpu"], "device_ids": ["0"]}


def test_data_is_mounted_where_it_is_and_read_only(templates: Templates) -> None:
    services = render(SPECS, replace(PLAN, folders=(Path("/data/mnist"),)), templates)["services"]
    (volume,) = services["worker-0"]["volumes"]
    assert volume["source"] == volume["target"] == "/data/mnist"
    assert volume["read_only"] is True


def test_compose_puts_no_variable_in_a_path(templates: Templates) -> None:
    written = to_yaml(
        render(SPECS, replace(PLAN, folders=(Path("/data/$HOME${USER}"),)), templates)
    )
    assert 'source: "/data/$$HOME$${USER}"' in written
    assert "$" not in written.replace("$$", "")


def test_shaper_alone_has_rights(templates: Templates) -> None:
    services = render(SPECS, replace(PLAN, shaper=True), templates)["services"]
    shaper = services.pop(SHAPER)
    assert shaper["cap_drop"] == ["ALL"] and "NET_ADMIN" in shaper["cap_add"]
    assert shaper["pid"] == "host" and shaper["network_mode"] == "host"
    assert all("cap_add" not in service for service in services.values())


def test_templates_are_not_changed_by_rendering(templates: Templates) -> None:
    before = to_yaml(templates.base)
    render(SPECS, replace(PLAN, shaper=True), templates)
    assert to_yaml(templates.base) == before


@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
def test_old_and_new_yaml_read_the_same(document: Document, version: tuple[int, int]) -> None:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = version
    assert yaml.load(to_yaml(document)) == document


def test_free_subnets_avoid_what_is_taken() -> None:
    taken = [
        IPv4Network("10.208.0.0/24"),
        IPv4Network("10.208.1.128/25"),
        IPv4Network("10.0.0.0/9"),
    ]
    data, control = free_subnets(taken, nodes=5)
    assert (str(data), str(control)) == ("10.208.2.0/24", "10.208.3.0/24")


def test_free_subnets_start_elsewhere_and_wrap() -> None:
    pairs = {free_subnets([], nodes=5, start=start) for start in (0, 1, 2)}
    assert len({network for pair in pairs for network in pair}) == 6
    last = free_subnets([], nodes=5, start=2**11 * 7 - 1)
    assert all(network.subnet_of(POOL) for network in last)


@pytest.mark.parametrize(("nodes", "prefix"), [(1, 24), (248, 24), (249, 23), (504, 23), (505, 22)])
def test_subnets_grow_with_the_nodes(nodes: int, prefix: int) -> None:
    """Eight addresses of each are not for nodes."""
    assert {network.prefixlen for network in free_subnets([], nodes)} == {prefix}


def test_no_subnet_left_says_what_to_do() -> None:
    with pytest.raises(MachineError, match="testbed clean"):
        free_subnets([POOL], nodes=2)


def test_routes_are_read(tmp_path: Path) -> None:
    line = "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0"
    assert parse_route(line) == IPv4Network("172.17.0.0/16")
    default = "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0"
    halves = [f"tun0\t{first}\t0100080A\t0003\t0\t0\t0\t00000080\t0\t0\t0" for first in ("00000000", "00000080")]  # fmt: skip
    assert [str(parse_route(half)) for half in halves] == ["0.0.0.0/1", "128.0.0.0/1"]
    rows = ["Iface\tDestination", line.replace("000011AC", "000010AC"), default, *halves, line]
    (tmp_path / "route").write_text("\n".join(rows) + "\n")
    networks = [IPv4Network("172.16.0.0/16"), IPv4Network("172.17.0.0/16")]
    assert routed(tmp_path / "route") == networks, "all of them, and the default route is none"
    assert parse_route(default).prefixlen == 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"ExitCode": 137}, "killed by signal 9"),
        ({"ExitCode": 137, "OOMKilled": True}, "killed for want of memory"),
        ({"ExitCode": 3}, "ended with exit code 3"),
        ({"ExitCode": 127, "Error": "no such file"}, "could not be started: no such file"),
    ],
)
def test_how_a_container_ended(state: dict[str, object], said: str) -> None:
    assert how_ended(state) == said


def test_nodes_have_the_tcp_settings_of_every_fabric(document: Document) -> None:
    nodes = [service for name, service in document["services"].items() if name != SHAPER]
    assert nodes
    assert all(service["sysctls"] == SETTINGS for service in nodes)


def test_packets_are_as_large_as_on_every_fabric(document: Document) -> None:
    options = document["networks"]["data"]["driver_opts"]
    assert options == {"com.docker.network.driver.mtu": str(MTU_BYTES)}
