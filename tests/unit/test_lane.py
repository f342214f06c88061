"""Work beside its owner's, on the virtual clock and on threads; and the clock that layers are held to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from virtual_links import lone_node

from testbed.exchange.base import TransferTiming, Update
from testbed.fabric.host_node import HostClock, HostNode
from testbed.fabric.sim.clock import VirtualClock
from testbed.node import Node
from testbed.training.bucket_pipeline import PriorityExecutor
from testbed.training.overlap import DdpStep, LayerClock
from testbed.transport.threaded_endpoint import ThreadedEndpoint


def on_virtual(body: Callable[[Node], Any]) -> Any:
    clock = VirtualClock()
    node = lone_node(clock)
    return clock.run({"body": lambda: body(node)})["body"]


def on_host(body: Callable[[Node], Any]) -> Any:
    clock = HostClock()
    endpoint = ThreadedEndpoint(1, 1, names={}, clock=clock.seconds, silence_s=1.0)
    node = HostNode("worker-0", 1, endpoint, clock, list[object]().append)
    try:
        return body(node)
    finally:
        node.close()
        endpoint.close()


worlds = pytest.mark.parametrize("world", [on_virtual, on_host])


@worlds
def test_what_waits_goes_by_urgency_and_then_in_order(world: Callable[..., Any]) -> None:
    def body(node: Node) -> list[str]:
        gate, done = node.queue(), node.queue()  # type: ignore[var-annotated]
        lane = PriorityExecutor(node, done.put)

        def first() -> None:
            done.put("first")
            gate.get()

        lane.put(first)
        assert done.get() == "first"  # under way: the others wait, whatever their urgency
        for name, urgency in (("c", 1), ("a", -1), ("d", 1), ("b", 0)):
            lane.put(lambda name=name: done.put(name), urgency)  # type: ignore[misc]
        gate.put(True)
        return [done.get(60.0) for _ in range(4)]

    assert world(body) == ["a", "b", "c", "d"]


@worlds
def test_nothing_is_done_after_an_error(world: Callable[..., Any]) -> None:
    def body(node: Node) -> str:
        told, done = node.queue(), node.queue()  # type: ignore[var-annotated]
        lane = PriorityExecutor(node, told.put)

        def fail() -> None:
            raise ValueError("broken")

        lane.put(fail)
        lane.put(lambda: done.put(True))
        error = told.get(60.0)
        with pytest.raises(TimeoutError):
            done.get(0.2)
        lane.end()
        return str(error)

    assert world(body) == "broken"


@worlds
def test_an_end_gives_up_what_waits_and_never_blocks(world: Callable[..., Any]) -> None:
    def body(node: Node) -> str:
        gate, done = node.queue(), node.queue()  # type: ignore[var-annotated]
        lane = PriorityExecutor(node, done.put)

        def blocked() -> None:
            done.put("begun")
            gate.get()
            done.put("ended")

        lane.put(blocked)
        assert done.get(60.0) == "begun"
        lane.put(lambda: done.put("never"))
        lane.end()
        gate.put(True)
        assert done.get(60.0) == "ended"
        with pytest.raises(TimeoutError):
            done.get(0.2)
        return "over"

    assert world(body) == "over"


def test_a_lanes_thread_ends() -> None:
    def body(node: Node) -> None:
        before = set(threading.enumerate())
        lane = PriorityExecutor(node, list[object]().append)
        (thread,) = set(threading.enumerate()) - before
        lane.end()
        thread.join(60.0)
        assert not thread.is_alive()

    on_host(body)


def test_layers_compute_one_after_the_other_from_when_parameters_are_there() -> None:
    def body(node: Node) -> None:
        clock = LayerClock(node, paced=True)
        clock.begin(1.0)
        clock.wait_for_parameters(0.5)  # before it was needed: nothing waits
        clock.compute_for(0.25)
        assert (node.now(), clock.stall_s) == (1.25, 0.0)
        clock.wait_for_parameters(1.75)
        clock.compute_for(0.25)
        assert (node.now(), clock.stall_s) == (2.0, 0.5)
        clock.finish_layer(1.9)
        assert (clock.at_s, clock.overran) == (2.0, False)

    on_virtual(body)


def test_deadlines_are_absolute() -> None:
    def body(node: Node) -> None:
        clock = LayerClock(node, paced=True)
        clock.begin(0.0)
        clock.compute_for(0.1)
        node.sleep_until(
            0.15
        )  # whoever waits for the first layer wakes late; its gradients were there
        clock.finish_layer(0.1)
        clock.compute_for(0.1)
        assert node.now() == pytest.approx(0.2)
        assert not clock.overran

    on_virtual(body)


@pytest.mark.parametrize(("late_s", "overran"), [(0.0009, False), (0.0011, True)])
def test_computation_that_is_late_itself_has_overrun(late_s: float, overran: bool) -> None:
    def body(node: Node) -> None:
        clock = LayerClock(node, paced=True)
        clock.begin(0.0)
        clock.compute_for(0.1)
        clock.finish_layer(0.1 + late_s)
        assert clock.overran is overran
        # what is late holds up what comes after it
        assert clock.at_s == pytest.approx(0.1 + late_s if overran else 0.1)
        clock.begin(1.0)
        assert (clock.overran, clock.stall_s) == (False, 0.0)

    on_virtual(body)


def test_without_a_profile_layers_take_what_they_take() -> None:
    def body(node: Node) -> None:
        clock = LayerClock(node, paced=False)
        clock.begin(0.0)
        clock.compute_for(5.0)
        assert node.now() == 0.0
        clock.finish_layer(0.3)
        assert (clock.at_s, clock.overran) == (0.3, False)
        clock.wait_for_parameters(0.4)
        assert clock.stall_s == pytest.approx(0.1)

    on_virtual(body)


def test_a_step_begins_without_the_waits_and_the_overrun_of_the_one_before() -> None:
    def body(node: Node) -> tuple[float, bool, float]:
        clock = LayerClock(node, paced=True)
        clock.begin(0.0)
        clock.wait_for_parameters(0.5)
        clock.finish_layer(2.0)
        assert (clock.stall_s, clock.overran) == (0.5, True)
        clock.begin(3.0)
        clock.wait_for_parameters(3.25)
        return clock.stall_s, clock.overran, clock.at_s

    assert on_virtual(body) == (0.25, False, 3.25)


@pytest.mark.parametrize(("computed_s", "overlap_s"), [(1.0, 0.0), (3.0, 2.0), (9.0, 4.0)])
def test_what_was_on_its_way_during_the_computation_overlaps_with_it(
    computed_s: float, overlap_s: float
) -> None:
    """The buckets travel from 1 s to 5 s."""
    travels = [
        TransferTiming(start_s, last_s, last_s, last_s, last_s, bytes_up=5, bytes_down=7)
        for start_s, last_s in ((1.0, 2.5), (2.0, 5.0))
    ]
    update = Update("gradient", 1, np.ones(2, np.float32).tobytes())

    def ticket(travel: TransferTiming) -> object:
        return SimpleNamespace(travel=travel, wait=lambda: update)

    step: Any = object.__new__(DdpStep)
    step._node, step._computed_s = SimpleNamespace(cpu=lambda: 0.0), computed_s
    step._context = SimpleNamespace(
        codec=SimpleNamespace(encode=lambda: None, summary=lambda: None)
    )
    step._buckets = [SimpleNamespace(elements=slice(at, at + 2)) for at in (0, 2)]
    step._tickets, step._mean = [ticket(travel) for travel in travels], np.empty(4, np.float32)
    outcome, _ = step._exchange(1)
    assert outcome.overlap_s == overlap_s
    left = outcome.timing
    assert (left.start_s, left.last_s) == (max(1.0, computed_s), max(5.0, computed_s))
    assert (left.bytes_up, left.bytes_down) == (10, 14)
