"""Requests to the links agent in a wrong order, or that are none: each is answered, and the links stay usable."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict
from typing import Any

import pytest
from netns_rig import MBIT, Rig, rate_of

from testbed.errors import ExperimentError
from testbed.links.agent.protocol import LinkSettings, change_to_json
from testbed.process import environment, module_command
from testbed.scenario.link_state import LinkChange, LinkDirection

UP = LinkDirection("worker-0", "up")


def ask(rig: Rig, operation: str, **fields: Any) -> Any:
    return rig.agent._call(operation, **fields)


def start(rig: Rig, *changes: LinkChange) -> None:
    listed = [change_to_json(change) for change in changes]
    ask(rig, "start", t0_ns=time.monotonic_ns(), changes=listed, known_to_s=None)


def prepare(rig: Rig, *ends: LinkDirection, cables: tuple[str, ...] = ("worker-0",)) -> Any:
    known = {name: asdict(rig.places[name].cable) for name in cables}
    shapes = [(end, rate_of(10 * MBIT).to_json()) for end in ends]
    settings = asdict(LinkSettings(segments=1, congestion="cubic"))
    return ask(rig, "prepare", cables=known, shapes=shapes, settings=settings, impaired=[])


def works(rig: Rig) -> None:
    """The agent shapes, replays a change and reports it."""
    prepare(rig, UP)
    start(rig, LinkChange(0.0, UP, rate_of(5 * MBIT)))
    place = rig.places["worker-0"]
    give_up = time.monotonic() + 20
    while "rate 5Mbit" not in rig.tc(place.nic.netns, "class", "show", "dev", place.nic.name):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    (link,) = ask(rig, "stop")
    assert (link["link"], link["failure"]) == ("worker-0", None)


def test_requests_out_of_order_are_refused_and_leave_the_links_usable(rig: Rig) -> None:
    with pytest.raises(ExperimentError, match="links must be prepared"):
        start(rig)
    with pytest.raises(ExperimentError, match="there is no replay to stop"):
        ask(rig, "stop")
    with pytest.raises(ExperimentError, match="no connections are being followed"):
        ask(rig, "watched")
    works(rig)
    prepare(rig, UP)
    start(rig)
    with pytest.raises(ExperimentError, match="not be in use, before a start"):
        start(rig)
    with pytest.raises(ExperimentError, match="stop the replay before preparing another"):
        prepare(rig, UP)
    assert len(ask(rig, "stop")) == 1
    with pytest.raises(ExperimentError, match="there is no replay to stop"):
        ask(rig, "stop")
    works(rig)


def test_links_that_nobody_knows_are_named(rig: Rig) -> None:
    with pytest.raises(ExperimentError, match="links without a cable: nobody"):
        prepare(rig, UP, LinkDirection("nobody", "down"))
    prepare(rig, UP)
    with pytest.raises(ExperimentError, match="links that are not shaped: server up"):
        start(rig, LinkChange(0.1, LinkDirection("server", "up"), rate_of(MBIT)))
    # the start that failed has left nothing behind that would be in the way of another
    works(rig)


def test_a_request_without_its_fields_is_refused(rig: Rig) -> None:
    for operation in ("prepare", "build", "locate", "racks"):
        with pytest.raises(ExperimentError, match="KeyError"):
            ask(rig, operation)
    prepare(rig, UP)
    with pytest.raises(ExperimentError, match="KeyError"):
        ask(rig, "start", changes=[], known_to_s=None)
    with pytest.raises(ExperimentError, match="dance"):
        ask(rig, "dance")
    works(rig)


def test_lines_that_are_no_requests_are_answered_and_the_next_one_is_carried_out() -> None:
    agent = subprocess.Popen(
        module_command("testbed.links.agent.server"), env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines = ["", "garbage", '{"id": 1', "[]", "7", "null", "[" * 100_000, '{"op": "stop"}']
    known = json.dumps({"id": 9, "op": "unbuild"})
    out, err = agent.communicate("\n".join([*lines, known]) + "\n", timeout=60)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["id"] for answer in answers] == [None] * len(lines) + [9]
    assert all("no request" in str(answer["error"]) for answer in answers[:-2])
    assert "KeyError: 'id'" in str(answers[-2]["error"])
    assert answers[-1]["ok"] == []
    assert (agent.returncode, err) == (0, "")
