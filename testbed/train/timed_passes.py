"""When each layer computes, told by the model itself: hooks at its modules and its parameters.

A layer is the parameters that one module owns (``compress.layout.Layer``). What is computed between two layers, such as
an activation or a sum, is counted to the one before it; what comes before the first layer to that, the loss to the
backward pass of the last. So the layers' times add up to the whole from its begin to the last gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from testbed.errors import InputError
from testbed.train.flat import FlatModel
from testbed.train.profile import LayerTimes


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
        """Of ``compute``, which makes one forward and one backward pass, in the order of the forward pass.

        Raises InputError for a model whose layers do not follow one another, forward and, in reverse, backward.
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
        """The marks are: the begin, every layer's forward pass, its end, every parameter's gradient."""
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
        hint="Let every module with parameters compute once, in the order of the parameters; or use `profile: constant`",
    )
