"""Cross traffic without a network: what iperf3 is asked and says, and when a flow has failed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.errors import MachineError
from testbed.fabric.host_node import HostTask
from testbed.runner import cross_traffic, cross_traffic_node
from testbed.runner.cross_traffic import CrossTraffic, check, crossed_links, failure
from testbed.runner.cross_traffic_node import FlowEnds
from testbed.scenario.load import load
from testbed.scenario.node_timeline import Burst, Flow, NodeChange
from testbed.scenario.timeline import Timeline
from testbed.topology import Interface, NodePlacement, NodeSpec

TCP = Flow("bulk", "noise-0", "server", "tcp", None, "bbr", 2, 0.0, float("inf"))
UDP = Flow("video", "noise-0", "server", "udp", 20_000_000, None, 1, 5.0, 9.0, 1.0, 0.5)
ENDS = FlowEnds(UDP, "10.0.0.3", "10.0.0.1", 7200)
RACKS = {"a": ("noise-0", "worker-0"), "b": ("worker-1",)}


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_udp_takes_its_rate_at_the_link_layer() -> None:
    command = cross_traffic_node.client(ENDS)
    payload = int(option(command, "-b"))
    assert payload * 1442 / 1400 == pytest.approx(20e6, rel=1e-6)
    assert "-u" in command and option(command, "-l") == "1400"
    assert option(command, "-B") == "10.0.0.3" and option(command, "-c") == "10.0.0.1"


def test_tcp_takes_what_it_can() -> None:
    command = cross_traffic_node.client(FlowEnds(TCP, "10.0.0.3", "10.0.0.1", 7200))
    assert option(command, "-C") == "bbr" and option(command, "-P") == "2"
    assert "-b" not in command and "-u" not in command


def test_ends_travel_as_json_endless_flows_too() -> None:
    ends = FlowEnds(TCP, "10.0.0.3", "10.0.0.1", 7201)
    assert FlowEnds.from_json(json.loads(json.dumps(ends.to_json()))) == ends


def test_a_client_that_was_ended_on_time_has_no_error() -> None:
    told = {
        "start": {"cookie": "abc"},
        "end": {"sum_sent": {"bytes": 3000, "retransmits": 4}},
        "error": "interrupt - the client has terminated",
    }
    assert cross_traffic_node.sent(json.dumps(told)) == cross_traffic_node.IperfSent(
        3000, 4, 0, "abc", None
    )


@pytest.mark.parametrize("output", ["", "iperf3: no such option", "{"])
def test_a_client_that_says_no_json_has_failed(output: str) -> None:
    assert cross_traffic_node.sent(output).error


def test_a_client_that_was_refused_says_so() -> None:
    told = {"start": {}, "end": {}, "error": "unable to connect to server: Connection refused"}
    sent = cross_traffic_node.sent(json.dumps(told))
    assert sent.bytes == 0 and sent.error == told["error"]


def test_what_a_killed_client_sent_is_counted_by_the_second() -> None:
    part = {"sum": {"bytes": 100, "packets": 2, "lost_packets": 1, "jitter_ms": 2.0}}
    told = {"start": {"cookie": "abc"}, "intervals": [part, part], "end": {}}
    assert cross_traffic_node.received(told) == {
        "cookie": "abc", "complete": False, "bytes": 200, "packets": 4, "lost": 2,
        "jitter_s": 0.002,
    }  # fmt: skip
    assert cross_traffic_node.received({"start": {}, "intervals": [], "end": {}}) is None


def test_a_burst_is_told_with_all_of_its_tests() -> None:
    """One that broke off was followed by another: what all of them sent counts, and the last error."""
    told: list[dict[str, Any]] = []
    source: Any = object.__new__(cross_traffic_node.TrafficSource)
    source._ends, source._say = ENDS, told.append
    source._clock = SimpleNamespace(now=lambda: 8.0)
    sent = cross_traffic_node.IperfSent
    tests = [sent(100, 3, 2, "a"), sent(0, 0, 0, "b", "busy"), sent(50, 4, 1, "c", "reset"), sent()]
    source._report("sent", Burst(5.0, 6.0), 5.5, tests)
    assert told == [
        {
            "kind": "sent",
            "flow": "video",
            "due_s": 5.0,
            "start_s": 5.5,
            "stop_s": 6.0,
            "bytes": 150,
            "retransmits": 7,
            "packets": 3,
            "tests": ["a", "c"],
            "error": "reset",
        }
    ]
    source._report("stalled", Burst(5.0, 9.0), 5.5, [sent()])
    assert (told[1]["stop_s"], told[1]["bytes"], told[1]["error"]) == (8.0, 0, None)


def test_documents_come_one_by_one() -> None:
    lines = [
        line + "\n" for text in ('{"a": {\n\t}\n}', '{\n"b": 1\n}') for line in text.split("\n")
    ]
    assert list(cross_traffic_node.documents(iter(lines))) == [{"a": {}}, {"b": 1}]
    remarks = ["iperf3: error - it says\n", "}\n", *lines[:2], *lines, "interrupted\n"]
    assert list(cross_traffic_node.documents(iter(remarks))) == [{"a": {}}, {"b": 1}]


def place(name: str, peer: int) -> NodePlacement:
    nowhere = Interface(None, 1, "lo")
    spec = NodeSpec(name, name, "host", 0, peer)
    return NodePlacement(spec, f"10.0.0.{peer}", f"10.0.1.{peer}", nowhere, nowhere)


def test_each_node_is_told_its_part() -> None:
    written: list[dict[str, Any]] = []
    places = {"server": place("server", 1), "noise-0": place("noise-0", 3)}
    crossing = CrossTraffic([TCP, UDP], places, "bbr", written.append)
    assert crossing.nodes == {"server", "noise-0"}
    source, sink = crossing.part("noise-0"), crossing.part("server")
    assert [ends["port"] for ends in source["sources"]] == [7200, 7201]
    assert source["sources"] == sink["sinks"] and not source["sinks"] and not sink["sources"]
    # It is the routes' congestion control: an unprivileged program need not select it.
    assert source["sources"][0]["flow"]["congestion"] is None
    assert crossing.part("worker-0") == {"sources": [], "sinks": []}
    crossing.take({"kind": "stalled", "flow": "bulk", "tests": []})
    crossing.take({"kind": "sent", "flow": "bulk", "tests": ["x", "y"]})
    crossing.take({"kind": "received", "flow": "bulk", "bytes": 1})
    assert crossing.tests() == {"bulk": 2, "video": 0}
    assert [record["v"] for record in written] == [1, 1, 1]


def test_links_that_may_be_crossed() -> None:
    assert crossed_links([TCP], RACKS) == {"noise-0", "server", "a"}
    assert crossed_links([], RACKS) == set()


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        """
name: crossed
nodes: {server: {role: server}, worker: {role: worker, count: 2}, noise: {role: host, count: 1}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
events: [{kind: outage, links: [server], direction: both, at: 20 s, for: 2 s}]
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, stop: {steps: 5}}
algorithms: [none]
"""
    )
    return load(path).timeline()


def record(
    kind: str, start: float, stop: float, error: str | None, size: int = 0
) -> dict[str, Any]:
    about = {"kind": kind, "flow": "bulk", "due_s": start, "stop_s": stop}
    return {**about, "error": error, "bytes": size}


REFUSED = "unable to connect to server: Connection refused"
BROKEN = "unable to set TCP_CONGESTION: not supported"
KILLED = NodeChange(3.0, "server", "kill")


@pytest.mark.parametrize(
    ("told", "changes", "failed"),
    [
        (record("sent", 0, 5, BROKEN), [], True),
        (record("stalled", 0, 5, REFUSED), [], True),
        (record("sent", 0, 0.2, REFUSED), [], False),  # between two tests
        (record("sent", 0, 5, BROKEN, size=10), [], False),  # it has moved something
        (record("sent", 0, 5, None), [], False),
        (record("stalled", 4, 9, REFUSED), [KILLED], False),
        (record("stalled", 0, 2, REFUSED), [KILLED], True),  # not yet killed
        (record("stalled", 4, 9, REFUSED), [NodeChange(3.0, "worker-0", "kill")], True),
        (record("stalled", 19, 26, REFUSED), [], False),  # an outage on its way
        (record("stalled", 21, 26, REFUSED), [], False),
        (record("stalled", 23, 30, REFUSED), [], True),
        ({"kind": "received", "flow": "bulk", "bytes": 0}, [], False),
        ({"kind": "stopped", "flow": "bulk", "code": 1}, [], True),
    ],
)
def test_when_a_flow_has_failed(
    timeline: Timeline, told: dict[str, Any], changes: list[NodeChange], failed: bool
) -> None:
    error = failure(told, ("noise-0", "server"), {}, timeline, changes)
    assert (error is not None) == failed
    if error is not None:
        assert "'bulk' from 'noise-0' to 'server'" in str(error)


def test_servers_that_lack_tests_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node that was restarted: they have not seen the tests before that."""
    monkeypatch.setattr(cross_traffic_node, "_END_S", 0.5)
    patience: list[float] = []

    class Lacking:
        def end(self, tests: int, patience_s: float) -> None:
            assert tests == 1
            patience.append(patience_s)
            time.sleep(patience_s)

    traffic = object.__new__(cross_traffic_node.NodeTraffic)
    traffic._sinks = {str(number): Lacking() for number in range(8)}  # type: ignore[misc]
    traffic.end_sinks(dict.fromkeys(map(str, range(8)), 1))
    assert sum(patience) <= 0.5 and patience[0] > 0.4 and traffic._sinks == {}


def test_a_server_that_was_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a host that was started again as the trial ended."""
    monkeypatch.setattr(cross_traffic_node, "LISTEN_S", 0.5)
    monkeypatch.setattr(cross_traffic_node, "server", lambda _: ["sleep", "600"])
    sink = cross_traffic_node.Sink(FlowEnds(TCP, "127.0.0.1", "127.0.0.1", 1), lambda _: None)
    sink.end(0, 0.0)
    sink.await_listening()


def test_a_server_that_is_ended_while_it_is_started_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, launch = threading.Event(), cross_traffic_node._start

    def late(command: list[str]) -> Any:
        begin.wait(60.0)
        return launch(command)

    monkeypatch.setattr(cross_traffic_node, "_start", late)
    monkeypatch.setattr(cross_traffic_node, "server", lambda _: ["sleep", "600"])
    sink = cross_traffic_node.Sink(FlowEnds(TCP, "127.0.0.1", "127.0.0.1", 1), lambda _: None)
    ending = threading.Thread(target=sink.end, args=(0, 0.0), daemon=True)
    ending.start()
    while not sink._ended:
        time.sleep(0.005)
    begin.set()
    ending.join(30.0)
    assert not ending.is_alive()


def test_what_went_wrong_once_is_not_raised_again() -> None:
    traffic: Any = object.__new__(cross_traffic_node.NodeTraffic)
    source: Any = object.__new__(cross_traffic_node.TrafficSource)
    source._ended, source._task = threading.Event(), HostTask(lambda: json.loads("no JSON"))
    sink: Any = object.__new__(cross_traffic_node.Sink)
    sink._process, sink.tests, sink._task = None, 0, HostTask(lambda: json.loads("none"))
    traffic._sources, traffic._sinks = [source], {"bulk": sink}
    with pytest.raises(ValueError):
        traffic.end_sources()
    with pytest.raises(ValueError):
        traffic.end_sinks({})
    traffic.end_sources()
    traffic.end_sinks({})


def test_without_iperf3_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_traffic.shutil, "which", lambda _: None)
    with pytest.raises(MachineError, match="apt-get install iperf3"):
        check([UDP], "netns", None)
    check([UDP], "docker", None)
    check([], "netns", None)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def offers(available: str, allowed: str) -> None:
        for name, text in (("_AVAILABLE", available), ("_ALLOWED", allowed)):
            path = tmp_path / name
            path.write_text(text)
            monkeypatch.setattr(cross_traffic, name, path)

    monkeypatch.setattr(cross_traffic.shutil, "which", lambda name: f"/usr/bin/{name}")
    return offers


def test_a_congestion_control_that_nodes_may_not_select(
    kernel: Callable[[str, str], None],
) -> None:
    kernel("reno cubic bbr", "reno cubic")
    with pytest.raises(MachineError, match="tcp_allowed_congestion_control='reno cubic bbr'"):
        check([TCP], "netns", "cubic")
    check([TCP], "netns", "bbr")
    kernel("reno cubic bbr", "reno cubic bbr")
    check([TCP], "netns", "cubic")
    kernel("reno cubic", "reno cubic")
    with pytest.raises(MachineError, match="modprobe tcp_bbr"):
        check([TCP], "docker", None)
