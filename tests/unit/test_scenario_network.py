"""Impairments, racks, traffic and what happens to nodes: from the file to plain numbers."""

from __future__ import annotations

from itertools import islice, pairwise
from math import inf
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from testbed.runner.link_replay import not_replayed
from testbed.scenario import load as schema
from testbed.scenario.expand import end_settings, expand, racks
from testbed.scenario.link_model import LinkEnd, impairments
from testbed.scenario.link_state import FourState, GilbertElliott, Impairments, LinkDirection, Slot
from testbed.scenario.load import dilate, dump, load
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import Burst, flows, node_changes
from testbed.scenario.timeline import build
from testbed.scenario.validate_links import kernel_needs
from testbed.scenario.yaml import parse

TEXT = """\
name: x
nodes:
  noise: {role: host, count: 2}
  server: {role: server}
  worker: {role: worker, count: 2}
racks:
  a: {members: [server, noise-0], up: {rate: 1 Gbit/s, queue: 5 ms, delay: 1 ms}, down: {rate: 1 Gbit/s, queue: 5 ms}}
  b: {members: [worker], up: {rate: 1 Gbit/s, queue: 5 ms}, down: {rate: 1 Gbit/s, queue: 5 ms}}
links:
  default:
    up: {rate: 100 Mbit/s, queue: 50 ms, delay: 10 ms, jitter: 1 ms, distribution: normal,
         delay_correlation: 0.25, loss: 0.01, reorder: {probability: 0.02, correlation: 0.5, gap: 5},
         duplicate: 0.03, corrupt: {probability: 0.04, correlation: 0.1},
         slot: {shortest: 1 ms, longest: 5 ms, packets: 32, bytes: 64 kB},
         ecn: true, ordered: false, overhead: 24 B, seed: 7}
    down: {rate: 100 Mbit/s, queue: 50 ms, loss: {model: random, probability: 0.2}}
  worker:
    up: {jitter: 0 s, loss: {model: gilbert-elliott, p: 0.01, r: 0.5}, slot: {shortest: 0 s}, reorder: 0}
  worker-1:
    up: {loss: {model: four-state, p13: 0.1, p31: 0.6, p32: 0.2, p23: 0.7, p14: 0.05}}
events:
  - {kind: pause, nodes: [worker-1, noise], at: 1 s, for: 2 s}
  - {kind: step, links: [b], at: 2 s, delay: 5 ms, loss: 0.5}
  - {kind: kill, nodes: [noise-0], at: 3 s, restart_after: 2 s}
  - {kind: kill, nodes: [noise-1], at: 9 s}
traffic:
  - {name: bulk, from: noise-0, to: server, kind: tcp, streams: 2, at: 5 s, for: 20 s}
  - {name: video, from: noise-1, to: worker-0, kind: udp, rate: 20 Mbit/s, on: 2 s, off: 3 s}
  - {name: random, from: noise-1, to: server, kind: tcp, congestion: bbr, on: 1 s, off: 1 s, timing: exponential, seed: 1, at: 4 s}
train: {stop: {steps: 5}}
congestion: cubic
"""


def model(text: str = TEXT) -> Scenario:
    return Scenario.model_validate(parse(text, "s").data)


def of(scenario: Scenario, link: str, direction: Any = "up") -> Impairments:
    return impairments(end_settings(scenario)[LinkDirection(link, direction)])


def test_every_impairment_arrives_as_a_plain_number() -> None:
    assert of(model(), "server") == Impairments(
        delay_ns=10_000_000,
        jitter_ns=1_000_000,
        distribution="normal",
        delay_correlation=0.25,
        loss=0.01,
        reorder=0.02,
        reorder_correlation=0.5,
        reorder_gap=5,
        duplicate=0.03,
        corrupt=0.04,
        corrupt_correlation=0.1,
        slot=Slot(1_000_000, 5_000_000, 32, 64_000),
        ecn=True,
        ordered=False,
        seed=7,
    )
    assert of(model(), "server", "down") == Impairments(loss=0.2)


def test_impairments_are_inherited_field_by_field_and_can_be_switched_off() -> None:
    worker = of(model(), "worker-0")
    assert (worker.delay_ns, worker.jitter_ns, worker.distribution) == (10_000_000, 0, "uniform")
    assert (worker.delay_correlation, worker.slot, worker.reorder) == (0.0, None, 0.0)
    assert worker.loss == GilbertElliott(0.01, 0.5)
    assert of(model(), "worker-1").loss == FourState(0.1, 0.6, 0.2, 0.7, 0.05)
    assert of(model(), "a") == Impairments(delay_ns=1_000_000)  # racks inherit nothing
    assert of(model(), "b") == Impairments()


def test_what_has_no_effect_is_as_if_not_asked_for() -> None:
    nothing = LinkEnd.model_validate(
        {
            "delay": "0 s",
            "jitter": "0 s",
            "distribution": "pareto",
            "loss": {"model": "random", "probability": 0},
            "reorder": {"probability": 0},
            "duplicate": 0,
            "ecn": True,
        }
    )
    assert impairments(nothing) == Impairments()
    assert not impairments(nothing)


def test_a_shape_carries_them_and_steps_change_them() -> None:
    timeline = build(model(), {})
    shape = timeline.initial[LinkDirection("server", "up")]
    assert (shape.overhead_bytes, shape.impairments) == (24, of(model(), "server"))
    rack = LinkDirection("b", "up")
    assert timeline.shape_at(rack, 1).impairments == Impairments()
    assert timeline.shape_at(rack, 2).impairments == Impairments(delay_ns=5_000_000, loss=0.5)
    assert timeline.impaired(rack)
    assert timeline.per_packet()


def test_needs_count_what_steps_will_ask_for() -> None:
    needs = kernel_needs(model())
    assert "netem (b up and 1 more: delay, loss)" in needs
    assert "netem (a up: delay)" in needs
    assert needs[-2:] == ["ifb (server up and 12 more)", "seed (server up and 4 more)"]


def test_racks_hold_nodes_and_hosts_come_last() -> None:
    assert [(rack.name, rack.members) for rack in racks(model())] == [
        ("a", ("server", "noise-0")),
        ("b", ("worker-0", "worker-1")),
    ]
    assert [(spec.name, spec.role, spec.rank, spec.peer) for spec in expand(model())] == [
        ("server", "server", 0, 0),
        ("worker-0", "worker", 0, 1),
        ("worker-1", "worker", 1, 2),
        ("noise-0", "host", 0, 3),
        ("noise-1", "host", 1, 4),
    ]


def test_node_changes_are_by_time() -> None:
    assert [tuple(change) for change in node_changes(model())] == [
        (1.0, "worker-1", "pause"),
        (1.0, "noise-0", "pause"),
        (1.0, "noise-1", "pause"),
        (3.0, "worker-1", "resume"),
        (3.0, "noise-0", "resume"),
        (3.0, "noise-1", "resume"),
        (3.0, "noise-0", "kill"),
        (5.0, "noise-0", "restart"),
        (9.0, "noise-1", "kill"),
    ]


def test_flows_say_who_sends_what_and_when() -> None:
    bulk, video, random = flows(model())
    assert (bulk.source, bulk.sink, bulk.congestion, bulk.streams) == (
        "noise-0",
        "server",
        "cubic",
        2,
    )
    assert list(bulk.bursts()) == [Burst(5.0, 25.0)]
    assert list(bulk.bursts_until(10.0)) == [Burst(5.0, 10.0)]
    assert list(bulk.bursts_until(5.0)) == []
    assert (video.rate_bits, video.congestion, video.stop_s) == (20_000_000, None, inf)
    assert list(video.bursts_until(8.0)) == [(0.0, 2.0), (5.0, 7.0)]
    assert random.congestion == "bbr"


def test_random_times_are_the_same_every_time_and_of_each_flow() -> None:
    first, again = flows(model())[2], flows(model())[2]
    bursts = list(islice(first.bursts(), 4000))
    assert bursts == list(islice(again.bursts(), 4000))
    assert bursts[0].start_s == 4.0
    assert all(earlier.stop_s < later.start_s for earlier, later in pairwise(bursts))
    mean = sum(burst.stop_s - burst.start_s for burst in bursts) / len(bursts)
    assert mean == pytest.approx(1.0, abs=0.1)  # six standard errors
    for change in (("seed: 1", "seed: 2"), ("name: random", "name: other")):
        assert next(flows(model(TEXT.replace(*change)))[2].bursts()) != bursts[0]


def test_dilation_reaches_all_of_it() -> None:
    before, after = model(), dilate(model(f"{TEXT}dilation: 10\n"))
    slow, plain = of(after, "server"), of(before, "server")
    assert (slow.delay_ns, slow.jitter_ns) == (10 * plain.delay_ns, 10 * plain.jitter_ns)
    assert slow.slot == Slot(10_000_000, 50_000_000, 32, 64_000)
    assert (slow.loss, slow.reorder_gap, slow.seed) == (plain.loss, plain.reorder_gap, plain.seed)
    queues = [build(s, {}).initial[LinkDirection("a", "up")].queue_bytes for s in (before, after)]
    assert queues[0] == queues[1]
    later = [(c.time_s, c.node) for c in node_changes(after)]
    assert later == [(10 * c.time_s, c.node) for c in node_changes(before)]
    assert flows(after)[1].rate_bits == 2_000_000
    slow_bursts = list(islice(flows(after)[2].bursts(), 50))
    for one, other in zip(slow_bursts, islice(flows(before)[2].bursts(), 50), strict=True):
        assert one == pytest.approx((10 * other.start_s, 10 * other.stop_s))


def test_it_is_written_back_and_the_schema_knows_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    loaded = load(tmp_path / "s.yaml")
    (tmp_path / "again.yaml").write_text(dump(loaded.scenario))
    again = load(tmp_path / "again.yaml")
    assert (again.scenario, again.hash) == (loaded.scenario, loaded.hash)
    for text in (TEXT, dump(loaded.scenario)):
        jsonschema.validate(parse(text, "s").data, schema.document())


def test_columns_of_one_file_are_traces_of_their_own() -> None:
    events = [
        {"kind": "trace", "links": ["server"], "file": "t.csv", "at_end": "loop", **more}
        for more in ({}, {"column": "lte"})
    ]
    keys = [
        event.key
        for event in Scenario.model_validate(
            {"name": "x", "nodes": {}, "links": {}, "events": events}
        ).events
        if event.kind == "trace"
    ]
    assert keys == ["t.csv", "t.csv:lte"]


def test_whether_anything_is_marked_at_any_time() -> None:
    def marks(text: str) -> bool:
        return build(Scenario.model_validate(parse(text, "s").data), {}).marks()

    text = """\
name: x
nodes: {server: {role: server}, worker: {role: worker}}
links:
  default: {up: {rate: 1 Mbit/s, queue: 50 ms}, down: {rate: 1 Mbit/s, queue: 50 ms}}
  worker: {up: {loss: 0, ecn: true}}
"""
    later = "events: [{kind: step, links: [worker], direction: up, at: 5 s, loss: LOSS}]"
    assert not marks(text)
    assert marks(text + later.replace("LOSS", "0.01"))
    assert not marks(text.replace("ecn: true", "ecn: false") + later.replace("LOSS", "0.01"))


def test_what_a_replay_leaves_out() -> None:
    assert not_replayed(model()) == ["traffic", "pause", "kill"]
    assert not_replayed(model().model_copy(update={"events": (), "traffic": ()})) == []
