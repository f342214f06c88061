"""Work beside a CUDA device's computation: copies, sums and steps that wait for no more than they must."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from overlap_rig import DENSE, TOPK, Stage, overlapped
from test_overlapped_threads import Hosts

from testbed.algorithm import Algorithm
from testbed.compress.aggregate import Aggregate
from testbed.compress.base import Recipe, RecipeChoice, Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.kernels.torch_ops import Staging
from testbed.compress.layout import Layout
from testbed.compress.payload import split
from testbed.fabric.host_node import HostClock, HostNode
from testbed.node import Endpoint
from testbed.records.events import PHASES
from testbed.training.replica import DeviceClock, DeviceStaging, configure_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]
SIZE = 100_003
SHORT, LONG = 50_000_000, 2_000_000_000
"""Cycles that the device sleeps: about 30 ms, and a second."""
ON_DEVICE = dict.fromkeys(("server", "worker-0", "worker-1"), "cuda")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Have all loops compiled, and the device's libraries loaded: on threads nobody waits so long."""
    for algorithm in (DENSE, TOPK, overlapped(TOPK)):
        virtual(algorithm)


@pytest.fixture(autouse=True)
def device() -> torch.device:
    return configure_torch("cuda", threads=1)


def virtual(algorithm: Algorithm) -> set[str]:
    """The parameters of all nodes, in virtual time."""
    stage = Stage(algorithm, devices=ON_DEVICE)
    return {summary["parameters"] for summary in stage.play().summaries.values()}


def message(kind: str, seed: int) -> Sparse:
    generator = torch.Generator().manual_seed(seed)
    if kind == "dense":
        return Sparse(SIZE, None, torch.randn(SIZE, generator=generator))
    count = 900 + seed
    indices = torch.randperm(SIZE, generator=generator)[:count].sort().values
    return Sparse(SIZE, indices, torch.randn(count, generator=generator) * 10.0**seed)


@pytest.mark.parametrize("kinds", [("sparse",), ("dense",), ("sparse", "dense")], ids="+".join)
@pytest.mark.parametrize("workers", [1, 3, 4, 7])
def test_means_are_the_hosts_bit_for_bit(workers: int, kinds: tuple[str, ...]) -> None:
    here, there = Aggregate(SIZE), Aggregate(SIZE, "cuda")
    for round_ in range(3):
        for aggregate in (here, there):
            aggregate.reset()
            for worker in range(workers):
                kind = kinds[(worker + round_) % len(kinds)]
                aggregate.add(message(kind, worker + 10 * round_ // 2))
        expected, found = here.mean(workers), there.mean(workers)
        assert found.values.device.type == "cpu"
        assert torch.equal(found.values.view(torch.int32), expected.values.view(torch.int32))
        if expected.indices is None:
            assert found.indices is None
        else:
            assert found.indices is not None
            assert torch.equal(found.indices, expected.indices)


def test_what_comes_to_the_host_waits_for_its_own_queue_alone() -> None:
    staging, x = Staging(), torch.arange(1_000_000, device="cuda", dtype=torch.float32)
    x.sub_(1).add_(1)  # loading an operation waits for the whole device
    staging.to_host(Sparse(len(x), None, x))  # memory is there
    busy = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(LONG)
    torch.cuda._sleep(SHORT)
    x.add_(1)
    found = staging.to_host(Sparse(len(x), None, x)).values
    assert not busy.query()
    assert torch.equal(found, torch.arange(1.0, 1_000_001.0))
    busy.synchronize()


def test_a_buffer_is_written_again_only_when_the_device_has_read_it() -> None:
    staging, device = Staging(), torch.device("cuda")
    landing = DeviceStaging(SIZE, device)
    sent, delivered = [], []
    for number in range(5):
        torch.cuda._sleep(SHORT)
        sent.append(staging.to_device(torch.full((SIZE,), float(number)), device))
        landing.room().fill_(number)
        delivered.append(landing.deliver().clone())
    for number in range(5):
        assert sent[number].eq(number).all()
        assert delivered[number].eq(number).all()


def test_parts_of_a_buffer_are_guarded_by_themselves() -> None:
    landing, halves = (
        DeviceStaging(SIZE, torch.device("cuda")),
        (slice(0, 50_000), slice(50_000, SIZE)),
    )
    landing.room().fill_(1)
    landing.deliver(halves[0])
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    landing.deliver(halves[1])
    begun_s = time.monotonic()
    landing.room(halves[0])
    free_s = time.monotonic()
    landing.room(halves[1])
    assert free_s - begun_s < time.monotonic() - free_s


@pytest.mark.parametrize("values", ["fp32", "bf16", "int8"])
def test_messages_and_memory_are_the_hosts(values: str) -> None:
    """Values that travel as they are do not come back; others do, as the receiver reads them."""
    makers = [Compressor.named("radix", "feedback", values=values) for _ in range(2)]
    for step in range(3):
        x = torch.randn(SIZE, generator=torch.Generator().manual_seed(step))
        here = makers[0].compress("x", x, 0.01, Random(step))
        there = makers[1].compress("x", x.cuda(), 0.01, Random(step))
        assert bytes(here.payload) == bytes(there.payload)
    memories = [maker.state()["memory"]["x"].cpu() for maker in makers]
    assert torch.equal(*memories)


def waits(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """For how many results of the device the host waits in ``work``: events, and what PyTorch warns of."""
    blocked = []
    synchronize = torch.cuda.Event.synchronize

    def counted(event: torch.cuda.Event) -> None:
        if not event.query():
            blocked.append(event)
        synchronize(event)

    torch.cuda.synchronize()
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        patched.setattr(torch.cuda.Event, "synchronize", counted)
        torch.cuda._sleep(SHORT)  # nothing is ready when it is asked for
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return len(blocked) + sum("synchroniz" in str(own.message) for own in warned)


def layered(selector: str, sizes: list[int]) -> tuple[Recipe, Layout]:
    recipe = Recipe(RecipeChoice(selector), memory=RecipeChoice("feedback"), layers=True)
    return recipe, Layout.of((f"layer{number}", (size,)) for number, size in enumerate(sizes))


@pytest.mark.parametrize("selector", ["laplace", "topk"])
def test_a_bucket_waits_as_often_for_many_parameters_as_for_few(
    selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for statistics and once for elements; once or twice more where a threshold was missed."""
    counts = []
    for number in (3, 30):
        recipe, layout = layered(selector, [3_000, 20_000, 700] * (number // 3))
        maker = Compressor(recipe, {"x": layout})
        for step in range(12):
            x = torch.randn(layout.size, generator=torch.Generator().manual_seed(step)).cuda()
            maker.weigh = step % 2 == 1  # what was left out is weighed on the host
            work = partial(maker.compress, "x", x, 0.05, Random(step))
            counts.append(waits(work, monkeypatch))
            assert counts[-1] <= 4 or step < 2  # the first make buffers
        assert sorted(counts[-12:])[5] <= 3
    alone = Compressor(replace(recipe, layers=False), {"x": layout})
    assert waits(partial(alone.compress, "x", x, 0.05, Random(0)), monkeypatch) > 0


@pytest.mark.parametrize("values", ["fp32", "int8"])
@pytest.mark.parametrize("selector", ["laplace", "topk", "dense"])
def test_layers_are_compressed_as_if_each_were_alone(selector: str, values: str) -> None:
    recipe, layout = layered(selector, [3_000, 40, 300_000, 700, 5, 90_000])
    recipe = replace(recipe, values=RecipeChoice(values))
    together, each = Compressor(recipe, {"x": layout}), []
    for part in layout:
        whole = Layout.of([(part.name, part.shape)])
        each.append(Compressor(replace(recipe, layers=False), {"x": whole}))
    for step in range(6):
        x = torch.randn(layout.size, generator=torch.Generator().manual_seed(step))
        x = (x * x.abs() ** (step % 4)).cuda()
        sent, wanted = together.compress("x", x, 0.03, Random(1)), []
        for part, maker in zip(layout, each, strict=True):
            own = x[part.offset : part.offset + part.size]
            wanted.append(bytes(maker.compress("x", own, 0.03, Random(1)).payload))
        assert [bytes(own) for own in split(sent.payload, len(each))] == wanted
    kept = together.state()["memory"]
    for part, maker in zip(layout, each, strict=True):
        assert torch.equal(kept[part.name], maker.state()["memory"][part.name])


def test_an_instant_is_the_devices_and_holds_nobody_up(device: torch.device) -> None:
    clock = DeviceClock(time.monotonic, device)
    clock.adjust()
    torch.cuda.synchronize()
    torch.cuda._sleep(SHORT)
    first = clock.mark()
    torch.cuda._sleep(SHORT)
    second = clock.mark()
    queued_s = time.monotonic()
    times_s = [second.wait(), first.wait()]
    assert queued_s < times_s[1] < times_s[0] <= time.monotonic()
    early_s, late_s = times_s[1] - queued_s, times_s[0] - times_s[1]
    assert early_s == pytest.approx(late_s, rel=0.3)


def test_where_time_stands_still_the_device_is_waited_for(device: torch.device) -> None:
    clock = DeviceClock(lambda: 5.0, device)
    clock.adjust()
    torch.cuda._sleep(SHORT)
    assert clock.mark().wait() == 5.0
    assert torch.cuda.current_stream().query()


def on_threads(algorithm: Algorithm, *, paced: bool) -> tuple[set[str], list[dict[str, Any]]]:
    """The parameters of all nodes, and all records, of a run with workers and a server on the device."""
    records: list[dict[str, Any]] = []

    def made(name: str, seed: int, endpoint: Endpoint, clock: HostClock, _: object) -> HostNode:
        return HostNode(name, seed, endpoint, clock, records.append)

    changes: dict[str, Any] = {} if paced else {"pace": None}
    hosts = Hosts(algorithm, "threads", made, devices=ON_DEVICE, **changes)
    ended = reversed(hosts.run().values())  # an error of a worker's own is that of the test
    return {done.result()["parameters"] for done in ended}, records


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("algorithm", [DENSE, TOPK, overlapped(DENSE), overlapped(TOPK)], ids=repr)
def test_phases_add_up_to_the_step(algorithm: Algorithm, paced: bool) -> None:
    _, records = on_threads(algorithm, paced=paced)
    steps = [record for record in records if record["kind"] == "step"]
    assert len(steps) == 8
    for step in steps:
        phases = [step.get(f"{phase}_s", 0.0) for phase in PHASES]
        assert sum(phases) == pytest.approx(step["end_s"] - step["start_s"], abs=1e-5)
        assert min(phases) >= -1e-5
        assert step["busy_s"] > 0


@pytest.mark.parametrize("algorithm", [DENSE, TOPK], ids=lambda row: row.name)
def test_overlap_on_threads_changes_no_bit(algorithm: Algorithm) -> None:
    found, _ = on_threads(overlapped(algorithm), paced=False)
    assert found == virtual(algorithm)
