"""The verdict: each measure inside its threshold, up to three times it, and beyond."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from testbed.fidelity.evidence import Evidence
from testbed.fidelity.run_checks import class_bytes_expected, frames_disagree
from testbed.fidelity.verdict import judge, judge_filled
from testbed.records.manifest import THRESHOLDS

LINK = {
    "link": "server", "direction": "down", "asked_bits": 1e9, "delivered_bits": 5e8, "ratio": 0.5,
    "busy_share": 0.5, "busy_ratio": 1.0, "busy_mape_1s": 0.0, "drops": 0,
    "lateness_ms": {"p50": 0.1, "p99": 1.0, "max": 2.0},
    "class_bytes": 1_000_000, "class_packets": 10_000, "direct_packets": 0,
}  # fmt: skip
CALM = {
    "step": 0, "start_s": 0.0, "end_s": 0.1, "overran": False, "compress_s": 0.004, "compress_cpu_s": 0.004,
    "apply_s": 0.004, "apply_cpu_s": 0.004, "bytes_up": 100, "bytes_down": 50,
}  # fmt: skip


def links(**changed: Any) -> Evidence:
    return Evidence(seconds=60.0, links=[{**LINK, **changed}])


def steps(count: int, odd: int, **changed: Any) -> Evidence:
    return Evidence(steps=[{**CALM, **(changed if index < odd else {})} for index in range(count)])


def completion(used: float) -> Evidence:
    spread = {"p50": used, "p99": used, "p99_at_least": used, "max": used}
    counts = {"groups": 9, "judged": 9, "not_judged": {"short": 0, "drops": 0}}
    return Evidence(completion={**counts, "used": spread, "error": spread, "error_ms": spread})


def sockets(node: str, peer: str, sent: int, segments: int) -> dict[str, Any]:
    return {"node": node, "peer": peer, "bytes_sent": sent, "segs_out": segments}


def identity(class_bytes: int, drops: int = 0) -> Evidence:
    """The sockets sent 10,660,000 B through the server's down link."""
    link = {**LINK, "class_bytes": class_bytes, "drops": drops}
    return Evidence(links=[link], sockets=[sockets("worker-0", "server", 10_000_000, 10_000)])


CASES = [
    ("link_ratio", links, "busy_ratio", 0.98, 0.95, 0.93),
    ("link_ratio", links, "busy_ratio", 1.02, 1.06, 1.07),
    ("link_mape_1s", links, "busy_mape_1s", 0.02, 0.06, 0.07),
    ("link_excess", links, "excess_share", 0.02, 0.06, 0.07),
    ("direct_share", links, "direct_packets", 10, 30, 40),
    ("lateness_p99_ms", lambda p99: links(lateness_ms={"p99": p99}), None, 10.0, 30.0, 31.0),
    ("overrun_share", lambda odd: steps(100, odd, overran=True), None, 1, 3, 4),
    ("contended_share", lambda odd: steps(100, odd, apply_cpu_s=0.002), None, 2, 6, 7),
    ("stolen_share", lambda share: Evidence(stolen_share=share), None, 0.01, 0.03, 0.031),
    ("message_completion", completion, None, 1.0, 3.0, 3.1),
    ("byte_identity", identity, None, 10_606_000, 10_500_000, 10_400_000),
    ("byte_identity", identity, None, 10_714_000, 10_800_000, 10_900_000),
]


@pytest.mark.parametrize(("measure", "make", "key", "valid", "degraded", "invalid"), CASES)
def test_each_measure_at_its_limits(measure, make, key, valid, degraded, invalid) -> None:
    for state, value in (("valid", valid), ("degraded", degraded), ("invalid", invalid)):
        found = judge(make(**{key: value}) if key else make(value))
        assert found.state == state, (state, found)
        assert found.measures[measure]["state"] == state
        assert len(found.reasons) == (state != "valid")


def test_completion_keeps_all_its_figures() -> None:
    evidence = completion(2.0)
    assert judge(evidence).measures["completion"] == evidence.completion


def test_nothing_measured_is_said_and_no_fault() -> None:
    found = judge(Evidence())
    assert (found.state, found.reasons) == ("valid", [])
    assert found.measures
    for text in found.measures.values():
        assert text.startswith("not measured: ")


def test_a_link_that_was_hardly_ever_backlogged_is_not_measured() -> None:
    short = {"busy_share": 0.02, "busy_ratio": 0.5, "busy_mape_1s": 0.9}
    assert judge(links(**short, excess_share=0.5)).state == "invalid"
    found = judge(links(**short))
    assert found.state == "valid"
    assert found.measures["link_ratio"] == (
        "not measured: server down was backlogged for 1.2 s, under 2 s"
    )


def test_the_worst_measure_decides_and_comes_first() -> None:
    evidence = replace(links(busy_ratio=0.95), foreign_drops={"eth0": 2, "eth1": 0})
    found = judge(evidence)
    assert found.state == "invalid"
    assert found.reasons[0].startswith("2 packets were dropped at eth0")
    assert "0.9500" in found.reasons[1]
    assert "0.98 to 1.02" in found.reasons[1]


def test_an_end_that_failed_is_invalid_whatever_else() -> None:
    failed = judge(links(failure="the device is gone"))
    assert (failed.state, failed.reasons) == (
        "invalid", ["server down failed after t0: the device is gone"],
    )  # fmt: skip


def test_a_loss_that_does_not_show_in_its_step_is_none() -> None:
    slow = {"apply_s": 0.0015, "apply_cpu_s": 0.0006}
    assert judge(steps(10, 10, **slow)).measures["contended_share"]["deviation"] == 0.0
    assert judge(steps(10, 10, **slow, end_s=0.08)).state == "invalid"


def test_packets_dropped_by_the_emulated_queue_never_reached_its_class() -> None:
    missing = identity(10_660_000 - 100 * 1514, drops=100)
    assert judge(missing).state == "valid"
    assert judge(identity(10_660_000 - 100 * 1514, drops=0)).state == "degraded"


def test_a_bundle_that_was_dropped_takes_all_its_frames_with_it() -> None:
    """And what a line lost or had no room for, likewise: at most so much, and at least a header where a queue dropped it."""
    lost = {"drops": 2, "line_lost": 3, "line_limit": 5, "gso_max_segs": 4}
    link = {"link": "server", "direction": "down", "class_bytes": 1, **lost}
    counted = [sockets("worker-0", "server", 500_000, 100)]
    _, least, most = class_bytes_expected([link], counted)["server down"]
    assert (least, most) == (506_600 - 10 * 4 * 1514, 506_600 - 2 * 66)


def test_up_is_what_a_node_sent_and_down_what_its_peers_sent() -> None:
    counted = [
        sockets("worker-0", "server", 100_000, 100),
        sockets("server", "worker-0", 700_000, 500),
    ]
    up = {**LINK, "link": "worker-0", "direction": "up", "class_bytes": 106_600}
    down = {**LINK, "link": "worker-0", "direction": "down", "class_bytes": 733_000}
    assert judge(Evidence(links=[up, down], sockets=counted)).state == "valid"
    swapped = [{**up, "direction": "down"}, {**down, "direction": "up"}]
    assert judge(Evidence(links=swapped, sockets=counted)).state == "invalid"


def test_a_rack_has_no_sockets_of_its_own_and_may_lose_what_was_meant_for_anybody() -> None:
    link = {"link": "server", "direction": "down", "class_bytes": 10_000 + 66 * 10, "drops": 0}
    rack = {"link": "a", "direction": "up", "class_bytes": 12_000, "drops": 2}
    expected = class_bytes_expected([link, rack], [sockets("worker-0", "server", 12_000, 12)])
    assert list(expected) == ["server down"]
    held, least, most = expected["server down"]
    assert least <= held <= most


def test_a_single_change_shows_no_p99() -> None:
    late = {"p50": 12.0, "p99": 12.0, "p99_at_least": None, "max": 12.0}
    found = judge(links(lateness_ms=late))
    assert found.state == "valid"
    assert "changed once" in found.measures["lateness_p99_ms"]


def test_frames_must_agree_to_the_byte() -> None:
    round_ = {"step": 0, "messages": [{"bytes": 100.0}, {"bytes": 100.0}], "bytes_down": 100}
    both = [CALM, CALM]
    assert frames_disagree(both, [round_]) == []
    assert frames_disagree([CALM], [round_]) == []
    wrong = {**round_, "bytes_down": 101}
    assert "101 B" in frames_disagree(both, [wrong])[0]
    assert judge(Evidence(steps=both, rounds=[wrong])).state == "invalid"


def test_frames_to_several_servers_are_added_up() -> None:
    """A worker's step has one record, and each server its own of the same step."""
    steps = [{"step": 0, "bytes_up": up, "bytes_down": 70} for up in (100, 130)]
    rounds = [
        {"step": 0, "messages": [{"bytes": 60}, {"bytes": 80}], "bytes_down": 90},
        {"step": 0, "messages": [{"bytes": 40}, {"bytes": 50}], "bytes_down": 50},
    ]
    assert frames_disagree(steps, rounds) == frames_disagree(steps, rounds[::-1]) == []
    (said,) = frames_disagree(steps, [rounds[0], {**rounds[1], "bytes_down": 49}])
    assert "230 B up and 140 B down" in said and "230 B and 139 B" in said


def test_every_threshold_and_measure_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "verdict.md").read_text()
    table = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|$", text, re.MULTILINE)
    assert {name: float(value) for name, value in table} == asdict(THRESHOLDS)
    assert len(table) == len(asdict(THRESHOLDS))
    for measure in [*judge(links()).measures, "read_back"]:
        assert f"`{measure}`" in text


def test_of_links_to_be_filled_those_that_were_not_are_named() -> None:
    starved = {**LINK, "link": "worker-0", "busy_share": 0.01}
    found = judge_filled(Evidence(seconds=60.0, links=[LINK, starved]))
    assert found.state == "valid"
    assert found.reasons == ["not judged: worker-0 down was backlogged for 0.6 s, under 2 s"]
    never = judge_filled(
        Evidence(seconds=60.0, links=[{**LINK, "busy_share": None, "busy_ratio": None}])
    )
    assert never.reasons == ["not judged: server down was backlogged for 0.0 s, under 2 s"]
    assert judge_filled(Evidence(seconds=60.0, links=[LINK])).reasons == []
    wrong = judge_filled(Evidence(seconds=60.0, links=[{**LINK, "busy_ratio": 0.9}, starved]))
    assert [reason.startswith("not judged") for reason in wrong.reasons] == [False, True]
