"""What buckets, overlap and agreement ask of an exchange and a controller; and servers, of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_here import call

from testbed.compatibility import resolve
from testbed.errors import InputError
from testbed.runner.experiment import prepare
from testbed.scenario.model import Derived

SCENARIO = """
name: spread
nodes: {server: {role: server, count: 3}, worker: {role: worker, count: 2}}
links: {default: {up: {rate: 9 Mbit/s, queue: 50 ms}, down: {rate: 9 Mbit/s, queue: 50 ms}}}
train: {model: mlp, task: digits, stop: {steps: 5}}
algorithms: [none, {name: coarse, from: none, bucket_bytes: 64 KiB}]
"""


def refused(**said: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve(Derived.model_validate({"name": "mine", **said}))
    return caught.value


def test_an_order_is_one_of_buckets() -> None:
    error = refused(**{"from": "none"}, order="backward")
    assert "algorithm 'mine': order 'backward' without bucket_bytes" in error.message
    assert "Leave `order` out" in str(error.hint)
    for said in ({"order": "forward"}, {"order": "backward", "bucket_bytes": "1 KiB"}):
        resolve(Derived.model_validate({"name": "mine", "from": "none", **said}))


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ({"from": "ring", "overlap": True}, "overlap is True", "Write `overlap: false`; "),
        ({"from": "ring", "bucket_bytes": "1 KiB"}, "bucket_bytes is 1 KiB", "Write `bucket_bytes: 0 B`; "),
        ({"from": "algc", "exchange": "peers"}, "bucket_bytes is 65536 and overlap is True", "Write `bucket_bytes: 0 B`, `overlap: false`; "),
    ],
)  # fmt: skip
def test_what_an_exchange_cannot_carry_is_to_be_switched_off(
    said: dict[str, Any], message: str, hint: str
) -> None:
    error = refused(**said)
    assert f"sends a gradient in one message, and {message}" in error.message
    assert str(error.hint) == f"{hint}buckets travel by ps"


def test_switched_off_it_can_be_carried() -> None:
    said = {"from": "algc", "exchange": "peers", "bucket_bytes": "0 B", "overlap": False}
    assert resolve(Derived.model_validate({"name": "mine", **said})).exchange == "peers"


@pytest.mark.parametrize(
    ("base", "seen"),
    [
        ("algc", "buckets and curves"),
        ("algc-whole", "buckets"),
        ("lags", "buckets"),
        ("lgreco", "buckets and curves"),
        ("accordion", "layers"),
        ("adalag", "memory"),
    ],
)
def test_who_sees_what_others_do_not_cannot_agree(base: str, seen: str) -> None:
    error = refused(**{"from": base}, agree=True)
    assert f"sees {seen} of its own worker, and workers agree on delay" in error.message
    assert error.hint == "Write `agree: false`"


def test_too_few_buckets_for_the_servers_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    with pytest.raises(
        InputError, match=r"s\.yaml: algorithm 'coarse': the model makes 1 buckets of 65536 B"
    ) as caught:
        prepare(path)
    for verb in ("validate", "plan"):
        assert str(call(verb, str(path)).exception) == str(caught.value)
    assert prepare(path, ["none"]).algorithms
