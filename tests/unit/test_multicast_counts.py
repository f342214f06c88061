"""A multicast's bytes in the verdict: once on the sender's link, once on each member's; frames to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.fidelity.run_checks import class_bytes_expected
from testbed.runner.judge import _sockets, faults
from testbed.transport.multicast.packet import Amount, MulticastCounters


def done(sent: int, received: int) -> dict[str, Any]:
    counters = MulticastCounters(
        data=Amount(10, 14_000),
        feedback=Amount(2, 56),
        to={1: Amount(11, 14_028), 2: Amount(11, 14_028)},
        frame_bytes_sent=13_800,
        frame_bytes_received=27_600,
    ).to_json()
    counters["to"] = {f"worker-{peer}": amount for peer, amount in counters["to"].items()}
    return {
        "summary": {
            "role": "worker", "steps": 0, "parameters": None,
            "bytes_sent": sent, "bytes_received": received,
        },
        "counters": {
            "worker-1": {
                "bytes_sent": 40, "bytes_received": 40, "segments_out": 3,
                "bytes_retransmitted": 0, "segment_bytes": 1448,
            }
        },
        "multicast": counters,
    }  # fmt: skip


def test_one_copy_up_and_one_down_to_each_member() -> None:
    links = [
        {"link": f"worker-{n}", "direction": way, "class_bytes": 1, "drops": 0}
        for n in range(3)
        for way in ("up", "down")
    ]
    expected = class_bytes_expected(links, _sockets({"worker-0": done(0, 0)}))
    tcp = 40 + 3 * 66
    assert expected["worker-0 up"][1] == tcp + 14_056 + 12 * 42
    assert expected["worker-1 down"][1] == tcp + 14_028 + 11 * 42
    assert expected["worker-2 down"][1] == 14_028 + 11 * 42
    assert expected["worker-0 down"][1] == 0


def test_what_is_lost_on_the_senders_link_may_be_missing_at_any_member() -> None:
    links = [
        {"link": "worker-0", "direction": "up", "class_bytes": 1, "drops": 2},
        {"link": "worker-2", "direction": "down", "class_bytes": 1, "drops": 0},
    ]
    _, low, high = class_bytes_expected(links, _sockets({"worker-0": done(0, 0)}))["worker-2 down"]
    assert high == 14_028 + 11 * 42
    assert low == high - 2 * 1514


@pytest.mark.parametrize(
    ("sent", "received", "right"), [(13_840, 27_640, True), (13_841, 27_640, False)]
)
def test_frames_are_counted_to_the_byte(sent: int, received: int, right: bool) -> None:
    assert (not faults({"worker-0": done(sent, received)}, [], [])) == right
