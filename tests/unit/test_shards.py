"""A model spread over several servers: where it is cut, and that training is what it was."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.compress.layout import WHOLE, Layout, cut
from testbed.errors import InputError
from testbed.records.run_directory import read_events, read_json
from testbed.runner.experiment import prepare
from testbed.runner.run import run
from testbed.transport.frame import HEADER_BYTES

SHAPES = st.lists(
    st.lists(st.integers(1, 12), min_size=0, max_size=3).map(tuple), min_size=1, max_size=8
)
SCENARIO = """
name: shards
nodes: {{server: {{role: server, count: {servers}}}, worker: {{role: worker, count: {workers}}}}}
links:
  default: {{up: {{rate: 20 Mbit/s, queue: 50 ms}}, down: {{rate: 20 Mbit/s, queue: 50 ms}}}}
train: {{task: digits, model: mlp, batch: 8, optimizer: {{name: sgd, lr: 0.1}}, pace: 100 ms,
  stop: {{steps: 6}}, evaluate_every: 2{more}}}
algorithms: [{algorithm}]
"""


@given(SHAPES, st.integers(2, 6))
def test_shards_follow_one_another_and_are_about_equal(
    shapes: list[tuple[int, ...]], many: int
) -> None:
    layout = Layout.of((f"p{i}", shape) for i, shape in enumerate(shapes))
    try:
        shards = cut(layout, many)
    except InputError as error:
        assert f"cannot be spread over {many} servers" in str(error)
        rows = (part.size // (part.rows[1] if len(part.shape) > 1 else 1) for part in layout)
        assert sum(rows) < many
        return
    assert [shard.number for shard in shards] == list(range(many))
    assert (shards[0].begin, shards[-1].end) == (0, layout.size)
    assert all(one.end == other.begin for one, other in pairwise(shards))
    longest = max(part.rows[1] if len(part.shape) > 1 else 1 for part in layout)
    if layout.size >= 2 * many * longest:
        assert all(abs(s.layout.size - layout.size / many) <= longest + 1 for s in shards)


def test_a_parameter_that_is_cut_keeps_its_rows() -> None:
    layout = Layout.of([("a", (3, 4)), ("b", (5,))])
    one, other = cut(layout, 2)
    assert [(p.name, p.shape) for p in one.layout] == [("a[0:2]", (2, 4))]
    assert [(p.name, p.shape) for p in other.layout] == [("a[2:3]", (1, 4)), ("b", (5,))]
    assert cut(layout, 1)[0].name == WHOLE
    assert cut(layout, 1)[0].layout is layout


def carried_out(
    folder: Path, servers: int, algorithm: str, workers: int = 3, more: str = ""
) -> Path:
    folder.mkdir(parents=True)
    path = folder / "shards.yaml"
    path.write_text(
        SCENARIO.format(servers=servers, algorithm=algorithm, workers=workers, more=more)
    )
    (entry,) = run(prepare(path), "sim", folder / "out", quiet=True).runs
    return Path(entry["dir"])


def of_kind(directory: Path, kind: str) -> list[dict[str, Any]]:
    return read_events(directory)[kind]


@pytest.mark.parametrize("workers", [3, 40])  # of their own, or with a common model
def test_whole_gradients_train_alike_over_any_number_of_servers(
    tmp_path: Path, workers: int
) -> None:
    found = {
        servers: carried_out(tmp_path / str(servers), servers, "none", workers)
        for servers in (1, 4)
    }
    losses = {
        servers: [
            [s["loss"] for s in of_kind(d, "step")],
            [e["loss"] for e in of_kind(d, "evaluation")],
        ]
        for servers, d in found.items()
    }
    assert losses[4] == losses[1]
    sums = [read_json(directory / "summary.json") for directory in found.values()]
    assert sums[0]["verdict"] == sums[1]["verdict"] == "valid"
    headers = 3 * HEADER_BYTES + 3 * 5  # more messages, each with a payload's header
    more = sums[1]["bytes_up"] - sums[0]["bytes_up"]
    assert 3 * HEADER_BYTES * 6 * workers <= more <= 2 * headers * 6 * workers
    assert sums[1]["step_s"] < 0.6 * sums[0]["step_s"] or workers == 3
    assert sums[1]["expected_step_s"] == pytest.approx(sums[1]["step_s"], rel=0.1)


def test_each_server_averages_its_part_and_the_first_worker_measures(tmp_path: Path) -> None:
    directory = carried_out(tmp_path / "run", 3, "topk-0.01")
    rounds, steps = of_kind(directory, "round"), of_kind(directory, "step")
    assert {r["node"] for r in rounds} == {"server-0", "server-1", "server-2"}
    assert len(rounds) == 3 * 6
    assert {e["node"] for e in of_kind(directory, "evaluation")} == {"worker-0"}
    sent = sum(m["bytes"] for r in rounds for m in r["messages"])
    assert sent == sum(step["bytes_up"] for step in steps)
    assert sum(r["bytes_down"] for r in rounds) == sum(step["bytes_down"] for step in steps)
    assert read_json(directory / "summary.json")["verdict"] == "valid"


def test_networks_alone_can_have_several_servers(tmp_path: Path) -> None:
    real = carried_out(tmp_path / "real", 3, "none")
    alone = carried_out(tmp_path / "alone", 3, "none", more=", gradients: none")
    sums = [read_json(directory / "summary.json") for directory in (real, alone)]
    assert sums[0]["bytes_up"] == sums[1]["bytes_up"]
    assert sums[0]["bytes_down"] == sums[1]["bytes_down"]
    assert sums[1]["step_s"] == pytest.approx(sums[0]["step_s"], rel=1e-3)


def test_steps_of_recorded_sizes_carry_as_many_elements_with_several_servers(
    tmp_path: Path,
) -> None:
    first = carried_out(tmp_path / "first", 3, "topk-0.05")
    more = f", gradients: recorded, recorded: {first}"
    again = carried_out(tmp_path / "again", 3, "topk-0.05", more=more)
    sent = [
        {(s["node"], s["step"]): (s["size"], s["sent_count"]) for s in of_kind(directory, "step")}
        for directory in (first, again)
    ]
    assert sent[0] == sent[1]
    assert len(sent[0]) == 3 * 6


def test_several_servers_have_no_accuracy_to_stop_at(tmp_path: Path) -> None:
    text = SCENARIO.format(servers=3, workers=2, more="", algorithm="none")
    path = tmp_path / "s.yaml"
    path.write_text(text.replace("steps: 6", "steps: 6, accuracy: 0.9"))
    with pytest.raises(InputError, match=r"none of 3 servers sees all parameters: stop at `steps`"):
        prepare(path)


def test_more_servers_than_rows_are_refused() -> None:
    layout = Layout.of([("a", (2, 50))])
    with pytest.raises(InputError, match="100 parameters cannot be spread over 3 servers"):
        cut(layout, 3)
