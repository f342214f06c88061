"""Scenarios that are right: inheritance, dilation, needs, hash, schema, and the files that ship."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from testbed.errors import InputError
from testbed.scenario import load as schema
from testbed.scenario.expand import end_settings, expand
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.load import dilate, dilate_traces, dump, load, scenario_hash
from testbed.scenario.model import Scenario
from testbed.scenario.timeline import build
from testbed.scenario.validate_links import kernel_needs
from testbed.scenario.yaml import parse
from testbed.traces.rate_trace import RateTrace
from testbed.units import Duration, Rate, Size

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "scenarios").glob("*.yaml"))
TEXT = """\
name: x
nodes:
  fast: {role: worker, count: 2}
  server: {role: server}
  slow: {role: worker}
links:
  default:
    up: {rate: 100 Mbit/s, queue: 50 ms, delay: 1 ms}
    down: {rate: 200 Mbit/s, queue: 100 packets}
  fast: {up: {rate: 300 Mbit/s, delay: 0 s}}
  fast-1: {up: {queue: 64 kB, at: network}}
events:
  - {kind: trace, links: [fast], at: 1 s, file: t, at_end: loop, offset: 2 s, scale: 0.5}
  - {kind: ramp, links: [all], at: 2 s, rate: 40 Mbit/s, over: 1 s, every: 200 ms}
  - {kind: outage, links: [server], at: 3 s, for: 500 ms}
train: {pace: 200 ms, stop: {steps: 5}}
algorithms: [none, {name: mine, from: adatopk, controller: {k_max: 0.2}}]
dilation: 10
"""
TRACE = RateTrace((0.0, 3.0), (10_000_000, 20_000_000), 5.0)


def model(text: str = TEXT) -> Scenario:
    return Scenario.model_validate(parse(text, "s").data)


def test_nodes_are_numbered_server_first() -> None:
    listed = [(s.name, s.group, s.role, s.rank, s.peer) for s in expand(model())]
    assert listed == [
        ("server", "server", "server", 0, 0),
        ("fast-0", "fast", "worker", 0, 1),
        ("fast-1", "fast", "worker", 1, 2),
        ("slow", "slow", "worker", 2, 3),
    ]


def test_link_settings_are_inherited_field_by_field() -> None:
    settings = end_settings(model())
    assert len(settings) == 8
    slow, fast = settings[LinkDirection("slow", "up")], settings[LinkDirection("fast-1", "up")]
    assert (slow.rate, slow.queue, slow.at) == (Rate(100_000_000), Duration(0.05), "nic")
    assert (fast.rate, fast.queue, fast.at) == (Rate(300_000_000), Size(64_000), "network")
    assert settings[LinkDirection("fast-1", "down")].at is None
    assert fast.delay == 0


def test_needs_of_a_kernel_are_named_by_link() -> None:
    assert kernel_needs(model()) == [
        "netem (server up and 1 more: delay)",
        "ifb (server up and 2 more)",  # fast-1 is shaped in the network
    ]
    one = TEXT.replace("delay: 1 ms", "loss: 0").replace("delay: 0 s", "delay: 1 ms, jitter: 1 ms")
    assert kernel_needs(model(one.replace("count: 2", "count: 1"))) == [
        "netem (fast-0 up: delay, jitter)",
        "ifb (fast-0 up)",
    ]
    plain = TEXT.replace(", delay: 1 ms", "")
    assert kernel_needs(model(plain)) == ["ifb (fast-1 up)"]
    assert kernel_needs(model(plain.replace(", at: network", ""))) == []


def test_dilation_scales_every_time_and_every_rate_once() -> None:
    before = model()
    after = dilate(before)
    pairs = list(_quantities(before, after))
    assert len(pairs) > 15
    for old, new in pairs:
        assert new == (pytest.approx(old * 10) if isinstance(old, Duration) else old / 10)
    assert after.train.pace == Duration(2.0)
    assert after.peer_timeout == Duration(100.0)
    assert after.dilation == 10
    same = model(TEXT.replace("dilation: 10", "dilation: 1"))
    assert dilate(same) == same


def _quantities(old: Any, new: Any) -> Any:
    if isinstance(old, (Duration, Rate)):
        yield old, new
    elif isinstance(old, BaseModel):
        yield from _quantities(dict(old), dict(new))
    elif isinstance(old, dict):
        for key, value in old.items():
            yield from _quantities(value, new[key])
    elif isinstance(old, (list, tuple)):
        for one, other in zip(old, new, strict=True):
            yield from _quantities(one, other)
    else:
        assert old == new


@pytest.mark.parametrize("factor", [3.0, 7.0, 10.0])
def test_a_dilated_timeline_carries_the_same_bytes(factor: float) -> None:
    scenario = model(TEXT.replace("dilation: 10", f"dilation: {factor}"))
    plain = build(scenario, {"t": TRACE})
    slow = build(dilate(scenario), dilate_traces({"t": TRACE}, factor))
    for end in plain.ends:
        assert slow.initial[end].queue_bytes == plain.initial[end].queue_bytes
        bits = plain.bits(end, 0, 20)
        assert slow.bits(end, 0, 20 * factor) == pytest.approx(bits, rel=1e-6)
    original = [(c.time_s, c.end) for c in plain.changes(0, 20)]
    later = [(c.time_s / factor, c.end) for c in slow.changes(0, 20 * factor)]
    assert sorted(e for _, e in later) == sorted(e for _, e in original)
    assert [t for t, _ in later] == pytest.approx([t for t, _ in original])


def test_the_resolved_scenario_reads_back_equal(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("0 10\n3 20\n")
    (tmp_path / "s.yaml").write_text(TEXT)
    loaded = load(tmp_path / "s.yaml")
    (tmp_path / "again.yaml").write_text(dump(loaded.scenario))
    again = load(tmp_path / "again.yaml")
    assert again.scenario == loaded.scenario
    assert again.hash == loaded.hash
    assert (loaded.text, loaded.source) == (TEXT, tmp_path / "s.yaml")


def test_the_hash_sees_what_counts_and_nothing_else() -> None:
    traces = {"t": TRACE}
    known = scenario_hash(model(), traces)
    assert re.fullmatch("[0-9a-f]{64}", known)
    assert scenario_hash(model(TEXT.replace("50 ms", "0.05 s") + "# a comment\n"), traces) == known
    assert scenario_hash(model(TEXT.replace("50 ms", "51 ms")), traces) != known
    assert scenario_hash(model(), {"t": TRACE.dilated(2)}) != known
    assert scenario_hash(model(), {"t": replace(TRACE, duration_s=TRACE.duration_s + 1)}) != known


def test_the_hash_does_not_depend_on_where_traces_lie(tmp_path: Path) -> None:
    trace = ROOT / "scenarios" / "traces" / "dynamic-1g3.csv"
    text = (ROOT / "scenarios" / "dynamic-1g3.yaml").read_text()
    hashes = set()
    for name in ("here.csv", "elsewhere/there.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(trace.read_bytes())
        for file in (name, str(tmp_path / name)):
            (tmp_path / "scenario.yaml").write_text(text.replace("traces/dynamic-1g3.csv", file))
            hashes.add(load(tmp_path / "scenario.yaml").hash)
    assert len(hashes) == 1
    (tmp_path / "here.csv").write_text(trace.read_text().replace("1300", "1299"))
    (tmp_path / "scenario.yaml").write_text(text.replace("traces/dynamic-1g3.csv", "here.csv"))
    assert load(tmp_path / "scenario.yaml").hash not in hashes


def test_nor_does_it_where_a_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    hashes = []
    for name, column in (("a.csv", "x"), ("elsewhere/b.csv", "x"), ("a.csv", "y")):
        (tmp_path / name).write_text("time_s,x_mbit_s,y_mbit_s\n0,10,20\n3,20,10\n")
        text = TEXT.replace("file: t,", f"file: {name}, column: {column}_mbit_s,")
        (tmp_path / "scenario.yaml").write_text(text)
        hashes.append(load(tmp_path / "scenario.yaml").hash)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_scenarios_are_valid(path: Path) -> None:
    loaded = load(path)
    assert loaded.scenario.name == path.stem
    assert bool(kernel_needs(loaded.scenario)) == path.stem.startswith("lossy")
    jsonschema.validate(parse(loaded.text, str(path)).data, json.loads(schema.PATH.read_text()))
    assert loaded.timeline().lowest_rate() > 0


def test_the_demo_is_what_the_readme_says() -> None:
    scenario = load(ROOT / "scenarios" / "demo.yaml").scenario
    assert [spec.role for spec in expand(scenario)] == ["server"] + ["worker"] * 4
    names = [name if isinstance(name, str) else name.name for name in scenario.algorithms]
    assert names == ["none", "topk-0.15", "adatopk", "adalag-w1"]


def test_the_json_schema_is_current() -> None:
    assert schema.PATH.read_text() == schema.text(), "run: python -m testbed.scenario.load"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.text()))


@pytest.mark.parametrize(
    ("old", "new"), [("50 ms", "50"), ("name: x", "nam: x"), ("role: server", "role: boss")]
)
def test_the_json_schema_refuses_what_the_loader_refuses(
    tmp_path: Path, old: str, new: str
) -> None:
    data = parse(TEXT.replace(old, new), "s").data
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(schema.text()))
    (tmp_path / "s.yaml").write_text(TEXT.replace(old, new))
    with pytest.raises(InputError):
        load(tmp_path / "s.yaml")


def test_the_json_schema_describes_every_field_that_needs_it() -> None:
    undescribed = [
        f"{name}.{key}"
        for name, part in {**schema.document()["$defs"], "Scenario": schema.document()}.items()
        for key, field in part.get("properties", {}).items()
        if "description" not in field
    ]
    assert undescribed == []


def test_the_documentation_is_made_of_valid_scenarios(tmp_path: Path) -> None:
    pages = [
        ROOT / "docs" / "reference" / f"scenario-{part}.md"
        for part in ("format", "events", "training")
    ]
    text = "".join(page.read_text() for page in pages)
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 8
    whole = next(block for block in blocks if block.startswith("name:"))
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "cloud.csv").write_text("time_s,rate_mbit_s\n0,80\n1,40\n")
    for i, block in enumerate(blocks):
        path = tmp_path / f"{i}.yaml"
        path.write_text(block if block.startswith("name:") else _completed(whole, block))
        load(path)


def _completed(whole: str, block: str) -> str:
    """The example with the top-level keys of ``block`` in place of its own."""
    own = set(re.findall(r"^([a-z_]+):", block, flags=re.MULTILINE))
    parts = re.split(r"^(?=[a-z_]+:)", whole, flags=re.MULTILINE)
    kept = [part for part in parts if part.split(":")[0] not in own]
    return "".join(kept) + block


def test_scenarios_are_read_without_torch_docker_or_netlink() -> None:
    code = (
        "import sys; from pathlib import Path; from testbed.scenario.load import load;"
        f"load(Path({str(SHIPPED[0])!r})).timeline();"
        "print(sorted({'torch', 'docker', 'pyroute2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
