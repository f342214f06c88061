"""What a job moved around its links, in words; and what its connections account for."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from testbed.fidelity.evidence import Evidence
from testbed.fidelity.run_checks import class_bytes_expected
from testbed.fidelity.verdict import judge
from testbed.links.network.connections import Listening
from testbed.records.job_steps import CarriedRecord, SocketRecord
from testbed.records.manifest import THRESHOLDS
from testbed.runner.exec.judge import (
    bypass_findings,
    round_trips,
    socket_counts,
    unattributed_bytes,
)

FLOOR = THRESHOLDS.around_floor_bytes
MUCH = 50_000_000
NODES = ("worker-0", "worker-1")


def carried(node: str = "worker-0", **sent: int) -> list[dict[str, Any]]:
    """By role. As much comes as goes, but over the control network, where nothing does."""
    roles = {"data": MUCH, "control": 0, "loopback": 0, **sent}
    return [
        CarriedRecord(node, role, role, octets, 1, 0 if role == "control" else octets, 1).to_json()
        for role, octets in roles.items()
    ]


def connection(
    interface: str = "data",
    sent: int = 1_000_000,
    peer: str | None = "worker-1",
    own: str = "10.0.0.1:1",
    least_rtt_us: int | None = 30,
) -> dict[str, Any]:
    return SocketRecord(
        "worker-0", own, "10.0.0.2:29500", peer, interface, sent, 0, 1000, 0, 0, least_rtt_us, None
    ).to_json()


def both(**sent: int) -> list[dict[str, Any]]:
    return [*carried(**sent), *carried("worker-1")]


def test_a_job_that_keeps_to_its_links() -> None:
    assert bypass_findings(both(), [connection()], processes=1) == []
    assert bypass_findings(both(control=MUCH // 50), [], processes=1) == []  # 1 % of both ways
    assert bypass_findings(both(loopback=2 * MUCH), [], processes=1) == []


def test_little_data_leaves_a_floor() -> None:
    for more, found in ((0, 0), (1, 1)):
        nearly = [*carried(data=10, control=FLOOR + more), *carried("worker-1", data=10)]
        assert len(bypass_findings(nearly, [], processes=1)) == found


def test_the_control_network_counts_between_nodes_only() -> None:
    inside = connection("control", MUCH, own="10.1.0.1:7")
    (said,) = bypass_findings(both(control=MUCH), [inside], processes=1)
    assert f"worker-0 sent {MUCH} B over the control network" in said
    assert "from 10.1.0.1:7 to 10.0.0.2:29500 of worker-1" in said
    assert "$NARROWS_INTERFACE" in said and "$MASTER_ADDR" in said
    outside = connection("control", MUCH, peer=None)
    assert bypass_findings(both(control=MUCH + 66_000), [outside], processes=1) == []
    assert len(bypass_findings(both(control=2 * MUCH), [outside], processes=1)) == 1  # not TCP's
    for more, found in ((0, 0), (1, 1)):  # headers are the session's, too
        nearly = carried(data=10, control=MUCH + 1000 * 66 + FLOOR + more)
        assert len(bypass_findings(nearly, [outside], processes=1)) == found


@pytest.mark.parametrize(
    ("processes", "nodes", "data", "found"),
    [(1, 2, 100, 1), (2, 2, 100, 0), (1, 1, 100, 0), (1, 2, MUCH, 0)],
)
def test_loopback_is_a_sign_where_it_is_all_there_is(
    processes: int, nodes: int, data: int, found: int
) -> None:
    records = [r for node in NODES[:nodes] for r in carried(node, data=data, loopback=MUCH)]
    said = bypass_findings(records, [], processes=processes)
    assert len(said) == found
    assert all("127.0.0.1" in one and "--nproc" in one for one in said)


def test_it_is_a_finding_of_its_own_and_always_invalid() -> None:
    assert "around" not in judge(Evidence()).measures
    clean = judge(Evidence(bypasses=[]))
    assert clean.state == "valid" and clean.measures["around"]["deviation"] == 0
    found = judge(Evidence(bypasses=["a copied 1 B"], bypass_unwatched=["b was not watched"]))
    assert (found.state, found.reasons) == ("invalid", ["a copied 1 B"])
    assert found.measures["around"]["not_judged"] == 1
    unseen = judge(Evidence(bypasses=[], bypass_unwatched=["b was not watched"]))
    assert (
        unseen.state == "valid" and unseen.measures["around"] == "not measured: b was not watched"
    )


def test_connections_account_for_a_links_bytes_in_both_families() -> None:
    link = {"link": "worker-0", "direction": "up", "drops": 0}
    for own, header in (("10.0.0.1:1", 66), ("[fd00::1]:1", 86)):
        sockets = socket_counts(
            [connection(own=own), connection("control"), connection("loopback")]
        )
        expected = class_bytes_expected([{**link, "class_bytes": 5}], sockets)
        assert expected == {
            "worker-0 up": (5, 1_000_000 + 1000 * header, 1_000_000 + 1000 * header)
        }


def test_round_trips_are_those_over_links() -> None:
    sockets = [
        connection(), connection("control"), connection("loopback", peer="worker-0"),
        connection(least_rtt_us=None), connection(peer=None, least_rtt_us=7),
    ]  # fmt: skip
    assert round_trips(sockets) == [("worker-0", "worker-1", 30e-6), ("worker-0", None, 7e-6)]


def test_bytes_that_are_not_tcps_or_no_nodes_are_not_held_against_links() -> None:
    whole = connection(sent=MUCH - 66_000)
    assert unattributed_bytes(carried(), [whole]) == {}
    some = unattributed_bytes(both(), [whole, connection(peer=None, sent=0)])
    assert "no TCP connection accounts for" in some["worker-1 up"]
    assert some["worker-0 down"] == some["worker-1 up"] and "worker-0 up" not in some
    (spoken,) = unattributed_bytes(carried(), [whole, connection(peer=None, sent=0)]).items()
    assert spoken == ("worker-0 down", "it has spoken with somebody who is no node")


def test_ends_of_connections_that_the_kernel_had_no_room_for_are_told() -> None:
    """What comes before and after them is kept."""
    came: list[bytes | int] = [b"one", errno.ENOBUFS, b"two", errno.EAGAIN]

    class Notifications:
        def recv(self, _: int) -> bytes:
            first = came.pop(0)
            if isinstance(first, int):
                raise OSError(first, "no room")
            return first

    notifications: Any = Notifications()
    listening = Listening("netns", notifications)
    assert listening.missed is None
    listening.take()
    assert [data for _, data in listening.heard] == [b"one", b"two"]
    assert listening.missed == "connections ended faster than they could be noted"
    came.append(errno.EBADF)
    with pytest.raises(OSError, match="no room"):
        listening.take()
