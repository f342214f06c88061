"""Hostile scenario files are accepted, or refused with the place: nothing else, and soon.

``NARROWS_FUZZ=10000`` in the environment raises the number of examples.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from testbed.errors import InputError
from testbed.scenario.load import dump, load
from testbed.scenario.node_timeline import flows, node_changes
from testbed.scenario.validate_links import kernel_needs

EXAMPLES = int(os.environ.get("NARROWS_FUZZ", "200"))
FLAPS = 100_000 if os.environ.get("NARROWS_NIGHTLY") else 10_000
"""As many as a scenario may have, or enough of them for every day."""
LONGEST_S = 40.0
"""CPU time; a file takes milliseconds."""

WHOLE = """\
name: x
nodes: {server: {role: server}, worker: {role: worker, count: 3}, noise: {role: host, count: 2}}
racks:
  a: {members: [worker-0, noise], up: {rate: 1 Gbit/s, queue: 5 ms}, down: {rate: 1 Gbit/s, queue: 5 ms}}
links:
  default:
    up: {rate: 100 Mbit/s, queue: 50 ms, delay: 10 ms, jitter: 1 ms, distribution: normal,
         loss: {model: gilbert-elliott, p: 0.01, r: 0.3}, reorder: {probability: 0.1, gap: 5},
         duplicate: 0.01, slot: {shortest: 1 ms, longest: 5 ms, packets: 32, bytes: 64 kB},
         ecn: true, ordered: true, overhead: 24 B, seed: 7}
    down: {rate: 100 Mbit/s, queue: 64 kB, loss: 0.01, corrupt: {probability: 0.1, correlation: 0.1}}
  worker: {up: {at: network, queue: 100 packets, loss: {model: four-state, p13: 0.1}}}
events:
  - {kind: step, links: [all], at: 1 s, rate: 50 Mbit/s, delay: 20 ms, loss: 0.02}
  - {kind: trace, links: [server], at: 1 s, file: t.csv, at_end: hold, repeat: 3, stretch: 2, offset: 1 s, scale: 0.5}
  - {kind: ramp, links: [worker], at: 2 s, rate: 10 Mbit/s, over: 1 s, every: 100 ms}
  - {kind: outage, links: [a], at: 3 s, for: 1 s, packets: drop}
  - {kind: flap, links: [worker-1], at: 4 s, for: 200 ms, every: 1 s, times: 5}
  - {kind: partition, links: [worker-0, worker-1], at: 5 s, for: 1 s}
  - {kind: pause, nodes: [worker-1], at: 6 s, for: 2 s}
  - {kind: kill, nodes: [noise-0], at: 7 s, restart_after: 2 s}
  - {kind: trace, links: [all], direction: down, at: 8 s, file: t.csv, at_end: loop}
traffic:
  - {name: bulk, from: noise-0, to: server, kind: tcp, congestion: cubic, streams: 2, at: 5 s, for: 20 s}
  - {name: video, from: noise-1, to: server, kind: udp, rate: 20 Mbit/s, on: 2 s, off: 3 s, timing: exponential, seed: 1}
train: {task: digits, model: cnn, batch: 32, optimizer: {name: sgd, lr: 0.1}, stop: {steps: 5}}
algorithms: [none, topk-0.1, {name: mine, from: adatopk, controller: {k_max: 0.2}}]
seeds: [1, 2]
dilation: 2
peer_timeout: 10 s
"""
TRACE = "time_s,rate_mbit_s\n0,5\n1,0\n2,7\n"


class Raw(str):
    """Text that is put into a file as it stands."""


class Pairs(list[tuple[Any, Any]]):
    """A mapping in which a key may be there twice."""


def written(value: Any) -> str:
    """YAML in flow form, a top-level key or list entry a line."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",\n ".join(f"{written(key)}: {written(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",\n ".join(map(written, value)) + "]"
    return json.dumps(value)


def _pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs((key, _pairs(item)) for key, item in value.items())
    return [_pairs(item) for item in value] if isinstance(value, list) else value


def containers(value: Any) -> Iterator[Any]:
    """Every mapping and list in it."""
    if isinstance(value, list):
        yield value
        for item in value:
            yield from containers(item[1] if isinstance(value, Pairs) else item)


BOMB = Raw(
    "[&b0 [1,1,1,1,1,1,1,1], "
    + ", ".join(f"&b{i} [{', '.join([f'*b{i - 1}'] * 8)}]" for i in range(1, 9))
    + "]"
)
ODD = [
    None, True, False, 0, 1, -1, 0.5, 1.0, 2**63, -(2**70), 10**400, 1e308, "", " ", "all", "default",
    "none", "0 s", "1 s", "-1 s", "1e300 s", "1e15 s", "1e-9 s", "9007199254740992 s", "0 bit/s",
    "1 bit/s", "1e300 bit/s", "9007199254740992 bit/s", "0 B", "1 B", "5 GB", "2 packets", "1e9 packets",
    "１ s", "1 ms", "100 ms", "worker", "worker-1", "noise-0", "server", "a", "t.csv", "../t.csv", "/", ".",
    "/dev/zero", "/dev/null", "x" * 5000, "\u202e", "\N{PILE OF POO}", "a\nb", "\x07", "step", "loop",
    [], {}, [[]], [None], {"": 1}, {"model": "random"}, {"model": ["x"]}, {"probability": 0.5}, {"kind": "step"},
    Raw(".nan"), Raw(".inf"), Raw("-.inf"), Raw("0x1F"), Raw("0o17"), Raw("1_000"), Raw("2001-01-01"), Raw("~"),
    Raw("!!python/object:os.system x"), Raw("!!binary aGk="), Raw("!!set {a}"), Raw("!x y"), Raw("!!float x"),
    Raw("*nothing"), Raw("&a [*a]"), Raw("<<"), Raw("? x"), Raw("|"), Raw("\"\\0\""), Raw("\"\\ud800\""),
    Raw("\"\\U0010ffff\""), Raw("1:30"), Raw("---"), Raw("%YAML 1.1"), Raw("@"), Raw("`"), Raw("\t"), Raw("\x85"),
    Raw("9" * 5000), Raw("1e" + "9" * 400), Raw("'"), Raw("# "), Raw("- x"), Raw("{<<: {a: 1}}"), Raw("{1: 2}"),
    Raw("{[a]: b}"), Raw("["* 60 + "]" * 60), Raw("{a: " * 60 + "1" + "}" * 60), BOMB,
]  # fmt: skip
odd = st.one_of(
    st.sampled_from(ODD), st.text(max_size=12), st.integers(), st.floats(),
    st.builds(lambda n, unit: f"{n} {unit}", st.floats(), st.sampled_from(["s", "ms", "Mbit/s", "B", "packets"])),
)  # fmt: skip


@st.composite
def hostile(draw: st.DrawFn) -> str:
    """The whole scenario with a few things about it changed, as text."""
    data = _pairs(YAML(typ="safe", pure=True).load(WHOLE))
    for _ in range(draw(st.integers(1, 4))):
        places = [place for place in containers(data) if place]
        place = draw(st.sampled_from(places))
        i = draw(st.integers(0, len(place) - 1))
        how = draw(st.sampled_from(["value", "value", "value", "drop", "double", "key", "swap"]))
        _mutate(draw, place, i, how, places)
    text = "\n".join(f"{written(key)}: {written(item)}" for key, item in data) + "\n"
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=4)) + text[at + draw(st.integers(0, 40)) :]
    return text


def _mutate(draw: st.DrawFn, place: Any, i: int, how: str, places: list[Any]) -> None:
    mapping = isinstance(place, Pairs)
    if how == "drop":
        del place[i]
    elif how == "double":
        place.insert(i, place[i])
    elif how == "key" and mapping:
        place[i] = (draw(odd), place[i][1])
    else:
        other = draw(st.sampled_from(places))
        value = draw(odd)
        if how == "swap" and not any(place is inner for inner in containers(other)):
            value = other
        place[i] = (place[i][0], value) if mapping else value


def refused_or_good(folder: Path, text: str) -> None:
    """Load ``text``; whatever is accepted can be used, whatever is refused is said with its place."""
    path = folder / "fuzz.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    (folder / "t.csv").write_text(TRACE)
    begun = time.process_time()
    try:
        loaded = load(path)
    except InputError as error:
        assert all(line.startswith(f"{path}:") for line in str(error).splitlines()), str(error)
        assert len(str(error)) < 100_000
    else:
        timeline, scenario = loaded.timeline(), loaded.wall()
        for change, _ in zip(timeline.changes(0.0, 60.0), range(100), strict=False):
            assert change.shape.queue_bytes >= 3028
        for flow in flows(scenario):
            assert all(burst.start_s <= burst.stop_s for burst in flow.bursts_until(5.0))
        assert isinstance(kernel_needs(scenario), list)
        times = [change.time_s for change in node_changes(scenario)]
        assert times == sorted(times)
        (folder / "again.yaml").write_text(dump(loaded.scenario))
        assert load(folder / "again.yaml").scenario == loaded.scenario
    assert time.process_time() - begun < LONGEST_S


def test_the_file_that_is_changed_below_is_good(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    (tmp_path / "s.yaml").write_text(WHOLE)
    assert load(tmp_path / "s.yaml").scenario.name == "x"
    data = _pairs(YAML(typ="safe", pure=True).load(WHOLE))
    text = "\n".join(f"{written(key)}: {written(item)}" for key, item in data)
    (tmp_path / "flow.yaml").write_text(text)
    assert load(tmp_path / "flow.yaml").scenario == load(tmp_path / "s.yaml").scenario


@pytest.mark.timeout(max(300, EXAMPLES))
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(hostile())
def test_a_hostile_scenario_is_accepted_or_refused_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    refused_or_good(tmp_path_factory.getbasetemp(), text)


BY_HAND = [
    f"links: {{default: {{up: {value}, down: {value}}}}}" for value in ("1", "[]", "{rate: {}}")
] + [
    "a: [" + "&a x, " * 5000 + "]",
    "name: " + "x" * 100_000,
    "events: [" + "1," * 5000 + "1]",
    "events: [" + "{kind: step, a: 1}," * 2000 + "]",
    "? [a, b]\n: c",
    "name: \"a\\nb\"\n\"c\\nd\": 1",
    WHOLE.replace("t.csv", "\"a\\nb\""),
    WHOLE.replace("t.csv", "x" * 5000),
    WHOLE.replace("times: 5", f"times: {FLAPS}"),
    WHOLE.replace("count: 3", "count: 9000").replace("[worker-1]", "[" + "wroker-1," * 500 + "]"),
    WHOLE.replace("repeat: 3", "repeat: 2000000000"),
    WHOLE.replace("stretch: 2", "stretch: 1e-300"),
    WHOLE.replace("scale: 0.5", "scale: 1e300"),
    WHOLE.replace("dilation: 2", "dilation: 1000"),
]  # fmt: skip


@pytest.mark.parametrize("text", BY_HAND, ids=range(len(BY_HAND)))
def test_what_somebody_might_try_by_hand(tmp_path: Path, text: str) -> None:
    refused_or_good(tmp_path, text)
