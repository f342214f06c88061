"""Runs in virtual time that ask about networks: sizes of another run, large networks, outages from the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from virtual_run import EVENTS, SCENARIO, carried_out

from testbed.errors import InputError
from testbed.records.run_directory import read_events, read_json, read_jsonl


def test_recorded_sizes_are_sent_again(tmp_path: Path) -> None:
    first = [
        Path(entry["dir"])
        for entry in carried_out(tmp_path / "first", algorithms=["laplace-0.05"]).runs
    ]
    again = SCENARIO.replace("[none, topk-0.01]", "[laplace-0.05]").replace(
        "evaluate_every: 5", f"gradients: recorded, recorded: {first[0]}"
    )
    second = Path(carried_out(tmp_path / "second", again).runs[0]["dir"])
    told = [
        [(s["node"], s["step"], s["bytes_up"], s["bytes_down"], s["density"], s["sent_count"])
         for s in read_events(directory)["step"]]
        for directory in (first[0], second)
    ]  # fmt: skip
    assert told[0] == told[1]
    assert len({each[2] for each in told[0]}) > 1
    lengths = [read_json(directory / "summary.json")["step_s"] for directory in (first[0], second)]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-6)
    with pytest.raises(InputError, match=r"recorded run is one of 'laplace-0\.05', not of none"):
        carried_out(tmp_path / "third", again.replace("[laplace-0.05]", "[none]"))
    more = again.replace("worker, count: 2", "worker, count: 5").replace("steps: 12", "steps: 15")
    third = Path(carried_out(tmp_path / "more", more).runs[0]["dir"])
    steps = {(s["node"], s["step"]): s["bytes_up"] for s in read_events(third)["step"]}
    assert steps["worker-4", 14] == steps["worker-0", 2]
    of_server = first[0] / "events" / "server-0.jsonl"
    events = list(read_jsonl(of_server))
    next(each for each in events if each["kind"] == "round")["messages"].pop()
    of_server.write_text("".join(json.dumps(each) + "\n" for each in events))
    with pytest.raises(InputError, match="not all workers took part in every step"):
        carried_out(tmp_path / "lacking", again)


def test_sizes_of_a_run_without_a_server_are_refused(tmp_path: Path) -> None:
    first = carried_out(tmp_path / "first", algorithms=["ssgd"]).runs[0]["dir"]
    again = SCENARIO.replace("[none, topk-0.01]", "[ssgd]").replace(
        "evaluate_every: 5", f"gradients: recorded, recorded: {first}"
    )
    with pytest.raises(InputError, match="'ssgd' has no server, whose rounds"):
        carried_out(tmp_path / "second", again)
    (Path(first) / "events" / "worker-0.jsonl").write_text("unreadable\n{}\n")
    with pytest.raises(InputError, match="'ssgd' has no server, whose rounds"):
        carried_out(tmp_path / "third", again)  # before the records are read


def test_a_run_may_begin_with_an_outage(tmp_path: Path) -> None:
    outage = "  - {kind: outage, links: [server], at: 0 s, for: 500 ms, packets: drop}\n"
    made = carried_out(tmp_path, SCENARIO.replace(EVENTS, EVENTS + outage), algorithms=["none"])
    steps = read_events(Path(made.runs[0]["dir"]))["step"]
    assert min(step["arrived_s"] for step in steps if step["step"] == 1) > 0.5
    assert made.runs[0]["verdict"] == "valid"


def test_what_links_deliver_is_what_was_sent_in_large_networks_too(tmp_path: Path) -> None:
    text = SCENARIO.replace("worker, count: 2", "worker, count: 150").replace(
        "evaluate_every: 5", "gradients: none"
    )
    text += "peer_timeout: 600 s\n"
    (entry,) = carried_out(
        tmp_path, text.replace("steps: 12", "steps: 2"), algorithms=["topk-0.01"]
    ).runs
    directory = Path(entry["dir"])
    delivered = sum(
        sample["delivered_bits"]
        for sample in read_jsonl(directory / "links.jsonl")
        if (sample["kind"], sample["link"], sample["direction"]) == ("sample", "server", "up")
    )
    needed = 8 * sum(round_["bytes_down"] for round_ in read_events(directory)["round"])
    assert needed < delivered < 1.1 * needed


def test_jitter_does_not_change_the_order_of_messages(tmp_path: Path) -> None:
    """The server's goodbye comes before its last update, however much later it was on the way."""
    ends = "{rate: 20 Mbit/s, queue: 50 ms, delay: 20 ms, jitter: 20 ms}"
    text = SCENARIO.replace("{rate: 20 Mbit/s, queue: 50 ms}", ends).replace(
        "steps: 12", "steps: 2"
    )
    text = text.replace("seeds: [1]", "seeds: [1, 2, 3, 4, 5, 6]")
    done = carried_out(tmp_path, text)
    assert [run["verdict"] for run in done.runs] == ["valid"] * 12
