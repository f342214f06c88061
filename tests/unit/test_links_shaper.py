"""Links from trial to trial: what one trial put in the kernel is none of the next one's, and all of it is taken off."""

from __future__ import annotations

import errno
import sys
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.errors import ExperimentError, MachineError
from testbed.links import shaper as module
from testbed.links.agent import server as agent_module
from testbed.links.agent.client import AgentClient
from testbed.links.agent.protocol import LinkSettings
from testbed.links.netem_stage import NetemStage
from testbed.links.network import devices
from testbed.links.network.devices import _ECN, SubnetRoute, TcpSettings, _route
from testbed.links.replay.link_player import LinkPlayer, charge_of
from testbed.links.shaper import ShapedQueue, Shaper
from testbed.links.tc import htb, netlink
from testbed.links.tc.htb import ClassCounters, QdiscDevice
from testbed.links.tc.netlink import KernelRefused
from testbed.links.tc.parameters import pace
from testbed.scenario.link_state import Impairments, LinkChange, LinkDirection, LinkState
from testbed.topology import Cable, Interface

MBIT = 1_000_000
UP, DOWN = LinkDirection("worker-0", "up"), LinkDirection("worker-0", "down")
CABLE = Cable(Interface("nw-w", 5, "eth0"), Interface("nw-s", 6, "port1"))
PLAIN = LinkState(10 * MBIT, 50_000)
SLOW = LinkState(10 * MBIT, 50_000, impairments=Impairments(delay_ns=5_000_000))


class Kernel:
    """What stands on devices: each entry is ``queue`` or ``line`` of an end; ``log`` has what was done, in order."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, LinkDirection], LinkState] = {}
        self.log: list[str] = []
        self.stuck: set[tuple[str, LinkDirection]] = set()

    def root(self, kind: str) -> type[Any]:
        kernel = self

        class Root:
            def __init__(self, end: LinkDirection, where: QdiscDevice) -> None:
                self.end, self.where = end, where

            def install(self, shape: LinkState) -> None:
                kernel.held[kind, self.end] = shape
                kernel.log.append(f"install {kind} {self.end} at {self.where.index}")

            def verify(self, *_: object) -> dict[str, Any]:
                return {"held": kernel.held[kind, self.end]}

            def remove(self) -> None:
                kernel.log.append(f"remove {kind} {self.end}")
                if (kind, self.end) in kernel.stuck:
                    raise OSError(16, "busy")
                del kernel.held[kind, self.end]

        return Root


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Stands for namespaces and a kernel with netem, which hosts need not have."""
    kernel = Kernel()
    monkeypatch.setattr(module, "ShapedQueue", kernel.root("queue"))
    monkeypatch.setattr(module, "NetemStage", kernel.root("line"))
    monkeypatch.setattr(module, "_require", lambda *_: None)
    monkeypatch.setattr(module, "_talking", lambda _: [])
    monkeypatch.setattr(module, "setting", lambda *_: "1")
    monkeypatch.setattr(
        Shaper, "_where", lambda _, end, hop: QdiscDevice(None, hop.interface.index, str(end))
    )
    return kernel


def prepared(shaper: Shaper, up: LinkState, down: LinkState = PLAIN, **settings: Any) -> Any:
    return shaper.prepare({"worker-0": CABLE}, {UP: up, DOWN: down}, LinkSettings(1, **settings))


def lines(kernel: Kernel) -> set[LinkDirection]:
    return {end for kind, end in kernel.held if kind == "line"}


def test_a_trial_without_delay_has_no_delay_line_of_the_one_before(kernel: Kernel) -> None:
    shaper = Shaper()
    for up, down in ((SLOW, SLOW), (PLAIN, SLOW), (PLAIN, PLAIN), (SLOW, PLAIN)):
        said = prepared(shaper, up, down)["links"]
        delayed = {end for end, shape in ((UP, up), (DOWN, down)) if shape.impairments}
        assert lines(kernel) == shaper.lines.keys() == delayed
        assert [link["line"] is not None for link in said] == [UP in delayed, DOWN in delayed]
    assert len([each for each in kernel.log if each.startswith("install line")]) == 4
    assert len([each for each in kernel.log if each.startswith("remove line")]) == 2


def test_ends_that_are_shaped_elsewhere_leave_nothing_where_they_were(kernel: Kernel) -> None:
    """Queue and line change places with ``at``: both are gone before either is put somewhere else."""
    shaper = Shaper()
    prepared(shaper, SLOW)
    before = len(kernel.log)
    prepared(shaper, SLOW, at={"worker-0": "network"})
    moved = [each for each in kernel.log[before:] if "up" in each]
    assert moved == [
        "remove queue worker-0 up",
        "remove line worker-0 up",
        "install queue worker-0 up at 6",
        "install line worker-0 up at 5",
    ]


def test_nothing_is_left_and_what_is_stuck_is_named(kernel: Kernel) -> None:
    shaper = Shaper()
    prepared(shaper, SLOW, SLOW)
    kernel.stuck = {("line", UP)}
    (said,) = shaper.remove()
    assert "busy" in said
    assert kernel.held.keys() == {("line", UP)}, "one that is stuck keeps no other"
    assert not shaper.ends and not shaper.lines
    assert shaper.remove() == []


def test_a_trial_begins_with_nothing_dropped_nor_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class and its counters stay from trial to trial."""
    now = ClassCounters(9000, 6, 0, 4, 3, 0)

    class Queue(ShapedQueue):
        def _direct(self) -> int:
            return 11

        def send(self, *messages: bytes) -> None:
            """The kernel takes all."""

        def read(self) -> ClassCounters:
            return now

    queue = Queue(UP, QdiscDevice(None, 5, "eth0"))
    queue.installed = True
    monkeypatch.setattr(queue, "_read", b"")
    for _ in range(2):
        queue.install(PLAIN)
        assert (queue.drops(now), queue.direct_packets()) == (0, 0)
        assert now.bytes - queue.zero.bytes == 0
        queue.flush()
        assert queue.drops(now._replace(drops=5)) == 2 + 4, "what was flushed is lost, too"
    queue._channel.close()


def test_a_line_is_told_of_every_change_of_it_and_of_no_other() -> None:
    """Rates change in between, of which it need not know."""
    line = NetemStage(UP, QdiscDevice(None, 5, "eth0"))
    line.setting = line._first(SLOW)
    longer = LinkState(10 * MBIT, 50_000, impairments=Impairments(delay_ns=9_000_000))
    queue: Any = SimpleNamespace(
        end=UP, where=SimpleNamespace(index=5), zero=ClassCounters(0, 0, 0, 0, 0, 0),
        class_message=lambda _: b"class",
    )  # fmt: skip
    player = LinkPlayer(queue, SLOW, line)
    shapes = [LinkState(5 * MBIT, 50_000, impairments=SLOW.impairments), longer, longer, SLOW]
    told = [
        player.due(LinkChange(float(at), UP, shape), at * 10**9).line
        for at, shape in enumerate(shapes, 1)
    ]
    assert [None if each is None else each.impairments.delay_ns for each in told] == [
        None,
        9_000_000,
        None,
        5_000_000,
    ]
    line._channel.close()


def test_the_agent_names_all_that_it_could_not_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def undone(what: str) -> list[str]:
        order.append(what)
        return [f"{what} is still there"]

    agent: Any = agent_module.AgentServer(lambda _: None)
    agent._replay = SimpleNamespace(finish=lambda: order.append("replay"))
    agent._watch = SimpleNamespace(close=lambda: order.append("watch"))
    agent._shaper = SimpleNamespace(remove=lambda: undone("queue"))
    agent._racks, agent._topology = ["rack a", "rack b"], "network"
    monkeypatch.setattr(agent_module, "remove_racks", undone)
    monkeypatch.setattr(agent_module, "remove", undone)
    said = agent.undo()
    assert order == ["replay", "watch", "queue", "rack b", "rack a", "network"]
    assert said == [f"{what} is still there" for what in order[2:]]
    assert (agent._replay, agent._watch, agent._topology, agent._racks) == (None, None, None, [])


AGENT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "stop":
        print(json.dumps({"records": [{"kind": "sample"}]}), flush=True)
    print(json.dumps({"id": asked["id"], "ok": []}), flush=True)
"""


def test_records_that_could_not_be_kept_fail_the_stop_once() -> None:
    """On a full disk, for one: the thread that reads goes on, and whoever ends the replay is told."""
    taken: list[Any] = []

    def take(records: list[dict[str, Any]]) -> None:
        taken.append(records)
        if len(taken) == 1:
            raise OSError(28, "no space is left")

    agent = AgentClient([sys.executable, "-c", AGENT])
    agent.on_sample = take
    try:
        with pytest.raises(OSError, match="no space is left"):
            agent.stop()
        assert agent.stop().links == ()
        assert len(taken) == 2
    finally:
        agent.close()


class Message(dict[str, Any]):
    """A route as pyroute2 decodes it."""

    def get_attr(self, name: str, default: object = None) -> object:
        return {"RTA_OIF": 5, "RTA_METRICS": {"attrs": self["metrics"]}}.get(name, default)


@pytest.mark.parametrize(
    ("features", "ecn"), [(None, False), (0, False), (_ECN, True), (4, False), (4 | _ECN, True)]
)
def test_of_a_routes_features_only_one_is_ecn(features: int | None, ecn: bool) -> None:
    metrics = [("RTAX_CC_ALGO", "cubic"), ("RTAX_RTO_MIN", 200)]
    metrics += [] if features is None else [("RTAX_FEATURES", features)]
    fields = ("family", "dst_len", "src_len", "tos", "table", "proto", "scope", "type", "flags")
    route = _route(Message(dict.fromkeys(fields, 0), metrics=metrics))
    assert route.settings == ("cubic", 200, ecn)
    assert route.identity == (("RTA_OIF", 5),)


def test_a_route_that_keeps_the_settings_of_a_run_is_told_of_and_the_others_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restored: list[str] = []

    def set_route(_channel: object, route: Any, _settings: object) -> None:
        if route.identity == "first":
            raise KernelRefused(errno.EPERM, "not permitted")
        if route.identity == "gone":
            raise KernelRefused(errno.ESRCH, "no such route")
        restored.append(route.identity)

    monkeypatch.setattr(module, "set_route", set_route)
    shaper = Shaper()
    routes: Any = [SubnetRoute({}, name, None) for name in ("first", "gone", "last")]  # type: ignore[arg-type]
    shaper._routes_before = {(None, 5): routes}
    (failure,) = shaper.remove()
    assert "not permitted" in failure
    assert restored == ["last"]


def test_a_redirect_that_stays_does_not_keep_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    queue = ShapedQueue(UP, QdiscDevice(None, 5, "data", redirect=6))
    queue.installed = queue._led_in = True
    monkeypatch.setattr(queue, "send", sent.append)

    def refused(*_: object) -> None:
        raise KernelRefused(errno.EPERM, "not permitted")

    monkeypatch.setattr(htb, "undo_redirect", refused)
    with pytest.raises(KernelRefused, match="not permitted"):
        queue.remove()
    assert sent == [htb.delete_root(5)]
    assert queue._channel._socket.fileno() == -1


@pytest.mark.parametrize(
    ("congestion", "code", "kind"),
    [
        ("nonesuch", errno.EINVAL, MachineError),
        ("cubic", errno.EPERM, KernelRefused),
        (None, errno.EINVAL, KernelRefused),
    ],
)
def test_only_a_congestion_control_that_is_refused_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, congestion: str | None, code: int, kind: type[Exception]
) -> None:
    def refused(*_: object) -> None:
        raise KernelRefused(code, "refused")

    monkeypatch.setattr(devices, "subnet_routes", lambda *_: [None])
    monkeypatch.setattr(devices, "set_route", refused)
    with pytest.raises(kind):
        devices.shape_route(None, 1, TcpSettings(congestion, 200))


def test_no_form_of_a_class_is_encoded_for_the_first_time_in_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(netlink, "_templates", OrderedDict())
    queue = ShapedQueue(UP, QdiscDevice(None, 5, "data"))
    known = list(netlink._templates)
    for setting in (pace(MBIT), pace(40_000 * MBIT), pace(MBIT, 40), charge_of(10**9)):
        queue.class_message(setting)
        htb.set_class(6, setting, htb.ADD)
    queue.limit_message(5000)
    htb.set_leaf(6, 7, 0, htb.PUT)
    htb.read_leaf(6, 7)
    assert list(netlink._templates) == known
    queue.remove()


def test_a_start_needs_links_and_comes_once() -> None:
    agent = agent_module.AgentServer(lambda _: None)
    with pytest.raises(ExperimentError, match="must be prepared"):
        agent.do_start({"t0_ns": 0, "changes": [], "known_to_s": None})
    with pytest.raises(ExperimentError, match="no replay"):
        agent.do_stop({})
