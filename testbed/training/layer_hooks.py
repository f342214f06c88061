"""When each layer of a model computes, told by hooks at its modules and parameters.

The computation itself goes on beside: a layer of the forward pass begins when it is permitted (its
parameters are there), and a layer of the backward pass has ended when its gradients are there.

A layer is the parameters that one module owns (``compress.layout.Layer``). What is computed between
two layers, such as an activation or a sum, is counted to the one before it; what comes before the
first layer to that, the loss to the backward pass of the last. So the layers' times add up to the
whole from its begin to the last gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from testbed.compress.layout import Layer
from testbed.errors import InputError
from testbed.node import Node, Queue
from testbed.scenario.profile import LayerTimes
from testbed.training.bucket_pipeline import PriorityExecutor
from testbed.training.compute import Computed
from testbed.training.replica import FlatModel, synchronise

if TYPE_CHECKING:
    from torch import Tensor, nn


Compute = Callable[[int], Computed]
Spans = dict[str, list[float]]


class Passes(Protocol):
    """The forward and backward passes of one worker.

    Calls come in this order: ``begin``; ``permit`` by layer; ``computed`` from the last to the
    first; ``result``; and ``end`` at any time.
    """

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
        """Block until the gradients of ``layer`` are there; since when they are. Raises what the
        computation raised."""
        ...

    def result(self) -> Computed:
        """Return the result of the whole computation, which has ended then."""
        ...

    def spans(self) -> tuple[Spans, Spans]:
        """When the forward and the backward pass of each layer went on; empty where nobody can
        tell."""
        ...

    def end(self) -> None:
        """There is no step any more. What waits to be permitted is given up; never blocks."""
        ...


class WholePasses:
    """For computation that cannot be parted: all of it when the last layer is permitted, at one
    instant."""

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

    On an accelerator a layer has ended when the device has done all it was given: so each is waited
    for, which parts the device's work from the host's by as much as a launch takes, and lets a
    bucket be packed between two layers.
    """

    def __init__(
        self, node: Node, compute: Compute, layers: Sequence[Layer], module: nn.Module
    ) -> None:
        self._node, self._compute, self._layers = node, compute, layers
        self._permits: Queue[int] = node.queue()
        self._permitted = -1
        self._told: Queue[tuple[int, float] | Computed | BaseException] = node.queue()
        self._lane = PriorityExecutor(node, self._told.put)
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
        """Layers that the loss does not depend on have no gradient: theirs is there when all has
        ended."""
        while layer not in self._there and self._result is None:
            self._hear()
        return self._there.get(layer, self._ended)

    def result(self) -> Computed:
        """See ``Passes``."""
        while self._result is None:
            self._hear()
        return self._result

    def spans(self) -> tuple[Spans, Spans]:
        """Return the spans by this node's clock."""
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


class Stopwatch(Protocol):
    """Takes the time without holding up what it watches."""

    def mark(self) -> None:
        """Now."""
        ...

    def read(self) -> list[float]:
        """Seconds from the first mark to each, in their order; there are none after it."""
        ...


class TimedPasses:
    """One forward and backward pass of ``flat``'s model at a time, with the times of its layers."""

    def __init__(self, flat: FlatModel, stopwatch: Stopwatch) -> None:
        self._flat, self._stopwatch = flat, stopwatch
        self.layers = flat.layout.layers()
        self._entered: list[int] = []
        """Layers whose forward pass has begun, by number."""
        self._left = 0
        """How often the model's forward pass has ended."""
        self._ready: list[int] = []
        """Layers a parameter's gradient of which was there, by number."""

    def times(self, compute: Callable[[], object]) -> list[LayerTimes]:
        """Measure the layers of ``compute``, which makes one forward and one backward pass.

        Layers are in the order of the forward pass.

        Raises InputError for a model whose layers do not follow one another, forward and, in
        reverse, backward.
        """
        self._entered, self._left, self._ready = [], 0, []
        with self._hooked():
            self._stopwatch.mark()
            compute()
        marks_s = self._stopwatch.read()
        self._check()
        return self._between(marks_s)

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        modules = dict(self._flat.module.named_modules())
        parameters: dict[str, Any] = dict(
            self._flat.module.named_parameters()
        )  # one method is not typed
        handles = []
        for number, layer in enumerate(self.layers):
            handles.append(
                modules[layer.name].register_forward_pre_hook(self._marking("_entered", number))
            )
            for part in layer.parts:
                hook = self._marking("_ready", number)
                handles.append(parameters[part.name].register_post_accumulate_grad_hook(hook))
        handles.append(self._flat.module.register_forward_hook(self._forward_end))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _marking(self, into: str, number: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            getattr(self, into).append(number)
            self._stopwatch.mark()

        return hook

    def _forward_end(self, *_: object) -> None:
        self._left += 1
        self._stopwatch.mark()

    def _check(self) -> None:
        names, many = [layer.name for layer in self.layers], len(self.layers)
        if self._left != 1:
            raise _disorder(f"its forward pass is made {self._left} times in a step")
        _in_order(self._entered, range(many), names, "forward")
        last = [n for i, n in enumerate(self._ready) if self._ready[i + 1 : i + 2] != [n]]
        _in_order(last, range(many - 1, -1, -1), names, "backward")

    def _between(self, marks_s: Sequence[float]) -> list[LayerTimes]:
        """The marks are: the begin, every layer's forward pass, its end, every parameter's
        gradient."""
        many = len(self.layers)
        forward_s = [marks_s[0], *marks_s[2 : many + 2]]
        ready_s = {number: marks_s[many + 2 + i] for i, number in enumerate(self._ready)}
        ready_s[many] = marks_s[many + 1]
        return [
            LayerTimes(layer.name, forward_s[n + 1] - forward_s[n], ready_s[n] - ready_s[n + 1])
            for n, layer in enumerate(self.layers)
        ]


def _in_order(seen: Sequence[int], expected: Sequence[int], names: Sequence[str], way: str) -> None:
    """Raises InputError at the first layer that is not where its parameters are."""
    if list(seen) == list(expected):
        return
    pairs = zip([*seen, None], [*expected, None], strict=False)
    found, wanted = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    came = "nothing" if found is None else f"layer {names[found]!r}"
    due = "nothing more" if wanted is None else f"layer {names[wanted]!r}"
    raise _disorder(f"in its {way} pass {came} came where {due} was to")


def _disorder(what: str) -> InputError:
    return InputError(
        f"the model cannot be timed layer by layer: {what}",
        where="train.model",
        hint="Let every module with parameters compute once, in the order of the parameters; or "
        "use `profile: constant`",
    )
