"""The commands that the dry run shows."""

from __future__ import annotations

import pytest

from testbed.cli.tc_commands import host_commands, link_commands, tc_commands
from testbed.links.agent.protocol import LinkSettings
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState
from testbed.topology import Cable, Interface

MBIT, MS = 1_000_000, 1_000_000
CABLE = Cable(Interface(None, 3, "w-nic"), Interface(None, 4, "w-port"))
UP, DOWN = LinkDirection("w", "up"), LinkDirection("w", "down")
DELAYED = LinkState(100 * MBIT, 640_000, impairments=Impairments(delay_ns=10 * MS, loss=0.01))


def test_tc_commands_name_every_value() -> None:
    root, leaf_class, leaf = tc_commands(
        UP, LinkState(100 * MBIT, 625_000, overhead_bytes=24), "data"
    )
    assert root == "tc qdisc add dev data root handle 4e57: htb default 10"
    assert leaf_class == (
        "tc class add dev data parent 4e57: classid 4e57:10 htb rate 100000000bit ceil 100000000bit "
        "burst 3125b cburst 3125b quantum 60000 overhead 24"
    )
    assert leaf == "tc qdisc add dev data parent 4e57:10 handle 4e58: bfifo limit 625000b"


@pytest.mark.parametrize(("drop", "word"), [(True, "dropped"), (False, "wait")])
def test_an_outage_is_shown_as_a_comment(drop: bool, word: str) -> None:
    (line,) = tc_commands(DOWN, LinkState(0, 1000, drop), "port0")
    assert line.startswith("# w down: outage")
    assert word in line


@pytest.mark.parametrize(
    ("end", "at", "queue", "line", "arriving"),
    [
        (UP, "nic", "w-nic", "nwi4", "w-port"),
        (UP, "network", "nwi4", "w-nic", "w-port"),
        (DOWN, "nic", "w-port", "nwi3", "w-nic"),
    ],
)
def test_queue_and_line_are_at_different_devices(
    end: LinkDirection, at: str, queue: str, line: str, arriving: str
) -> None:
    commands = link_commands(end, DELAYED, CABLE, at)
    assert f"tc qdisc add dev {queue} root handle 4e57: htb default 10" in commands
    netem = commands[-1]
    assert netem.startswith(f"tc qdisc add dev {line} root handle 4e5a: netem limit ")
    assert netem.endswith("rate 8000000gbit delay 10000us loss random 1%")
    assert f"tc qdisc add dev {arriving} ingress" in commands
    assert commands.index(f"tc qdisc add dev {arriving} ingress") < len(commands) - 1


def test_a_line_is_there_only_where_it_is_ever_needed() -> None:
    plain = LinkState(100 * MBIT, 625_000)
    assert not any("netem" in command for command in link_commands(UP, plain, CABLE))
    assert "netem" in link_commands(UP, plain, CABLE, impaired=True)[-1]


def test_bundles_and_the_routes_tcp_are_among_the_commands() -> None:
    bundles = "ip link set dev w-nic gso_max_segs 43"
    assert host_commands(CABLE, LinkSettings(43)) == [bundles]
    settings = LinkSettings(43, congestion="bbr", rto_min_ms=400, ecn=True)
    assert host_commands(CABLE, settings) == [
        bundles,
        "ip route change $(ip -4 route show dev w-nic scope link proto kernel) dev w-nic scope link proto kernel "
        "congctl bbr rto_min 400ms features ecn",
    ]
