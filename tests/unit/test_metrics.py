"""The Prometheus endpoint: frozen names, bounded labels, one run at a time."""

from __future__ import annotations

import inspect
import re
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from runpy import run_path

import pytest
from loopback import own_place
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from synthetic_run import Recipe, make_run

from testbed.errors import MachineError
from testbed.records import exporter as metrics
from testbed.records import exporter as module
from testbed.records.events import GradientRecord
from testbed.records.exporter import Exporter, SessionExporter
from testbed.records.run_directory import read_events, read_jsonl

LABELS = {"run": "r1", "scenario": "demo", "algorithm": "none", "role": "worker"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("out"), Recipe(steps=3))


def fed(run: Path, node: str) -> Exporter:
    exporter = Exporter({"node": node})
    exporter.begin(LABELS)
    for events in read_events(run).values():
        for event in events:
            if event["node"] == node:
                exporter.observe(event)
    return exporter


def text_of(exporter: Exporter | SessionExporter) -> str:
    return generate_latest(exporter.registry).decode()


def values(exporter: Exporter | SessionExporter, name: str, **labels: str) -> list[float]:
    return [
        sample.value
        for family in text_string_to_metric_families(text_of(exporter))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_names_and_labels_are_frozen() -> None:
    assert [row.name for row in metrics.metrics_of("node")] == [
        "testbed_phase_seconds", "testbed_communication_delay_seconds", "testbed_frame_bytes_total",
        "testbed_steps_total", "testbed_density_ratio", "testbed_accuracy_ratio",
        "testbed_link_rate_bytes_per_second", "testbed_build_info",
    ]  # fmt: skip
    assert [row.name for row in metrics.metrics_of("session")] == [
        "testbed_verdict_so_far", "testbed_check_state", "testbed_host_waiting_processes",
        "testbed_host_cpu_pressure_ratio", "testbed_link_backlog_bytes", "testbed_link_changes_total",
        "testbed_event_timestamp_seconds",
    ]  # fmt: skip
    assert tuple(metrics.LABELS) == ("run", "scenario", "algorithm", "role", "node")
    assert (metrics.BUCKETS[0], metrics.BUCKETS[-1]) == (0.001, 100.0)


def test_the_page_is_generated_from_the_table() -> None:
    root = Path(__file__).parents[2]
    page, tool = root / "docs/reference/metrics.md", root / "tools/metrics_page.py"
    assert page.read_text() == run_path(str(tool))["page"](), f"python {tool} > {page}"


def test_the_client_has_no_native_histograms_as_the_page_says() -> None:
    options = inspect.signature(Histogram.__init__).parameters
    assert not [name for name in options if "native" in name or "schema" in name]


def change(at_s: float, rate: int, line: dict[str, float] | None = None) -> dict[str, object]:
    return {"kind": "change", "link": "server", "direction": "up", "due_s": at_s, "applied_s": at_s,
            "rate_bits": rate, "queue_bytes": 1, "impairments": line}  # fmt: skip


def test_the_session_shows_events_of_links_and_nodes() -> None:
    exporter = SessionExporter({})
    exporter.begin({"run": "r1"})
    for record in (change(1.0, 5), change(2.0, 0), change(3.0, 5), change(4.0, 5, {"delay": 1.0})):
        exporter.record(record, 1000.0)
    exporter.record(
        {"kind": "node", "node": "worker-1", "action": "pause", "applied_s": 6.0}, 1000.0
    )
    events = {
        (sample.labels["event"], sample.labels["on"]): sample.value
        for family in text_string_to_metric_families(generate_latest(exporter.registry).decode())
        for sample in family.samples
        if sample.name == metrics.EVENT
    }
    end = "server up"
    assert events == {("rate", end): 1001.0, ("outage", end): 1002.0, ("service", end): 1003.0,
                      ("line", end): 1004.0, ("pause", "worker-1"): 1006.0}  # fmt: skip
    assert {event for event, _ in events} <= set(metrics.EVENTS)
    assert values(exporter, metrics.LINK_CHANGES, link="server", role="session") == [4]
    exporter.begin({"run": "r2"})
    exporter.record(change(1.0, 0), 0.0)
    assert values(exporter, metrics.EVENT, event="outage") == [1.0], "the first change of a link"
    assert values(exporter, metrics.EVENT, event="rate") == []


def test_a_new_run_knows_nothing_of_the_links_of_the_one_before() -> None:
    """Which ended in an outage, at another rate, or with another delay."""
    for rate, line in ((0, {}), (7, {}), (5, {"delay": 1.0})):
        exporter = SessionExporter({})
        exporter.begin({"run": "r1"})
        exporter.record(change(1.0, rate, line), 0.0)
        exporter.begin({"run": "r2"})
        assert values(exporter, metrics.LINK_CHANGES) == values(exporter, metrics.EVENT) == []
        exporter.record(change(2.0, 5, {}), 0.0)
        assert values(exporter, metrics.EVENT, event="rate", run="r2") == [2.0]
        assert values(exporter, metrics.EVENT, event="service") == []
        assert values(exporter, metrics.EVENT, event="line") == []


def test_the_first_change_of_a_link_is_told_by_what_it_was_at_t0() -> None:
    for rate, line, event in ((0, {}, "service"), (5, {"delay": 1.0}, "line"), (7, {}, "rate")):
        exporter = SessionExporter({})
        exporter.begin({"run": "r1"}, {"server up": (rate, line)})
        exporter.record(change(1.0, 5, {}), 0.0)
        assert values(exporter, metrics.EVENT) == values(exporter, metrics.EVENT, event=event)
        assert values(exporter, metrics.EVENT, event=event) == [1.0]


def test_the_session_shows_the_worst_state_queues_and_the_processors() -> None:
    exporter = SessionExporter({})
    exporter.begin({"run": "r1"})
    exporter.judged({"read_back": "valid", "overrun_share": "degraded"})
    assert values(exporter, metrics.VERDICT) == [1]
    assert values(exporter, metrics.CHECK, check="overrun_share") == [1]
    exporter.record({"kind": "host", "pressure": 0.25}, 0.0)
    exporter.record({"kind": "host", "pressure": None}, 0.0)
    exporter.record(
        {"kind": "sample", "link": "server", "direction": "down", "backlog_bytes": 7}, 0.0
    )
    assert values(exporter, metrics.PRESSURE) == [0.25]
    assert values(exporter, metrics.BACKLOG, link="server", direction="down") == [7]
    assert values(exporter, metrics.WAITING)[0] >= 0
    exporter.begin({"run": "r2"})
    assert values(exporter, metrics.VERDICT) == values(exporter, metrics.BACKLOG) == []


def test_a_worker_shows_its_steps(run: Path) -> None:
    exporter = fed(run, "worker-0")
    steps = [s for s in read_events(run)["step"] if s["node"] == "worker-0"]
    assert values(exporter, metrics.STEPS, run="r1", node="worker-0") == [3]
    for direction in ("up", "down"):
        total = sum(step[f"bytes_{direction}"] for step in steps)
        assert values(exporter, metrics.BYTES, direction=direction) == [total]
    assert values(exporter, metrics.DELAY + "_sum") == [
        pytest.approx(sum(s["delay_s"] for s in steps))
    ]
    assert values(exporter, metrics.PHASE + "_sum", phase="apply") == [pytest.approx(0.006)]
    assert values(exporter, metrics.DENSITY) == [1.0]
    assert values(exporter, metrics.ACCURACY, data="train") == [
        pytest.approx(steps[-1]["accuracy"])
    ]


def test_a_server_shows_rounds_and_its_links(run: Path) -> None:
    exporter = fed(run, "server")
    assert values(exporter, metrics.STEPS) == [3]
    assert values(exporter, metrics.BYTES, direction="down") == [3 * 4 * 600_048]
    for line in read_jsonl(run / "links.jsonl"):
        if line["link"] == "server":
            exporter.link(line)
    assert len(values(exporter, metrics.LINK_RATE, source="delivered")) == 2
    exporter.link({"kind": "sample", "direction": "up", "from_s": 1.0, "to_s": 1.5, "asked_bits": 8e6,
                   "delivered_bits": 4e6})  # fmt: skip
    assert values(exporter, metrics.LINK_RATE, direction="up", source="asked") == [2e6]
    assert values(exporter, metrics.LINK_RATE, direction="up", source="delivered") == [1e6]


def test_an_asynchronous_server_counts_gradients_as_workers_send_them() -> None:
    exporter = Exporter({"node": "server"})
    exporter.begin(LABELS)
    for version, size in enumerate((1000, 24), 1):
        taken = GradientRecord("server", 1, version, 1, version, 0, 0, size, *[0.5] * 5)
        exporter.observe(taken.to_json())
    assert values(exporter, metrics.STEPS) == [2]
    assert values(exporter, metrics.BYTES, direction="up") == [1024]
    assert values(exporter, metrics.BYTES, direction="down") == []


def test_a_new_run_starts_from_nothing(run: Path) -> None:
    exporter = fed(run, "worker-0")
    exporter.begin({**LABELS, "run": "r2"})
    assert values(exporter, metrics.STEPS) == []
    assert values(exporter, metrics.BUILD, run="r2") == [1]
    assert "r1" not in text_of(exporter)


def test_a_new_run_shows_no_rates_of_the_last_ones_links() -> None:
    exporter = Exporter({"node": "server"})
    exporter.begin(LABELS)
    exporter.link({"kind": "sample", "direction": "up", "from_s": 0.0, "to_s": 0.5, "asked_bits": 8e6,
                   "delivered_bits": 4e6})  # fmt: skip
    assert len(values(exporter, metrics.LINK_RATE, run="r1")) == 2
    exporter.begin({**LABELS, "run": "r2"})
    assert values(exporter, metrics.LINK_RATE) == []


def test_two_exporters_do_not_meet_and_labels_are_bounded() -> None:
    Exporter({"node": "a"}, CollectorRegistry())
    exporter = Exporter({"node": "b"})
    with pytest.raises(ValueError, match="step"):
        exporter.begin({"step": "1"})


def test_it_answers_scrapes_until_it_is_stopped(run: Path) -> None:
    exporter, (address, port) = fed(run, "worker-0"), own_place()
    stop = exporter.serve(address, port)
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        with pytest.raises(MachineError, match=f"{re.escape(address)}:{port}"):
            Exporter({}).serve(address, port)
    finally:
        stop()
    for name in (row.name for row in metrics.metrics_of("node")):
        if name != metrics.LINK_RATE:
            assert name.removesuffix("_total") in text
    again = exporter.serve(address, port)
    again()


def test_strangers_that_say_nothing_are_few_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < module._Handler.timeout <= 10
    monkeypatch.setattr(module._Handler, "timeout", 60.0)
    before, place = threading.active_count(), own_place()
    stop = Exporter({"node": "worker-0"}).serve(*place)
    with ExitStack() as stack:
        stack.callback(stop)
        silent = [stack.enter_context(socket.create_connection(place, 10.0)) for _ in range(40)]
        for one in silent[module.MOST_SCRAPES :]:
            assert one.recv(1) == b"", "one more than there is room for"
        assert threading.active_count() - before <= module.MOST_SCRAPES + 1
        monkeypatch.setattr(module._Handler, "timeout", 0.2)
        for one in silent:
            one.close()
        while threading.active_count() > before + 1:
            time.sleep(0.01)
        with socket.create_connection(place, 10.0) as late:
            assert late.recv(1) == b""
        with urllib.request.urlopen("http://{}:{}/metrics".format(*place), timeout=60) as answer:
            assert metrics.BUILD in answer.read().decode()
