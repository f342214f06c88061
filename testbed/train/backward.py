"""Which gradients are there while the backward pass goes on: in buckets, as DistributedDataParallel forms them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from testbed.compress.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

_WIDTH = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters that follow one another: their numbers in the layout, and their elements of the flat vector."""

    parts: range
    place: slice


def buckets(layout: Layout, first_bytes: int, most_bytes: int) -> list[Bucket]:
    """The parameters from the last to the first, which is about the order in which gradients are there.

    A bucket is full when it has ``most_bytes`` (the first one: ``first_bytes``) or more, so that a parameter is
    never parted: as PyTorch's ``_compute_bucket_assignment_by_size`` does it.
    """
    found: list[Bucket] = []
    end = len(layout.parts)
    for number in reversed(range(end)):
        part = layout.parts[number]
        last = layout.parts[end - 1]
        place = slice(part.offset, last.offset + last.size)
        limit = most_bytes if found else first_bytes
        if number == 0 or _WIDTH * (place.stop - place.start) >= limit:
            found.append(Bucket(range(number, end), place))
            end = number
    return found


class Backward:
    """Tells of buckets that are complete, one after the other, from within the backward pass."""

    def __init__(self, parameters: Sequence[Tensor], formed: Sequence[Bucket]) -> None:
        """``parameters``: of the whole model, in the order of its layout."""
        self._formed = formed
        self._missing: list[int] = []
        self._next = 0
        self._tell: Callable[[int], None] = _nobody
        for number, bucket in enumerate(formed):
            for part in bucket.parts:
                tensor: Any = parameters[part]  # the method is not typed
                tensor.register_post_accumulate_grad_hook(self._hook(number))

    def begin(self, tell: Callable[[int], None]) -> None:
        """``tell`` is called with every bucket's number, once, in their order, until the next ``begin``."""
        self._missing = [len(bucket.parts) for bucket in self._formed]
        self._next, self._tell = 0, tell

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if self._missing:
                self._missing[number] -= 1
                self._tell_all()

        return ready

    def _tell_all(self) -> None:
        while self._next < len(self._missing) and self._missing[self._next] == 0:
            self._next += 1
            self._tell(self._next - 1)


def shares(
    backward: Backward,
    many: int,
    compute: Callable[[], object],
    now: Callable[[], float],
    times: int,
) -> list[float]:
    """By bucket (``many`` of them): at what share of a computation it is complete; the median of ``times`` of them.

    Never less than that of a bucket before it, and at most 1.
    """
    seen: list[list[float]] = [[] for _ in range(many)]
    for _ in range(times):
        ready_s: dict[int, float] = {}
        backward.begin(lambda number, into=ready_s: into.setdefault(number, now()))  # type: ignore[misc]
        start_s = now()
        compute()
        end_s = now()
        for number in range(many):
            at_s = ready_s.get(number, end_s)
            seen[number].append((at_s - start_s) / max(end_s - start_s, 1e-9))
    backward.begin(_nobody)
    found: list[float] = []
    for one in seen:
        found.append(min(1.0, max([median(one), *found[-1:]])))
    return found


def _nobody(number: int) -> None:
    """Nobody is told."""
