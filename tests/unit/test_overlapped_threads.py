"""Overlapped steps on real threads and sockets: the same parameters as in virtual time, and nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from loopback import own_place
from overlap_rig import DENSE, TOPK, Stage, overlapped, parameters

from testbed.algorithm import Algorithm
from testbed.errors import NodeLost, WireError
from testbed.fabric.host_node import HostClock, HostNode
from testbed.node import Kind, Message
from testbed.training.roles import role
from testbed.transport import ENDPOINTS, EndpointKind

torch.set_num_threads(1)
WAYS: tuple[EndpointKind, ...] = ("threads", "loop")
SILENCE_S = GONE_S = 200.0
"""Of somebody who is stuck: computations give way to all others, and may stand still for long on a busy machine."""
TOLD = Algorithm(
    "told", "laplace", "feedback", options={"density": 0.05}, selector_options={"fit_every": 2}
)

Alter = Callable[[Message], Message]


def unaltered(message: Message) -> Message:
    return message


class Hosts:
    """A server and two workers on loopback, a thread for each role."""

    def __init__(
        self, algorithm: Algorithm, way: EndpointKind, made: Callable[..., HostNode] = HostNode, **about: Any
    ) -> None:  # fmt: skip
        self._made = made
        stage = Stage(algorithm, **about)
        self._jobs = {peer: replace(stage.job(peer), peer_timeout_s=SILENCE_S) for peer in range(3)}
        self._clock, self._barrier, self._way = HostClock(), threading.Barrier(3), way
        self._place = own_place()

    def run(self, **alter: Alter) -> dict[str, Future[dict[str, Any]]]:
        """Everybody's summary or error. ``alter``: what a node sends instead, by its name with an underscore."""
        with ThreadPoolExecutor(3) as executor:
            return {
                job.node: executor.submit(
                    self._take_part, peer, alter.get(job.node.replace("-", "_"), unaltered)
                )
                for peer, job in self._jobs.items()
            }

    def _take_part(self, peer: int, alter: Alter) -> dict[str, Any]:
        job, names = self._jobs[peer], {n: job.node for n, job in self._jobs.items()}
        endpoint = ENDPOINTS[self._way](
            peer, job.run, names=names, clock=self._clock.seconds, silence_s=SILENCE_S
        )
        node = self._made(job.node, job.seed, endpoint, self._clock, list[object]().append)
        send = endpoint.send
        endpoint.send = lambda to, message: send(to, alter(message))  # type: ignore[method-assign]
        try:
            if peer:
                endpoint.connect(0, *self._place, SILENCE_S)
            else:
                endpoint.listen(*self._place)
            played = role(node, job, job.node.partition("-")[0])
            played.prepare()
            self._barrier.wait(GONE_S)
            self._clock.t0_ns = time.monotonic_ns()
            self._barrier.wait(GONE_S)
            return played.run()
        finally:
            endpoint.close()
            node.close()


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Have all loops compiled in virtual time: where none are kept yet, that takes longer than ``SILENCE_S``."""
    for algorithm in (DENSE, TOPK, TOLD):
        parameters(overlapped(algorithm))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every thread that a test has started has ended soon after it."""
    before = set(threading.enumerate())
    yield
    until_s = time.monotonic() + GONE_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("algorithm", [DENSE, TOPK], ids=lambda row: row.name)
def test_parameters_are_those_of_virtual_time(algorithm: Algorithm, way: EndpointKind) -> None:
    given = overlapped(algorithm)
    found = {done.result()["parameters"] for done in Hosts(given, way).run().values()}
    assert found == {parameters(given)}


class FitFirst(HostNode):
    """Its computations do not end before it has made a report of the gradients that are there."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._told, self._made_ns = threading.Event(), self._clock.t0_ns

    def background(self, work: Callable[[], Any]) -> Any:
        def held() -> Any:
            result, begun = work(), self._clock.t0_ns != self._made_ns
            if self.name != "server" and begun and not self._told.wait(SILENCE_S):
                raise RuntimeError("no report while there was something to compute")
            return result

        return super().background(held)

    def record(self, event: dict[str, object]) -> None:
        if event["kind"] == "fit":
            self._told.set()
        super().record(event)


def test_a_report_is_made_beside_the_computation() -> None:
    """The bucket that is reported on leaves while others are computed, as it does in other steps."""
    given = overlapped(TOLD)
    found = {
        done.result()["parameters"] for done in Hosts(given, "threads", FitFirst).run().values()
    }
    assert found == {parameters(given)}


def breaks(kind: Kind, bucket: int) -> Alter:
    """A node whose second step ends with an error of its own, when it is to send this."""

    def alter(message: Message) -> Message:
        if (message.kind, message.step, message.bucket) == (kind, 2, bucket):
            raise RuntimeError("broken")
        return message

    return alter


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bucket", [0, 1, 2])
def test_when_the_server_fails_workers_end_wherever_they_wait(
    bucket: int, way: EndpointKind
) -> None:
    done = Hosts(overlapped(), way).run(server=breaks(Kind.UPDATE, bucket))
    with pytest.raises(RuntimeError, match="broken"):
        done["server"].result()
    for worker in ("worker-0", "worker-1"):
        with pytest.raises(
            NodeLost, match=r"'server' was lost at step 2, while (rec|send)"
        ) as lost:
            done[worker].result()
        assert lost.value.step == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bucket", [0, 2])
def test_when_a_worker_fails_everybody_ends(bucket: int, way: EndpointKind) -> None:
    done = Hosts(overlapped(), way).run(worker_1=breaks(Kind.GRADIENT, bucket))
    with pytest.raises(RuntimeError, match="broken"):
        done["worker-1"].result()
    with pytest.raises(NodeLost, match="'worker-1' was lost at step 2, while gathering"):
        done["server"].result()
    with pytest.raises(NodeLost, match="'server' was lost at step 2"):
        done["worker-0"].result()


@pytest.mark.parametrize("bucket", [0, 2])
def test_a_worker_that_is_sent_nonsense_says_so(bucket: int) -> None:
    def rubbish(message: Message) -> Message:
        if (message.kind, message.step, message.bucket) == (Kind.UPDATE, 2, bucket):
            return Message(message.kind, 2, bucket, message.sender, b"rubbish")
        return message

    done = Hosts(overlapped(), "threads").run(server=rubbish)
    errors = [done[worker].exception() for worker in ("worker-0", "worker-1")]
    found = [error for error in errors if isinstance(error, WireError)]
    assert found and all("a payload has at least" in str(error) for error in found), errors
    # the server ends with the first worker: the other may have read nothing of the update by then
    lost = [error for error in errors if isinstance(error, NodeLost) and error.node == "server"]
    assert len(found) + len(lost) == len(errors), errors
    with pytest.raises(NodeLost, match=r"'worker-[01]' was lost at step [23]"):
        done["server"].result()
