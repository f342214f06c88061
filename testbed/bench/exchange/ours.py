"""Rounds of the project's own exchanges, over the endpoints that runs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from testbed.bench.exchange.part import SERVER, Part, Task, Vector, add, gradient
from testbed.errors import InputError
from testbed.exchange import builtin as _builtin
from testbed.exchange.choose import ENDPOINTS, Way, endpoint_for
from testbed.exchange.coded.exchange import CodedExchange
from testbed.exchange.endpoint import TcpEndpoint
from testbed.exchange.frame import MAX_BODY
from testbed.exchange.kinds import ExchangeKind, Peers, ServerSide, exchanges
from testbed.exchange.loop import LoopEndpoint
from testbed.exchange.multicast.multicaster import Multicaster
from testbed.fabric.host import DataNetwork, HostClock, HostNode
from testbed.node import Buffer

del _builtin

_CONNECT_S = 60.0
_SAMPLES = 1 << 16
"""Of a mini-batch that is cut into blocks: any number that leaves something for each."""


def make(
    task: Task, kind: str, way: Way | None = None, options: Mapping[str, Any] | None = None
) -> Part:
    """A node's part in rounds of the exchange ``kind`` with ``options``. ``way``: None for the one that a run would take."""
    exchange = exchanges.get(kind)
    way = "threads" if exchange.multicasts else way or endpoint_for(task.nodes, task.bytes)
    endpoint = _connected(task, exchange, way)
    if task.own == SERVER:
        if exchange.server is None:
            raise InputError(f"the exchange {kind!r} has no server")
        return _Server(task, _node(task, endpoint), endpoint, exchange)
    return _Worker(task, _node(task, endpoint), endpoint, exchange, options or {})


class _Worker:
    def __init__(
        self,
        task: Task,
        node: HostNode,
        endpoint: TcpEndpoint | LoopEndpoint,
        exchange: ExchangeKind,
        options: Mapping[str, Any],
    ) -> None:
        self._node, self._endpoint = node, endpoint
        self._side = exchange.worker(node, _peers(task, exchange, options))
        self._own = gradient(task)
        self._total = np.empty_like(self._own)
        self._body: Buffer = self._own.data.cast("B")
        if isinstance(self._side, CodedExchange):
            blocks = len(self._side.samples(_SAMPLES))
            self._body = bytes(blocks * task.bytes)  # zeros: whoever has a block has the same
        self._side.greet()

    def round(self, step: int) -> None:
        """Submit the gradient, and wait; what others sent as it was is added here."""
        update = self._side.submit(step, 0, self._body).wait()
        if update.parts:
            add([_vector(part.body) for part in update.parts], self._total)

    def close(self) -> None:
        """Say goodbye."""
        self._side.close()
        self._endpoint.close()
        self._node.close()


class _Server:
    def __init__(
        self,
        task: Task,
        node: HostNode,
        endpoint: TcpEndpoint | LoopEndpoint,
        exchange: ExchangeKind,
    ) -> None:
        assert exchange.server is not None
        self._node, self._endpoint = node, endpoint
        self._side: ServerSide = exchange.server(node, _peers(task, exchange))
        self._total = np.empty(task.bytes // 4, dtype=np.float32)
        self._side.welcome()

    def round(self, step: int) -> None:
        """Gather, add, broadcast."""
        messages = self._side.gather(step, 0)
        add([_vector(message.body) for message in messages], self._total)
        self._side.broadcast(step, 0, self._total.data.cast("B"))

    def close(self) -> None:
        """Wait for the workers' goodbyes."""
        self._side.farewell(0)
        self._endpoint.close()
        self._node.close()


def _connected(task: Task, exchange: ExchangeKind, way: Way) -> TcpEndpoint | LoopEndpoint:
    """As nodes of a run connect: workers to the server, or to those before them where there is none."""
    clock = HostClock()
    endpoint = ENDPOINTS[way](
        task.own, task.run, names=_names(task), clock=clock.seconds, silence_s=task.timeout_s,
        greeting_s=_CONNECT_S, lockstep=exchange.lockstep,
    )  # fmt: skip
    if exchange.multicasts and isinstance(endpoint, TcpEndpoint):
        endpoint.multicaster = Multicaster(
            task.own, task.run, names=_names(task), clock=clock.seconds, silence_s=task.timeout_s,
            addresses={peer: task.addresses[peer] for peer in task.workers}, port=task.port,
            most_bytes=MAX_BODY, deliver=endpoint.deliver,
        )  # fmt: skip
    alone = exchange.server is None
    if alone or task.own == SERVER:
        endpoint.listen(task.addresses[task.own], task.port)
    if task.own != SERVER:
        for peer in range(1, task.own) if alone else [SERVER]:
            endpoint.connect(peer, task.addresses[peer], task.port, _CONNECT_S)
    return endpoint


def _node(task: Task, endpoint: TcpEndpoint | LoopEndpoint) -> HostNode:
    network = DataNetwork(task.own, _names(task), task.addresses)
    return HostNode(network.names[task.own], 0, endpoint, HostClock(), lambda _: None, network)


def _peers(task: Task, exchange: ExchangeKind, options: Mapping[str, Any] | None = None) -> Peers:
    servers = [] if exchange.server is None else [SERVER]
    return Peers(
        task.own, servers, task.workers, _names(task), task.timeout_s, options=options or {}
    )


def _names(task: Task) -> dict[int, str]:
    return {SERVER: "server", **{number: f"worker-{number - 1}" for number in task.workers}}


def _vector(body: Buffer) -> Vector:
    return np.frombuffer(body, dtype=np.float32)
