"""What a scenario and the flags beside it come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.session.experiment import prepare

SCENARIO = """\
name: small
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links: {default: {up: {rate: 10 Mbit/s, queue: 50 ms}, down: {rate: 10 Mbit/s, queue: 50 ms}}}
train: {stop: {steps: 5}, optimizer: {momentum: 0.9}}
algorithms: [none]
"""


def test_flags_are_held_against_the_training_too(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    assert [row.name for row in prepare(path, ["topk-0.1"]).algorithms] == ["topk-0.1"]
    with pytest.raises(InputError, match=r"--algo.*'dgc-0\.1'.*would count it twice"):
        prepare(path, ["dgc-0.1"])
    with pytest.raises(InputError, match="--algo: unknown algorithm 'foo'"):
        prepare(path, ["foo"])
    with pytest.raises(InputError, match="--algo: an algorithm is asked for twice"):
        prepare(path, ["none", "none"])
