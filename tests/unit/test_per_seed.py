"""Histories that begin elsewhere in their traces with every seed, and are the same for every algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.records.run_directory import MANIFEST, read_json
from testbed.runner.experiment import prepare
from testbed.runner.run import run
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.load import for_seed, load

SCENARIO = """
name: seeds
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 2}}}}
links: {{default: {{up: {{rate: 9 Mbit/s, queue: 50 ms}}, down: {{rate: 9 Mbit/s, queue: 50 ms}}}}}}
events:
  - {{kind: trace, links: [server], direction: down, file: t.csv, at_end: {end}, offset: 1 s, offset_per_seed: 2 s}}
dilation: {dilation}
"""
TRACE = "time_s,rate_mbit_s\n0,1\n1,2\n2,3\n3,4\n4,5\n"


def written(folder: Path, end: str = "loop", dilation: int = 1) -> Path:
    (folder / "t.csv").write_text(TRACE)
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(end=end, dilation=dilation))
    return path


@pytest.mark.parametrize(("seed", "first"), [(0, 2), (1, 4), (2, 1), (3, 3), (5, 2)])
def test_where_a_seed_begins(tmp_path: Path, seed: int, first: int) -> None:
    loaded = for_seed(load(written(tmp_path)), seed)
    end = LinkDirection("server", "down")
    rates = [loaded.timeline().rate_at(end, time_s) for time_s in range(5)]
    assert rates == [(first - 1 + i) % 5 * 1_000_000 + 1_000_000 for i in range(5)]


def test_dilation_moves_the_beginning_too(tmp_path: Path) -> None:
    experiment = prepare(written(tmp_path, dilation=10)).for_seed(1)
    end = LinkDirection("server", "down")
    assert [experiment.timeline.rate_at(end, time_s) for time_s in (0.0, 9.9, 10.1)] == [
        400_000, 400_000, 500_000,
    ]  # fmt: skip
    assert experiment.loaded.hash == prepare(written(tmp_path, dilation=10)).loaded.hash


def test_a_run_says_what_it_met_and_is_itself_a_scenario(tmp_path: Path) -> None:
    from testbed.scenario.load import dump

    loaded = for_seed(load(written(tmp_path)), 1)
    (tmp_path / "resolved.yaml").write_text(dump(loaded.scenario))
    again = load(tmp_path / "resolved.yaml")
    assert again.scenario == loaded.scenario
    assert for_seed(again, 7) is again, "a resolved scenario does not move again"


def test_every_run_of_an_experiment_has_the_links_of_its_seed(tmp_path: Path) -> None:
    """Each algorithm with the same seed the same ones."""
    path, more = written(tmp_path), "train: {model: mlp, gradients: none, stop: {steps: 1}}\n"
    path.write_text(path.read_text() + more)
    runs = run(prepare(path, ["none", "topk-0.01"], [0, 1]), "sim", tmp_path, quiet=True).runs
    begins = {}
    for entry in runs:
        links = read_json(Path(entry["dir"]) / MANIFEST)["links"]
        (rate,) = {link["asked"][0] for link in links
                   if (link["link"], link["direction"]) == ("server", "down")}  # fmt: skip
        begins[entry["seed"], entry["algorithm"]] = rate // 1_000_000
    assert begins == {(0, "none"): 2, (0, "topk-0.01"): 2, (1, "none"): 4, (1, "topk-0.01"): 4}


def test_only_a_loop_begins_anywhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"offset_per_seed: only a loop can begin anywhere"):
        load(written(tmp_path, end="hold"))
