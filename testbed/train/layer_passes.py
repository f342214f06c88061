"""Forward and backward pass of a step, layer by layer, as whoever keeps their time sees it.

The computation itself goes on beside: a layer of the forward pass begins when it is permitted (its parameters are
there), and a layer of the backward pass has ended when its gradients are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from testbed.compress.layout import Layer
from testbed.node import Node, Queue
from testbed.train.compute import Computed
from testbed.train.device import synchronise
from testbed.train.lane import Lane

if TYPE_CHECKING:
    from torch import Tensor, nn

Compute = Callable[[int], Computed]
Spans = dict[str, list[float]]


class Passes(Protocol):
    """Of one worker. Calls come in this order: ``begin``; ``permit`` by layer; ``computed`` from the last to the first;
    ``result``; and ``end`` at any time."""

    @property
    def waited_s(self) -> float:
        """For so long the step's forward pass has waited between its layers to be permitted."""
        ...

    def begin(self, step: int) -> None:
        """The computation of ``step`` may begin, as far as it is permitted."""
        ...

    def permit(self, layer: int) -> None:
        """The parameters of ``layer``, and of those before it, are those of the step."""
        ...

    def computed(self, layer: int) -> float:
        """Block until the gradients of ``layer`` are there; since when they are. Raises what the computation raised."""
        ...

    def result(self) -> Computed:
        """Of the whole, which has ended then."""
        ...

    def spans(self) -> tuple[Spans, Spans]:
        """When the forward and the backward pass of each layer went on; empty where nobody can tell."""
        ...

    def end(self) -> None:
        """There is no step any more. What waits to be permitted is given up; never blocks."""
        ...


class WholePasses:
    """For computation that cannot be parted: all of it when the last layer is permitted, at one instant."""

    waited_s = 0.0

    def __init__(self, node: Node, compute: Compute, layers: Sequence[Layer]) -> None:
        self._node, self._compute, self._last = node, compute, len(layers) - 1

    def begin(self, step: int) -> None:
        """Nothing is computed yet."""
        self._step = step

    def permit(self, layer: int) -> None:
        """With the last one all is computed."""
        if layer == self._last:
            self._result = self._node.background(lambda: self._compute(self._step))
            self._there_s = self._node.now()

    def computed(self, layer: int) -> float:  # noqa: ARG002
        """All at once."""
        return self._there_s

    def result(self) -> Computed:
        """See ``Passes``."""
        return self._result

    def spans(self) -> tuple[Spans, Spans]:
        """Nobody can tell."""
        return {}, {}

    def end(self) -> None:
        """Nothing waits."""


class _Ended(Exception):
    """Raised where the computation waits for what will not come."""


_NONE = -1
"""Is permitted: there will be no more."""


class HookedPasses:
    """The module's own passes, told of by hooks on the modules that own parameters.

    On an accelerator a layer has ended when the device has done all it was given: so each is waited for, which parts the
    device's work from the host's by as much as a launch takes, and lets a bucket be packed between two layers.
    """

    def __init__(
        self, node: Node, compute: Compute, layers: Sequence[Layer], module: nn.Module
    ) -> None:
        self._node, self._compute, self._layers = node, compute, layers
        self._permits: Queue[int] = node.queue()
        self._permitted = -1
        self._told: Queue[tuple[int, float] | Computed | BaseException] = node.queue()
        self._lane = Lane(node, self._told.put)
        self._there: dict[int, float] = {}
        self._result: Computed | None = None
        self._missing = [0] * len(layers)
        self._ended = 0.0
        self._forward: Spans = {}
        self._backward: Spans = {}
        self._gated = False
        self.waited_s = 0.0
        parameters = dict(module.named_parameters())
        self._device = next(iter(parameters.values())).device
        for number, layer in enumerate(layers):
            owner = module.get_submodule(layer.name)
            owner.register_forward_pre_hook(self._before(number))
            owner.register_forward_hook(self._after(number))
            for part in layer.parts:
                tensor: Any = parameters[part.name]  # the method is not typed
                tensor.register_post_accumulate_grad_hook(self._accumulated(number))

    def begin(self, step: int) -> None:
        """See ``Passes``."""
        self._there, self._result, self._permitted = {}, None, -1
        self._missing = [len(layer.parts) for layer in self._layers]
        self._forward, self._backward, self.waited_s = {}, {}, 0.0
        self._lane.put(lambda: self._go(step))

    def permit(self, layer: int) -> None:
        """See ``Passes``."""
        self._permits.put(layer)

    def computed(self, layer: int) -> float:
        """Layers that the loss does not depend on have no gradient: theirs is there when all has ended."""
        while layer not in self._there and self._result is None:
            self._hear()
        return self._there.get(layer, self._ended)

    def result(self) -> Computed:
        """See ``Passes``."""
        while self._result is None:
            self._hear()
        return self._result

    def spans(self) -> tuple[Spans, Spans]:
        """By this node's clock."""
        return self._forward, self._backward

    def end(self) -> None:
        """See ``Passes``."""
        self._lane.end()
        self._permits.put(_NONE)

    def _hear(self) -> None:
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, Computed):
            self._result = told
        else:
            number, there_s = told
            self._there[number] = there_s

    def _go(self, step: int) -> None:
        self._gated = True
        try:
            result = self._node.background(lambda: self._compute(step))
        finally:
            self._gated = False
        self._await(len(self._layers) - 1)  # of layers that the model did not call
        self._ended = self._node.now()
        self._told.put(result)

    def _await(self, number: int) -> None:
        while self._permitted < number:
            if (permitted := self._permits.get()) == _NONE:
                raise _Ended
            self._permitted = permitted

    def _before(self, number: int) -> Callable[..., None]:
        def wait(*_: object) -> None:
            if self._gated:
                asked_s = self._node.now()
                self._await(number)
                now = self._node.now()
                self.waited_s += now - asked_s
                self._forward.setdefault(self._layers[number].name, [now, now])

        return wait

    def _after(self, number: int) -> Callable[..., None]:
        def note(*_: object) -> None:
            if self._gated:
                synchronise(self._device)
                self._ended = self._node.now()
                self._forward[self._layers[number].name][1] = self._ended

        return note

    def _accumulated(self, number: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            if self._gated:
                self._missing[number] -= 1
                if self._missing[number] == 0:
                    synchronise(self._device)
                    began, self._ended = self._ended, self._node.now()
                    self._backward[self._layers[number].name] = [began, self._ended]
                    self._told.put((number, self._ended))

        return note
