"""The Prometheus endpoint: frozen names, bounded labels, one run at a time."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from loopback import own_place
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from synthetic_run import Recipe, make_run

from testbed.errors import MachineError
from testbed.records import exporter as module
from testbed.records.exporter import Exporter
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


def text_of(exporter: Exporter) -> str:
    return generate_latest(exporter.registry).decode()


def values(exporter: Exporter, name: str, **labels: str) -> list[float]:
    return [
        sample.value
        for family in text_string_to_metric_families(text_of(exporter))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_names_and_labels_are_frozen() -> None:
    assert [family.name for family in Exporter({}).registry.collect()] == [
        "testbed_phase_seconds", "testbed_communication_delay_seconds", "testbed_frame_bytes",
        "testbed_steps", "testbed_density_ratio", "testbed_accuracy_ratio",
        "testbed_link_rate_bytes_per_second", "testbed_build_info",
    ]  # fmt: skip
    assert (module.BYTES, module.STEPS) == ("testbed_frame_bytes_total", "testbed_steps_total")
    assert module.LABELS == ("run", "scenario", "algorithm", "role", "node")
    assert (module.BUCKETS[0], module.BUCKETS[-1]) == (0.001, 100.0)


def test_a_worker_shows_its_steps(run: Path) -> None:
    exporter = fed(run, "worker-0")
    steps = [s for s in read_events(run)["step"] if s["node"] == "worker-0"]
    assert values(exporter, module.STEPS, run="r1", node="worker-0") == [3]
    for direction in ("up", "down"):
        total = sum(step[f"bytes_{direction}"] for step in steps)
        assert values(exporter, module.BYTES, direction=direction) == [total]
    assert values(exporter, module.DELAY + "_sum") == [
        pytest.approx(sum(s["delay_s"] for s in steps))
    ]
    assert values(exporter, module.PHASE + "_sum", phase="apply") == [pytest.approx(0.006)]
    assert values(exporter, module.DENSITY) == [1.0]
    assert values(exporter, module.ACCURACY, data="train") == [pytest.approx(steps[-1]["accuracy"])]


def test_a_server_shows_rounds_and_its_links(run: Path) -> None:
    exporter = fed(run, "server")
    assert values(exporter, module.STEPS) == [3]
    assert values(exporter, module.BYTES, direction="down") == [3 * 4 * 600_048]
    for line in read_jsonl(run / "links.jsonl"):
        if line["link"] == "server":
            exporter.link(line)
    assert len(values(exporter, module.LINK_RATE, source="delivered")) == 2
    exporter.link({"kind": "sample", "direction": "up", "from_s": 1.0, "to_s": 1.5, "asked_bits": 8e6,
                   "delivered_bits": 4e6})  # fmt: skip
    assert values(exporter, module.LINK_RATE, direction="up", source="asked") == [2e6]
    assert values(exporter, module.LINK_RATE, direction="up", source="delivered") == [1e6]


def test_a_new_run_starts_from_nothing(run: Path) -> None:
    exporter = fed(run, "worker-0")
    exporter.begin({**LABELS, "run": "r2"})
    assert values(exporter, module.STEPS) == []
    assert values(exporter, module.BUILD, run="r2") == [1]
    assert "r1" not in text_of(exporter)


def test_a_new_run_shows_no_rates_of_the_last_ones_links() -> None:
    exporter = Exporter({"node": "server"})
    exporter.begin(LABELS)
    exporter.link({"kind": "sample", "direction": "up", "from_s": 0.0, "to_s": 0.5, "asked_bits": 8e6,
                   "delivered_bits": 4e6})  # fmt: skip
    assert len(values(exporter, module.LINK_RATE, run="r1")) == 2
    exporter.begin({**LABELS, "run": "r2"})
    assert values(exporter, module.LINK_RATE) == []


def test_two_exporters_do_not_meet_and_labels_are_bounded() -> None:
    Exporter({"node": "a"}, CollectorRegistry())
    exporter = Exporter({"node": "b"})
    with pytest.raises(ValueError, match="step"):
        exporter.begin({"step": "1"})


def test_it_answers_scrapes_until_it_is_stopped(run: Path) -> None:
    exporter, (address, port) = fed(run, "worker-0"), own_place()
    stop = exporter.serve(address, port)
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        with pytest.raises(MachineError, match=f"{re.escape(address)}:{port}"):
            Exporter({}).serve(address, port)
    finally:
        stop()
    for family in exporter.registry.collect():
        assert family.name in text
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
        with urllib.request.urlopen("http://{}:{}/metrics".format(*place), timeout=10) as answer:
            assert module.BUILD in answer.read().decode()
