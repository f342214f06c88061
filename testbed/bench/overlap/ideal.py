"""What a step must take when its layers' times and its buckets' sizes are known. Pure.

One bucket per layer; every worker is like every other, and its own link is the narrowest on the way. What is neither
computation nor a bucket's bits on that link takes no time. All times in seconds, sequences in the order of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Variant = Literal["whole", "buckets", "backward", "forward"]
"""One message when all is computed; all buckets then; overlapped, buckets in the order of the backward pass; overlapped, of
those that wait what the next forward pass needs first."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A step's parts by layer: computation, and its bucket's bits over the rate of the worker's link each way."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    up_s: Sequence[float]
    down_s: Sequence[float]

    @property
    def compute_s(self) -> float:
        """Forward and backward pass."""
        return sum(self.forward_s) + sum(self.backward_s)

    @property
    def ready_s(self) -> list[float]:
        """When each layer's gradients are there, after a step that has all parameters at 0."""
        ready, now_s = [0.0] * len(self.forward_s), sum(self.forward_s)
        for layer in reversed(range(len(ready))):
            now_s += self.backward_s[layer]
            ready[layer] = now_s
        return ready


def bound_s(chain: Chain) -> float:
    """The longer of two chains, if the forward pass waits for all parameters: computation, then the last bucket's way up
    and down; or the first bucket's gradients, then all buckets one way, then the last one down.

    The first bucket is that of the last layer, the last one that of the first.
    """
    computing = chain.compute_s + chain.up_s[0] + chain.down_s[0]
    longer = max(sum(chain.up_s), sum(chain.down_s))
    return max(computing, chain.ready_s[-1] + longer + chain.down_s[0])


def step_s(chain: Chain, variant: Variant) -> float:
    """A step of the schedule itself, from when the first layer may compute until it may again; every step is like it.

    Buckets pass a link one after the other, none is parted, and none leaves the server before all of it has come.
    """
    if variant == "whole":
        return chain.compute_s + sum(chain.up_s) + sum(chain.down_s)
    if variant == "buckets":
        ready = [chain.compute_s] * len(chain.up_s)
        return max(_returned(chain, ready, variant))
    return _overlapped(chain, variant)


def _overlapped(chain: Chain, variant: Variant) -> float:
    """Whatever the forward pass waits between layers, all gradients are later by that, and all that comes back."""
    returned = _returned(chain, chain.ready_s, variant)
    now_s, waited_s = returned[0], 0.0
    for layer in range(1, len(returned)):
        now_s += chain.forward_s[layer - 1]
        waited_s += max(0.0, returned[layer] - now_s)
        now_s = max(now_s, returned[layer])
    return returned[0] + waited_s


def _returned(chain: Chain, ready_s: Sequence[float], variant: Variant) -> list[float]:
    """When each layer's parameters are there, with gradients that are there at ``ready_s``."""
    layers = range(len(ready_s))
    urgency = list(layers) if variant == "forward" else [-layer for layer in layers]
    return _passed(_passed(ready_s, chain.up_s, urgency), chain.down_s, urgency)


def _passed(
    come_s: Sequence[float], busy_s: Sequence[float], urgency: Sequence[int]
) -> list[float]:
    """When a link has sent each of what came at ``come_s`` and takes ``busy_s``: the least ``urgency`` that waits goes first."""
    passed, left, now_s = [0.0] * len(come_s), set(range(len(come_s))), 0.0
    while left:
        now_s = max(now_s, min(come_s[one] for one in left))
        chosen = min((one for one in left if come_s[one] <= now_s), key=urgency.__getitem__)
        now_s += busy_s[chosen]
        passed[chosen] = now_s
        left.remove(chosen)
    return passed
