"""Labels that differ by worker: whose samples are whose, and what a run says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from virtual_run import carried_out

from testbed.errors import InputError
from testbed.records.run_directory import read_events, read_json
from testbed.scenario.model import Train
from testbed.training.data import SplitBatches, open_task, split_by_label

LABELS = [*Random(0).choices(range(10), weights=range(1, 11), k=4000), *[3] * 7]
SCENARIO = """
name: skewed
nodes: {server: {role: server}, worker: {role: worker, count: 4}}
links:
  default: {up: {rate: 200 Mbit/s, queue: 50 ms}, down: {rate: 200 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 20 ms,
  split: SPLIT, stop: {steps: 30}, evaluate_every: 10}
algorithms: [none]
"""


def distance(shares: list[list[int]]) -> float:
    """Mean over workers of the total variation between its labels and all."""
    whole, found = Counter(LABELS), 0.0
    for share in shares:
        own = Counter(LABELS[place] for place in share)
        found += sum(abs(own[one] / len(share) - whole[one] / len(LABELS)) for one in whole) / 2
    return found / len(shares)


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 1.0, 1e4])
def test_nobody_shares_a_sample_and_all_have_as_many(alpha: float) -> None:
    shares = split_by_label(LABELS, 8, alpha, 1)
    assert {len(share) for share in shares} == {len(LABELS) // 8}
    assert len({place for share in shares for place in share}) == 8 * (len(LABELS) // 8)


def test_the_smaller_alpha_the_less_alike_they_are() -> None:
    found = [distance(split_by_label(LABELS, 8, alpha, 1)) for alpha in (0.01, 0.1, 1.0, 1e4)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.6 and found[-1] < 0.08


def test_shares_are_drawn_around_those_of_the_whole_set() -> None:
    """E[q] = p whatever α is: over many seeds a worker has of a label what the set has of it."""
    found: Counter[int] = Counter()
    for seed in range(200):
        found.update(LABELS[place] for place in split_by_label(LABELS, 8, 0.5, seed)[0])
    whole, many = Counter(LABELS), sum(found.values())
    for label in whole:
        assert found[label] / many == pytest.approx(whole[label] / len(LABELS), abs=0.03)


def test_labels_vary_between_workers_as_a_dirichlet_draw_of_that_concentration_does() -> None:
    """Var(q) = p (1 - p) / (alpha + 1), and less: of a label that has run out nobody gets what they drew."""
    labels, alpha = [place % 10 for place in range(2000)], 5.0
    found = []
    for seed in range(20):
        for share in split_by_label(labels, 10, alpha, seed):
            counts = Counter(labels[place] for place in share)
            found += [(counts[label] / len(share) - 0.1) ** 2 for label in range(10)]
    drawn = 0.1 * 0.9 / (alpha + 1)
    assert 0.6 * drawn < sum(found) / len(found) < drawn


def test_a_seed_is_a_split() -> None:
    assert split_by_label(LABELS, 8, 0.1, 1) == split_by_label(LABELS, 8, 0.1, 1)
    assert split_by_label(LABELS, 8, 0.1, 1) != split_by_label(LABELS, 8, 0.1, 2)


def test_an_epoch_is_a_worker_s_own_samples_once() -> None:
    batches = SplitBatches(LABELS, 10, 8, 0.1, 5)
    steps = batches.steps_per_epoch
    assert steps == len(LABELS) // 80
    first = torch.cat([batches.indices(step, 3) for step in range(1, steps + 1)]).tolist()
    second = torch.cat([batches.indices(steps + step, 3) for step in range(1, steps + 1)]).tolist()
    own = split_by_label(LABELS, 8, 0.1, 5)[3]
    assert len(set(first)) == len(first) and set(first) <= set(own) and first != second
    parts = [batches.indices(2, rank) for rank in range(8)]
    assert batches.whole(2).tolist() == torch.cat(parts).tolist()
    counted = batches.labels(3)
    assert sum(counted.values()) == len(own) and list(counted) == list(range(10))


def test_a_worker_without_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="need 4800 samples a step"):
        SplitBatches(LABELS, 600, 8, 0.1, 1)


def ran(folder: Path, split: str, count: int = 4, batch: int = 32, steps: int = 30) -> Path:
    text = SCENARIO.replace("SPLIT", split).replace("count: 4", f"count: {count}")
    text = text.replace("steps: 30", f"steps: {steps}")
    (entry,) = carried_out(folder, text.replace("batch: 32", f"batch: {batch}")).runs
    return Path(entry["dir"])


def test_a_run_says_what_everybody_has(tmp_path: Path) -> None:
    directory = ran(tmp_path, "{name: dirichlet, alpha: 0.1}")
    events, summary = read_events(directory), read_json(directory / "summary.json")
    assert summary["verdict"] == "valid"
    assert [one["node"] for one in events["labels"]] == [f"worker-{n}" for n in range(4)]
    assert summary["labels"] == {one["node"]: one["labels"] for one in events["labels"]}
    assert all(one["samples"] == sum(one["labels"].values()) for one in events["labels"])
    accuracy = {step["accuracy"] for step in events["step"] if step["step"] > 20}
    assert len(accuracy) > 3  # few labels are soon known, and forgotten: they are not alike


def test_workers_that_share_a_model_have_samples_of_their_own(tmp_path: Path) -> None:
    directory = ran(tmp_path, "{name: dirichlet, alpha: 0.1}", count=40, batch=4, steps=3)
    assert len(read_events(directory)["labels"]) == 40
    assert len({str(one) for one in read_json(directory / "summary.json")["labels"].values()}) > 35


def test_where_all_draw_from_all_nothing_is_said(tmp_path: Path) -> None:
    assert read_json(ran(tmp_path, "{name: iid}") / "summary.json")["labels"] == {}


@pytest.mark.parametrize("split", ["{name: dirichlet}", "{name: iid, alpha: 1}", "{alpha: 0}"])
def test_what_is_refused(tmp_path: Path, split: str) -> None:
    with pytest.raises(InputError, match=r"train\.split"):
        ran(tmp_path, split)


def test_blocks_that_several_compute_have_no_owner(tmp_path: Path) -> None:
    text = SCENARIO.replace("SPLIT", "{name: dirichlet, alpha: 1}").replace("[none]", "[cssgd-r2]")
    with pytest.raises(InputError, match="several workers compute one sample"):
        carried_out(tmp_path, text)


def test_only_samples_of_the_first_classes() -> None:
    """In training and in test, and no others are lost."""
    whole, some = (open_task(Train(task="digits", classes=classes)) for classes in (None, 3))
    for few, all_ in ((some.train_set(), whole.train_set()), (some.test_set(), whole.test_set())):
        assert few[1].unique().tolist() == [0, 1, 2]
        assert len(few[1]) == len(few[0]) == int((all_[1] < 3).sum())
    with pytest.raises(InputError, match=r"train\.classes.*has 10 classes, not 11"):
        open_task(Train(task="digits", classes=11))
