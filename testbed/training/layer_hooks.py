"""Hooks at a model's modules and parameters, and a worker's passes, layer by layer, with them.

The computation itself goes on beside: a layer of the forward pass begins when it is permitted (its
parameters are there), and a layer of the backward pass has ended when its gradients are there.

A layer is the parameters that one module owns (``compress.layout.Layer``). What is computed between
two layers, such as an activation or a sum, is counted to the one before it; what comes before the
first layer to that, the loss to the backward pass of the last. So the layers' times add up to the
whole from its begin to the last gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from testbed.compress.layout import Layer
from testbed.node import Node, Queue
from testbed.training.bucket_pipeline import PriorityExecutor
from testbed.training.compute import Computed
from testbed.training.replica import DeviceClock, DeviceMark

if TYPE_CHECKING:
    from torch import nn


Compute = Callable[[int], Computed]
Spans = dict[str, list[float]]


class LayerHooks:
    """Calls its listeners in every pass of ``module``, until ``remove``.

    ``gradient(layer, parameter)``: a parameter's gradient is complete; ``begins(layer)`` and
    ``ends(layer)``: of a layer's forward pass; ``forward_ends()``: of the whole model's. Layers and
    parameters are told by their numbers in ``layers``.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[Layer],
        gradient: Callable[[int, int], None],
        *,
        begins: Callable[[int], None] | None = None,
        ends: Callable[[int], None] | None = None,
        forward_ends: Callable[[], None] | None = None,
    ) -> None:
        tensors: dict[str, Any] = dict(module.named_parameters())  # one method is not typed
        self._handles, parameter = list[Any](), 0
        for number, layer in enumerate(layers):
            owner = module.get_submodule(layer.name)
            if begins is not None:
                self._handles.append(owner.register_forward_pre_hook(_hook(begins, number)))
            if ends is not None:
                self._handles.append(owner.register_forward_hook(_hook(ends, number)))
            for part in layer.parts:
                hook = _hook(gradient, number, parameter)
                self._handles.append(tensors[part.name].register_post_accumulate_grad_hook(hook))
                parameter += 1
        if forward_ends is not None:
            self._handles.append(module.register_forward_hook(_hook(forward_ends)))

    def remove(self) -> None:
        """No listener is called any more."""
        for handle in self._handles:
            handle.remove()


def _hook(listener: Callable[..., None], *numbers: int) -> Callable[..., None]:
    """Return a hook that tells nothing of the tensors and modules that PyTorch calls it with."""
    return lambda *_: listener(*numbers)


class WholePasses:
    """Computation that cannot be parted: all of it when the last layer is permitted, at one
    instant. Methods are as those of ``HookedPasses``."""

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
            self._complete_s = self._node.now()

    def computed(self, layer: int) -> float:  # noqa: ARG002
        """All at once."""
        return self._complete_s

    def result(self) -> Computed:
        """Return the result of the whole computation."""
        return self._result

    def spans(self) -> tuple[Spans, Spans]:
        """Nobody can tell."""
        return {}, {}

    def end(self) -> None:
        """Nothing waits."""


class _Ended(Exception):
    """Raised where the computation waits for what will not come."""


class HookedPasses:
    """Forward and backward passes of a worker's own module.

    Calls come in this order: ``begin``; ``permit`` by layer; ``computed`` from the last to the
    first; ``result``; and ``end`` at any time. ``waited_s``: for so long the step's forward pass
    has waited between its layers to be permitted.

    On an accelerator a layer has ended when the device has come to where it was queued: the host
    queues the next one meanwhile, and only who asks for a layer waits for it.
    """

    def __init__(
        self, node: Node, compute: Compute, layers: Sequence[Layer], module: nn.Module
    ) -> None:
        self._node, self._compute, self._layers = node, compute, layers
        self._permits: Queue[int | None] = node.queue()
        """None: there will be no more."""
        self._permitted = -1
        self._news: Queue[tuple[int, DeviceMark] | Computed | BaseException] = node.queue()
        self._executor = PriorityExecutor(node, self._news.put)
        self._ready_s: dict[int, float] = {}
        self._result: Computed | None = None
        self._missing = [0] * len(layers)
        self._ended_s = 0.0
        self._clock = DeviceClock(node.now, next(module.parameters()).device)
        self._last = DeviceMark(0.0)
        """The end of the last layer, in whichever pass."""
        self._forward: dict[str, tuple[float, DeviceMark, DeviceMark]] = {}
        """When it was permitted, the end of what the device did before, and its own end."""
        self._backward: dict[str, tuple[DeviceMark, DeviceMark]] = {}
        self._waits: list[tuple[float, float, DeviceMark]] = []
        """From when to when for a permit, and the end of what the device did before."""
        self._active = False
        LayerHooks(module, layers, self._gradient_ready, begins=self._begins, ends=self._ends)

    def begin(self, step: int) -> None:
        """The computation of ``step`` may begin, as far as it is permitted."""
        self._ready_s, self._result, self._permitted = {}, None, -1
        self._missing = [len(layer.parts) for layer in self._layers]
        self._forward, self._backward, self._waits = {}, {}, []
        self._clock.adjust()
        self._last = DeviceMark(self._node.now())
        self._executor.put(lambda: self._run(step))

    def permit(self, layer: int) -> None:
        """The parameters of ``layer``, and of those before it, are those of the step."""
        self._permits.put(layer)

    def computed(self, layer: int) -> float:
        """Block until the gradients of ``layer`` are complete; since when they are. Raises what the
        computation raised. Layers that the loss does not depend on have none: theirs are when all
        has ended."""
        while layer not in self._ready_s and self._result is None:
            self._next_event()
        return self._ready_s.get(layer, self._ended_s)

    def result(self) -> Computed:
        """Return the result of the whole computation, which has ended then."""
        while self._result is None:
            self._next_event()
        return self._result

    def spans(self) -> tuple[Spans, Spans]:
        """Return when each layer's forward and backward pass went on, by the node's clock."""
        forward = {
            name: [max(permitted_s, before.wait()), end.wait()]
            for name, (permitted_s, before, end) in self._forward.items()
        }
        backward = {n: [before.wait(), end.wait()] for n, (before, end) in self._backward.items()}
        return forward, backward

    @property
    def waited_s(self) -> float:
        """While the device still works on the layer before, it waits for nothing."""
        waited_s = 0.0
        for begin_s, permitted_s, before in self._waits:
            waited_s += max(0.0, permitted_s - max(begin_s, before.wait()))
        return waited_s

    def end(self) -> None:
        """There is no step any more. What waits to be permitted is given up; never blocks."""
        self._executor.end()
        self._permits.put(None)

    def _next_event(self) -> None:
        event = self._news.get()
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, Computed):
            self._result = event
        else:
            number, complete = event
            self._ready_s[number] = complete.wait()

    def _run(self, step: int) -> None:
        self._active = True
        try:
            result = self._node.background(lambda: self._compute(step))
        finally:
            self._active = False
        self._await(len(self._layers) - 1)  # of layers that the model did not call
        self._ended_s = self._node.now()
        self._news.put(result)

    def _await(self, number: int) -> None:
        while self._permitted < number:
            if (permitted := self._permits.get()) is None:
                raise _Ended
            self._permitted = permitted

    def _begins(self, number: int) -> None:
        if self._active:
            begin_s = self._node.now()
            self._await(number)
            now_s, last = self._node.now(), self._last
            self._waits.append((begin_s, now_s, last))
            self._forward.setdefault(self._layers[number].name, (now_s, last, last))

    def _ends(self, number: int) -> None:
        if self._active:
            self._last, name = self._clock.mark(), self._layers[number].name
            permitted_s, before, _ = self._forward[name]
            self._forward[name] = permitted_s, before, self._last

    def _gradient_ready(self, number: int, _: int) -> None:
        if self._active:
            self._missing[number] -= 1
            if self._missing[number] == 0:
                before, self._last = self._last, self._clock.mark()
                self._backward[self._layers[number].name] = before, self._last
                self._news.put((number, self._last))
