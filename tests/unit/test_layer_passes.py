"""A module's passes layer by layer: each begins when it is permitted, and its gradients are told of as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from testbed.fabric.host_node import HostClock, HostNode
from testbed.training.compute import Computed
from testbed.training.layer_hooks import HookedPasses, WholePasses
from testbed.training.replica import DeviceMark, FlatModel
from testbed.transport.threaded_endpoint import ThreadedEndpoint

torch.set_num_threads(1)
CPU = torch.device("cpu")


class Model(nn.Module):
    """Three layers, one of which nothing depends on. ``seen``: layers whose forward pass has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.idle, self.last = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.seen: list[str] = []
        self.broken = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.seen.append("first")
        if self.broken:
            raise ValueError("broken")
        logits: Tensor = self.last(hidden)
        self.seen.append("last")
        return logits


class Bench:
    def __init__(self, node: HostNode) -> None:
        torch.manual_seed(1)
        self.model = Model()
        self.flat = FlatModel(self.model, CPU)
        self.layers = self.flat.layout.layers()
        self.passes = HookedPasses(node, self.compute, self.layers, self.model)
        self.node = node

    def compute(self, step: int) -> Computed:
        self.flat.gradients.zero_()
        x = torch.arange(8.0).reshape(2, 4) * step
        loss = self.flat.forward(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return Computed(float(loss.detach()), 0.0)


@pytest.fixture
def node() -> Iterator[HostNode]:
    clock = HostClock()
    endpoint = ThreadedEndpoint(1, 1, names={}, clock=clock.seconds, silence_s=1.0)
    made = HostNode("worker-0", 1, endpoint, clock, list[object]().append)
    yield made
    made.close()
    endpoint.close()


@pytest.fixture
def bench(node: HostNode) -> Iterator[Bench]:
    made = Bench(node)
    yield made
    made.passes.end()


def beside(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_layers_are_those_of_the_parameters(bench: Bench) -> None:
    assert [layer.name for layer in bench.layers] == ["first", "idle", "last"]


def test_a_layer_waits_for_its_permit_and_no_other(bench: Bench) -> None:
    passes, model = bench.passes, bench.model
    passes.begin(1)
    passes.permit(0)
    passes.permit(1)
    waits = beside(lambda: passes.computed(2))
    give_up = time.monotonic() + 60.0
    while model.seen != ["first"] and time.monotonic() < give_up:
        time.sleep(0.01)
    waits.join(0.3)
    assert waits.is_alive()
    assert model.seen == ["first"]
    # what comes in meanwhile is what the last layer computes with
    with torch.no_grad():
        model.last.weight.fill_(1.0)
    passes.permit(2)
    waits.join(60.0)
    assert not waits.is_alive()
    assert 0 < passes.waited_s < bench.node.now()
    found, gradients = passes.result().loss, bench.flat.gradients.clone()
    assert found == bench.compute(1).loss
    assert torch.equal(gradients, bench.flat.gradients)


def test_gradients_come_from_the_last_layer_to_the_first(bench: Bench) -> None:
    passes = bench.passes
    for step in (1, 2, 3):
        begun_s = bench.node.now()
        passes.begin(step)
        for layer in range(3):
            passes.permit(layer)
        there_s = [passes.computed(layer) for layer in (2, 0)]
        assert begun_s < there_s[0] <= there_s[1]
        assert passes.result() == bench.compute(step)
        forward, backward = passes.spans()
        assert list(forward) == ["first", "last"]
        assert list(backward) == ["last", "first"]
        spans = [*forward.values(), *backward.values()]
        assert all(from_s <= to_s for from_s, to_s in spans)
        assert [span[1] for span in backward.values()] == there_s


def test_an_unused_layer_is_there_when_all_has_ended(bench: Bench) -> None:
    passes = bench.passes
    passes.begin(1)
    for layer in range(3):
        passes.permit(layer)
    assert passes.computed(1) >= passes.computed(0)
    assert passes.result().loss > 0
    part = bench.layers[1]
    assert not bench.flat.gradients[part.begin : part.end].any()
    # its permit was taken with the others: the next step begins with none
    passes.begin(2)
    bench.model.seen.clear()
    waits = beside(lambda: passes.computed(2))
    waits.join(0.3)
    assert waits.is_alive()
    assert bench.model.seen == []
    for layer in range(3):
        passes.permit(layer)
    waits.join(60.0)
    assert not waits.is_alive()


@pytest.mark.parametrize("layer", [2, 1, 0])
def test_an_error_of_the_computation_is_that_of_whoever_waits(bench: Bench, layer: int) -> None:
    bench.model.broken = True
    bench.passes.begin(1)
    for number in range(3):
        bench.passes.permit(number)
    with pytest.raises(ValueError, match="broken"):
        bench.passes.computed(layer)


@pytest.mark.parametrize("permitted", [0, 1, 2])
def test_an_end_frees_a_computation_that_waits(node: HostNode, permitted: int) -> None:
    bench = Bench(node)
    bench.passes.begin(1)
    for layer in range(permitted):
        bench.passes.permit(layer)
    bench.passes.end()
    # the node's background is free again
    assert node.background(lambda: "free") == "free"


def test_outside_of_steps_nothing_is_held_up(bench: Bench) -> None:
    assert bench.compute(1).loss > 0
    assert bench.passes.spans() == ({}, {})


def test_a_device_that_still_works_waits_for_nothing(bench: Bench) -> None:
    """The host is ahead of it: from 1 to 3 s it waited for a permit, and the device worked until 2 s."""
    passes = bench.passes
    passes._waits = [
        (1.0, 3.0, DeviceMark(2.0)),
        (4.0, 5.0, DeviceMark(6.0)),
        (7.0, 7.5, DeviceMark(6.5)),
    ]
    assert passes.waited_s == 1.5
    passes._forward = {
        "first": (3.0, DeviceMark(2.0), DeviceMark(4.0)),
        "last": (5.0, DeviceMark(6.0), DeviceMark(8.0)),
    }
    passes._backward = {"last": (DeviceMark(8.0), DeviceMark(9.0))}
    assert passes.spans() == ({"first": [3.0, 4.0], "last": [6.0, 8.0]}, {"last": [8.0, 9.0]})


def test_what_cannot_be_parted_is_computed_when_all_is_permitted(node: HostNode) -> None:
    bench, steps = Bench(node), list[int]()

    def compute(step: int) -> Computed:
        steps.append(step)
        return Computed(1.0, 0.5)

    passes = WholePasses(node, compute, bench.layers)
    passes.begin(4)
    passes.permit(0)
    passes.permit(1)
    assert steps == []
    begun_s = node.now()
    passes.permit(2)
    assert steps == [4]
    assert begun_s <= passes.computed(2) == passes.computed(0) <= node.now()
    assert passes.result() == Computed(1.0, 0.5)
    passes.end()
    bench.passes.end()
