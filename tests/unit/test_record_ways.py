"""What is on the way between two nodes, what that asks of travel times, and what excuses a late message."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.fidelity.completion import exclusion_rules
from testbed.fidelity.evidence import Evidence, gather, unattributed_bytes
from testbed.fidelity.reference import PathModel, RequestedLinks
from testbed.fidelity.service_curve import MessageGroup, OfferedLoad
from testbed.fidelity.verdict import judge
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.manifest import THRESHOLDS
from testbed.scenario.link_state import Impairments, LinkChange, LinkDirection, LinkState, Slot
from testbed.scenario.node_timeline import Flow, NodeChange

MS = 1_000_000
NODES = ("s", "w0", "w1")


def shape(rate: int = 10**7, overhead: int = 0, **impairments: Any) -> LinkState:
    return LinkState(rate, 50_000, False, overhead, Impairments(**impairments))


def asked(
    later: tuple[tuple[float, LinkDirection, LinkState], ...] = (), **ends: LinkState
) -> RequestedLinks:
    """All ends plain but those given as ``w0_up=…``."""
    initial = {
        LinkDirection(node, way): ends.get(f"{node}_{way}", shape())  # type: ignore[arg-type]
        for node in (*NODES, "rack")
        for way in ("up", "down")
    }
    return RequestedLinks(initial, [LinkChange(*change) for change in later])


def test_racks_are_on_the_way_between_them_and_to_the_switch() -> None:
    ways = PathModel(asked(), {"w0": "rack", "w1": "rack"})
    assert ways.path("w0", "w1") == [LinkDirection("w0", "up"), LinkDirection("w1", "down")]
    assert ways.path("w0", "s") == [
        LinkDirection("w0", "up"),
        LinkDirection("rack", "up"),
        LinkDirection("s", "down"),
    ]
    assert ways.path("s", "w1") == [
        LinkDirection("s", "up"),
        LinkDirection("rack", "down"),
        LinkDirection("w1", "down"),
    ]
    assert ways.path("w0", None) == [LinkDirection("w0", "up"), LinkDirection("rack", "up")]
    assert ways.path(None, "s") == [LinkDirection("s", "down")]
    assert ways.racks_on("w0", "s")
    assert not ways.racks_on("w0", "w1")


@pytest.mark.parametrize(
    ("impairments", "low_ms", "high_ms"),
    [
        ({"delay_ns": 10 * MS}, 10, 10),
        ({"delay_ns": 10 * MS, "jitter_ns": 2 * MS}, 8, 10),
        ({"delay_ns": 10 * MS, "jitter_ns": 2 * MS, "distribution": "normal"}, 2, 10),
        ({"delay_ns": 10 * MS, "reorder": 0.1}, 0, 10),
        ({"delay_ns": 10 * MS, "slot": Slot(MS, 5 * MS)}, 10, 15),
    ],
)
def test_the_least_round_trip_that_may_be_seen(impairments, low_ms, high_ms) -> None:
    low, high = PathModel(asked(w0_up=shape(**impairments)), {}).round_trip_s("w0", "s")
    assert (low * 1e3, high * 1e3) == pytest.approx((low_ms, high_ms))


def test_a_delay_that_changes_leaves_a_span() -> None:
    changed = asked(
        ((1.0, LinkDirection("s", "up"), shape(delay_ns=5 * MS)),), w0_up=shape(delay_ns=MS)
    )
    ways = PathModel(changed, {})
    assert ways.round_trip_s("w0", "s") == pytest.approx((0.001, 0.006))
    assert ways.random([LinkDirection("s", "up")])
    assert not ways.random([LinkDirection("w0", "up")])
    assert ways.delay_s(LinkDirection("s", "up")) == 0.005, "the largest of them"
    assert ways.delay_s(LinkDirection("w0", "up")) == 0.001
    assert ways.delay_s(LinkDirection("nobody", "up")) == 0.0


def test_round_trips_are_judged_with_a_millisecond_and_two_percent() -> None:
    def state(least_ms: float) -> str:
        ways = PathModel(asked(w0_up=shape(delay_ns=100 * MS)), {})
        trips = [("w0", "s", least_ms / 1e3), ("s", "w0", 0.5)]
        found = gather((), LinkLog([]), asked(), seconds=1.0, processors=1,
                       under_way=IntervalSet(), trips=trips, ways=ways)  # fmt: skip
        assert len(found.paths) == 1
        return judge(Evidence(paths=found.paths)).state

    assert [state(ms) for ms in (100.3, 102.9, 97.2, 103.2, 96.5, 110, 90)] == [
        "valid", "valid", "valid", "degraded", "degraded", "invalid", "invalid",
    ]  # fmt: skip


def group(direction: str = "up", start_s: float = 1.0, last_s: float = 2.0) -> MessageGroup:
    return MessageGroup(
        0,
        direction,
        "s",
        (OfferedLoad("w0", 1e6, start_s), OfferedLoad("w1", 1e6, start_s)),
        last_s,
    )


def why(
    group: MessageGroup, asked: RequestedLinks, racks=None, flows=(), changes=(), records=()
) -> list[str]:
    found = exclusion_rules(
        LinkLog(records), PathModel(asked, racks or {}), flows, changes, 10.0, THRESHOLDS
    )
    return [name for name, excuse in found.items() if excuse(group)]


def flow(source: str, sink: str, start_s: float, stop_s: float) -> Flow:
    return Flow("bulk", source, sink, "tcp", None, None, 1, start_s, stop_s)


def sample(link: str, direction: str, **changed: Any) -> dict[str, Any]:
    return {
        "kind": "sample", "link": link, "direction": direction, "from_s": 1.1, "to_s": 1.2,
        "asked_bits": 1e6, "delivered_bits": 0, "drops": 0, **changed,
    }  # fmt: skip


def test_a_plain_group_has_no_excuse() -> None:
    assert why(group(), asked()) == []
    assert why(group("down"), asked()) == []


def test_a_node_is_held_from_the_first_event_to_the_one_that_ends_it() -> None:
    """One that was paused, then killed, did nothing from the pause on; one that nothing ends, for good."""
    changes = [
        NodeChange(0.5, "w0", "pause"),
        NodeChange(3.0, "w0", "kill"),
        NodeChange(4.0, "w0", "restart"),
        NodeChange(6.0, "w1", "kill"),
    ]
    times = [(0.0, 0.4), (1.0, 2.0), (3.2, 3.4), (4.5, 5.5), (8.0, 9.0)]
    held = [why(group(start_s=a, last_s=b), asked(), changes=changes) for a, b in times]
    assert held == [[], ["nodes"], ["nodes"], [], ["nodes"]]


def test_acknowledgements_of_other_traffic_are_on_the_way_too() -> None:
    """From the server to a host: on the server's down link, and so beside what workers send it."""
    to_w1 = flow("s", "w1", 1.0, 2.0)
    assert why(group("up"), asked(), flows=[to_w1]) == ["traffic"]
    assert why(group("down"), asked(), flows=[to_w1]) == ["traffic"]
    assert why(group("up", 3.5, 4.0), asked(), flows=[to_w1]) == []


def test_what_a_burst_left_in_queues_is_on_the_way_for_a_second() -> None:
    burst = flow("w1", "w0", 1.0, 2.0)
    assert why(group(start_s=2.9, last_s=3.5), asked(), flows=[burst]) == ["traffic"]
    assert why(group(start_s=3.1, last_s=3.5), asked(), flows=[burst]) == []


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("racks", {"racks": {"w0": "rack"}}),
        ("traffic", {"flows": [flow("w1", "w0", 0.0, 1.1)]}),
        ("traffic", {"flows": [flow("s", "w0", 1.5, 9.0)]}),
        ("nodes", {"changes": [NodeChange(0.5, "w1", "pause"), NodeChange(1.2, "w1", "resume")]}),
        ("nodes", {"changes": [NodeChange(1.5, "s", "kill")]}),
        ("drops", {"records": [sample("w0", "up", drops=1)]}),
        ("drops", {"records": [sample("s", "down", drops=1)]}),
        ("stolen", {"records": [{"kind": "host", "from_s": 1.9, "to_s": 2.0, "stolen_s": 0.01,
                                 "idle_share": 1.0, "pressure": None, "backlog_drops": 0}]}),
    ],
)  # fmt: skip
def test_what_excuses(name: str, given: dict[str, Any]) -> None:
    assert why(group(), asked(), **given) == [name]


@pytest.mark.parametrize(
    "given",
    [
        {"racks": {"s": "rack", "w0": "rack", "w1": "rack"}},
        {"flows": [flow("w1", "w0", 2.1, 9.0)]},
        {"changes": [NodeChange(2.5, "w1", "pause"), NodeChange(3.5, "w1", "resume")]},
        {"records": [sample("w2", "up", drops=1), sample("w0", "down", drops=1)]},
    ],
)
def test_what_does_not_excuse(given: dict[str, Any]) -> None:
    assert why(group(), asked(), **given) == []


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("random", {"s_down": shape(loss=0.1)}),
        ("random", {"w1_up": shape(jitter_ns=MS, delay_ns=2 * MS)}),
        ("random", {"w0_up": shape(overhead=24)}),
        ("round_trip", {"s_up": shape(delay_ns=3 * MS)}),
        ("outage", {"w0_up": shape(rate=0)}),
    ],
)
def test_what_links_ask_for_excuses(name: str, ends: dict[str, LinkState]) -> None:
    assert name in why(group(), asked(**ends))


def test_an_outage_excuses_while_it_lasts() -> None:
    gone = (
        (3.0, LinkDirection("s", "down"), shape(rate=0)),
        (4.0, LinkDirection("s", "down"), shape()),
    )
    assert why(group(), asked(gone)) == []
    assert why(group(start_s=2.5, last_s=3.5), asked(gone)) == ["outage"]
    assert why(group("down", start_s=2.5, last_s=3.5), asked(gone)) == []


def test_bytes_that_sockets_cannot_account_for() -> None:
    found = unattributed_bytes(asked(w0_up=shape(duplicate=0.1)), {"w1"})
    assert set(found) == {"w1 up", "w1 down", "w0 up", "w0 down", "s down", "rack down"}
    assert unattributed_bytes(asked(), ()) == {}
