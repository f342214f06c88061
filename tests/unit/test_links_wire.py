"""What crosses the pipe to the agent and back."""

from __future__ import annotations

import json
import platform
import time
from itertools import count, islice
from threading import Event
from typing import Any

import pytest

from testbed.errors import ExperimentError, InputError, LinkError, MachineError
from testbed.links.agent.client import AHEAD_S, ScheduleFeeder
from testbed.links.agent.protocol import (
    change_from_json,
    change_to_json,
    dump,
    error_from_json,
    error_to_json,
    read,
)
from testbed.links.agent.server import AgentServer
from testbed.links.capabilities import Capabilities, kernel_package
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkChange,
    LinkDirection,
    LinkState,
    Slot,
)
from testbed.topology import Cable, Interface


@pytest.mark.parametrize(
    "error",
    [
        LinkError("worker-0", "up", requested="100 bit/s", actual="nothing"),
        MachineError("no netem", fix="install it"),
        MachineError("no netem"),
        InputError("bad", where="a.yaml:3", hint="good"),
        ExperimentError("it failed"),
    ],
)
def test_errors_keep_their_kind_and_words(error: Exception) -> None:
    back = error_from_json(json.loads(dump(error_to_json(error))))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_any_other_error_keeps_its_words() -> None:
    back = error_from_json(error_to_json(OSError(19, "No such device")))
    assert isinstance(back, ExperimentError)
    assert "No such device" in str(back)


def test_cables_ends_and_changes() -> None:
    cable = Cable(Interface("/run/netns/a", 2, "data"), Interface(None, 7, "port1"))
    assert read(Cable, json.loads(dump({"cable": cable}))["cable"]) == cable
    end = LinkDirection("worker-0", "down")
    assert read(list[LinkDirection], json.loads(dump([end]))) == [end]
    change = LinkChange(1.25, end, LinkState(0, 9000, drop=True))
    assert change_from_json(json.loads(json.dumps(change_to_json(change)))) == change


def test_the_agent_answers_errors_with_their_request() -> None:
    agent = AgentServer(lambda _: None)
    assert agent.answer({"id": 1, "op": "keep"})["ok"] is None
    refused = agent.answer({"id": 2, "op": "stop"})
    assert refused["id"] == 2
    assert refused["error"]["kind"] == "ExperimentError"
    assert "error" in agent.answer({"id": 3, "op": "nosuch"})
    assert agent.undo() == []


def endless() -> Any:
    end = LinkDirection("a", "up")
    return (LinkChange(n / 10, end, LinkState(1000 + n, 1)) for n in count())


def test_the_feeder_stays_ahead_of_an_endless_history() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    feeder = ScheduleFeeder(1 << 61, endless(), lambda operation, **f: calls.append((operation, f)))
    feeder.begin()
    feeder.end()
    operation, fields = calls[0]
    assert operation == "start"
    assert fields["known_to_s"] == AHEAD_S
    assert len(fields["changes"]) == AHEAD_S * 10
    assert fields["t0_ns"] == 1 << 61


def test_the_feeder_cuts_long_stretches_and_says_when_all_is_told() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    end = LinkDirection("a", "up")
    changes = (LinkChange(n / 1000, end, LinkState(n, 1)) for n in range(5000))
    feeder = ScheduleFeeder(1 << 61, changes, lambda operation, **f: calls.append((operation, f)))
    feeder.begin()
    feeder.end()
    assert [operation for operation, _ in calls] == ["start", "feed", "feed"]
    assert sum(len(fields["changes"]) for _, fields in calls) == 5000
    assert calls[-1][1]["known_to_s"] is None
    assert calls[0][1]["known_to_s"] == pytest.approx(1.999)
    times = [change[0] for _, fields in calls for change in fields["changes"]]
    assert times == sorted(times)
    assert list(islice(times, 2)) == [0, 0.001]


def test_the_feeder_knows_that_nothing_comes_before_a_change_that_is_far_away() -> None:
    """An outage until then is charged for as long as the kernel can, not for what is told ahead."""
    calls: list[tuple[str, dict[str, Any]]] = []
    end = LinkDirection("a", "up")
    history = [LinkChange(at, end, LinkState(at, 1)) for at in (0, 3600)]
    feeder = ScheduleFeeder(1 << 61, iter(history), lambda operation, **f: calls.append((operation, f)))  # fmt: skip
    feeder.begin()
    feeder.end()
    (fields,) = [fields for _, fields in calls]
    assert [change[0] for change in fields["changes"]] == [0]
    assert fields["known_to_s"] == 3600


def test_the_feeder_tells_every_change_once_over_all_stretches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock is at 100 s already: the first stretch ends at 45 s, and the next one reaches the end."""
    monkeypatch.setattr("testbed.links.agent.client.EVERY_S", 0.0)
    told: list[float] = []
    all_told = Event()

    def call(_operation: str, **fields: Any) -> None:
        told.extend(change[0] for change in fields["changes"])
        if fields["known_to_s"] is None:
            all_told.set()

    history = list(islice(endless(), 1000))
    feeder = ScheduleFeeder(time.monotonic_ns() - 100 * 10**9, iter(history), call)
    feeder.begin()
    assert all_told.wait(10.0)
    feeder.end()
    assert told == [change.time_s for change in history]


def found(*kinds: str, privileged: bool = True) -> Capabilities:
    return Capabilities(frozenset(kinds), True, ("cubic",), "6.1", privileged)


def test_what_is_missing_is_named_with_a_fix() -> None:
    assert found("veth", "bridge", "htb", "bfifo").missing() is None
    error = found("htb").missing(["htb", "netem (worker-0 up: delay)"])
    assert isinstance(error, MachineError)
    assert "netem (worker-0 up: delay)" in error.message
    assert "CONFIG_NET_SCH_NETEM" in (error.fix or "")
    assert "--guest" in (error.fix or "")
    old = found("netem").missing(["netem (a up: loss)", "seed (a up)"])
    assert old is not None
    assert "seed (a up)" in old.message
    assert "6.6" in (old.fix or "")
    assert found("netem", "netem-seed").missing(["seed (a up)"]) is None
    uncharged = found("htb").missing(["charge (for outages such as that of a up)"])
    assert uncharged is not None
    assert "mpu" in (uncharged.fix or "")
    assert found("htb", "htb-charge").missing(["charge (for outages)"]) is None
    rootless = found(privileged=False).missing()
    assert rootless is not None
    assert "root" in (rootless.fix or "")
    assert "htb" in found("htb")
    assert "netem" not in found("htb")


@pytest.mark.parametrize(
    ("known", "release", "package"),
    [
        (("ubuntu", "debian"), "6.8.0-31-generic", "linux-modules-extra-6.8.0-31-generic"),
        (("ubuntu", "debian"), "6.12.9-cloud", "linux-image-generic"),
        (("rocky", "rhel centos fedora"), "5.14", "kernel-modules-extra-5.14"),
    ],
)
def test_a_kernel_of_another_distribution_has_no_package_here(
    known: tuple[str, ...], release: str, package: str
) -> None:
    named = dict(zip(("ID", "ID_LIKE"), known, strict=False))
    assert f" {package}'" in kernel_package(named, release)


@pytest.mark.parametrize(
    ("machine", "debians"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")]
)
def test_debians_kernel_is_that_of_the_machine(
    machine: str, debians: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    said = kernel_package({"ID": "debian"}, "6.12.9-cloud")
    assert f" linux-image-{debians}'" in said


@pytest.mark.parametrize(
    "impairments",
    [
        Impairments(),
        Impairments(delay_ns=20_000_000, jitter_ns=1_000, loss=0.01, seed=3),
        Impairments(loss=GilbertElliott(0.01, 0.3, loss_good=0.001), ordered=False),
        Impairments(loss=FourState(0.01), slot=Slot(1, 2, packets=3)),
    ],
)
def test_impaired_changes(impairments: Impairments) -> None:
    shape = LinkState(10**7, 9000, overhead_bytes=24, impairments=impairments)
    change = LinkChange(1.25, LinkDirection("worker-0", "down"), shape)
    assert change_from_json(json.loads(dump(change_to_json(change)))) == change
