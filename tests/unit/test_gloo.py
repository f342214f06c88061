"""Gloo's operations among a few processes on the loopback; what is said of them; when buckets are there."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import own_place
from torch import nn
from virtual_run import carried_out

from testbed.compatibility import resolve
from testbed.compress.layout import Layout
from testbed.errors import InputError, MachineError, NodeLost
from testbed.fabric.gloo_group import GlooGroup, Meeting, carried, interface_of
from testbed.fabric.host_node import HostClock, HostNode
from testbed.fidelity.evidence import unattributed_bytes
from testbed.fidelity.reference import RequestedLinks
from testbed.runner.judge import faults
from testbed.scenario.link_state import LinkDirection, LinkState
from testbed.scenario.model import Derived
from testbed.training.overlap import BackwardBuckets, ddp_buckets

HOME = "127.0.0.1"
NAMES = ("worker-0", "worker-1", "worker-2")


def meeting(own: int, place: tuple[str, int], many: int = 3, patience_s: float = 30.0) -> Meeting:
    return Meeting(NAMES[:many], own, HOME, *place, patience_s, timeout_s=10.0)


def groups(many: int = 3) -> list[GlooGroup]:
    """One for each rank, in this process."""
    place, now = own_place(), HostClock().now
    with ThreadPoolExecutor(many) as pool:
        return list(pool.map(lambda rank: GlooGroup(meeting(rank, place, many), now), range(many)))


def test_sums_and_gathered_rows_are_everybodys() -> None:
    made = groups()
    vectors = [torch.arange(5.0) * (rank + 1) for rank in range(3)]
    sums = [group.add_up(vector) for group, vector in zip(made, vectors, strict=True)]
    assert all(one.wait() > 0 for one in sums)
    assert all(torch.equal(vector, torch.arange(5.0) * 6) for vector in vectors)
    rows = [torch.empty(6, dtype=torch.uint8) for _ in made]
    own = [torch.full((2,), rank, dtype=torch.uint8) for rank in range(3)]
    for one in [g.gather(mine, out) for g, mine, out in zip(made, own, rows, strict=True)]:
        one.wait()
    assert all(row.tolist() == [0, 0, 1, 1, 2, 2] for row in rows)
    assert all(group.carried().sent > 0 for group in made)
    for group in made:
        group.close()


def test_whoever_does_not_come_is_missed() -> None:
    with pytest.raises(NodeLost, match=r"worker-1, worker-2.*cannot meet"):
        GlooGroup(meeting(0, own_place(), patience_s=0.5), HostClock().now)


def test_a_member_that_leaves_is_an_error_of_the_others() -> None:
    made = groups(2)
    made.pop().close()
    with pytest.raises(NodeLost, match=r"'worker-1' was lost .*gloo: ") as caught:
        made[0].add_up(torch.ones(10)).wait()
    assert str(caught.value).isascii() and "\n" not in str(caught.value)


def test_interfaces_are_found_by_address() -> None:
    assert interface_of(HOME) == "lo"
    with pytest.raises(
        MachineError, match=r"no interface of this node has the address 192\.0\.2\.1"
    ):
        interface_of("192.0.2.1")
    before = carried("lo")
    with (
        socket.create_server((HOME, 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
    ):
        sender.sendall(bytes(100_000)[:50_000])
        moved = carried("lo").since(before)
    assert moved.sent >= 50_000 and moved.received >= 50_000
    with pytest.raises(MachineError, match="says nothing of the interface nowhere"):
        carried("nowhere")


def test_a_node_without_a_data_network_has_no_group() -> None:
    node = HostNode("worker-0", 1, None, HostClock(), print)  # type: ignore[arg-type]
    with pytest.raises(MachineError, match="no data network"):
        node.group([0, 1], 1.0, 1.0)
    assert node.carried() is None
    node.close()


SCENARIO = """
name: gloo
nodes: {worker: {role: worker, count: 2}}
links: {default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms, stop: {steps: 2}}
algorithms: [allreduce]
"""


@pytest.mark.parametrize("name", ["allreduce", "allreduce-bf16", "ddp", "allgather-topk-0.1"])
def test_virtual_time_has_no_gloo(tmp_path: Path, name: str) -> None:
    with pytest.raises(MachineError, match=r"needs a real network.*'ring'"):
        carried_out(tmp_path, SCENARIO, algorithms=[name])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"from": "topk-0.1", "exchange": "allreduce"}, "selector"),
        (
            {"from": "ddp", "exchange_options": {"bucket_bytes": 0}},
            "bucket_bytes: .*greater than 0",
        ),
        ({"from": "allreduce", "exchange_options": {"bucket_bytes": 9}}, "unknown option"),
    ],
)
def test_what_cannot_be_asked_for(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve(Derived.model_validate({"name": "x", **fields}))


def test_any_compressor_can_be_gathered() -> None:
    row = resolve(
        Derived.model_validate({"name": "x", "from": "qsgd-4bit", "exchange": "allgather"})
    )
    assert (row.values, row.exchange) == ("qsgd", "allgather")
    assert resolve("allgather-topk-0.05").options == {"density": 0.05}


def said(sent: int, received: int) -> dict[str, object]:
    summary = {
        "role": "worker",
        "steps": 1,
        "parameters": "x",
        "bytes_sent": 0,
        "bytes_received": 0,
    }
    return {
        "summary": {**summary, "bytes_up": 1000, "bytes_down": 1000},
        "counters": {},
        "interface": {"interface": "data", "sent": sent, "received": received},
    }


def test_a_network_that_was_bypassed_is_a_fault() -> None:
    steps = [{"node": "worker-0"}]
    assert faults({"worker-0": said(1100, 1000)}, steps, []) == []
    (fault,) = faults({"worker-0": said(1100, 30)}, steps, [])
    assert fault == (
        "the interface data of worker-0 received 30 B, but gradients alone are 1000 B: they went another way"
    )


def test_links_that_gloo_uses_are_not_held_against_sockets() -> None:
    shape = LinkState(10**6, 10**6)
    asked = RequestedLinks(
        {LinkDirection("worker-0", "up"): shape, LinkDirection("noise", "up"): shape}, []
    )
    found = unattributed_bytes(asked, ["noise"], ["worker-0"])
    assert found == {
        "worker-0 up": "gloo keeps no count of its bytes", "noise up": "other traffic goes over it"
    }  # fmt: skip


def test_buckets_are_those_of_ddp() -> None:
    module = nn.Sequential(nn.Linear(10, 30), nn.Linear(30, 20), nn.Linear(20, 5), nn.Linear(5, 5))
    named = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
    layout = Layout.of(named)
    formed = ddp_buckets(layout, first_bytes=100, most_bytes=1000)
    backwards = list(reversed(list(module.parameters())))
    ddp: Any = torch.distributed  # its own function is not typed
    expected, _ = ddp._compute_bucket_assignment_by_size(backwards, [100, 1000])
    last = len(backwards) - 1
    assert [sorted(last - i for i in one) for one in expected] == [list(b.parts) for b in formed]
    assert [b.elements.start for b in formed] == [b.elements.stop for b in formed[1:]] + [0]
    assert formed[0].elements.stop == layout.size


def test_buckets_are_told_of_within_the_backward_pass() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    layout = Layout.of((name, tuple(p.shape)) for name, p in module.named_parameters())
    formed = ddp_buckets(layout, 1, 1)
    backward, told = BackwardBuckets(module, layout, formed), list[tuple[int, bool]]()
    first = next(module.parameters())
    for _ in range(2):
        module.zero_grad()
        backward.begin(lambda number: told.append((number, first.grad is None)))
        module(torch.ones(2, 4)).sum().backward()
    assert [number for number, _ in told] == 2 * list(range(len(formed)))
    assert told[0][1] and not told[-1][1]


def test_shares_grow_from_bucket_to_bucket() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layout = Layout.of((name, tuple(p.shape)) for name, p in module.named_parameters())
    formed = ddp_buckets(layout, 1, 1)
    backward, ticks = BackwardBuckets(module, layout, formed), iter(range(1000))
    found = backward.shares(
        lambda: module(torch.ones(2, 4)).sum().backward(),
        lambda: float(next(ticks)),
        times=3,
    )
    # the clock ticks once when it starts, once a bucket, and once when it ends
    assert found == pytest.approx([(n + 1) / (len(formed) + 1) for n in range(len(formed))])
