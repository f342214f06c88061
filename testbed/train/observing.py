"""Between a step and its controller: it is asked for densities before, and shown what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.compress.base import Compensated
from testbed.compress.bucket import Packed
from testbed.compress.compressor import Compressor
from testbed.compress.curve import error_curve
from testbed.compress.shards import Shard
from testbed.control.base import LEVELS, Controller, LayerController, Observation, watched
from testbed.exchange.base import Travel
from testbed.node import Node
from testbed.train.agreement import Note
from testbed.train.compute import Computed
from testbed.train.job import Job, Shared
from testbed.train.optimizer import learning_rate
from testbed.train.workshop import WorkersReplica


@dataclass(frozen=True, slots=True)
class Sent:
    """What a step's messages carried: of all shards together."""

    count: int
    before: float
    """Σ|p|."""
    mass: float
    """Σ|sent|."""
    layers: dict[str, list[float]]
    """``Observation.layers``."""


class Observer:
    """One worker's side of its controller."""

    def __init__(
        self, node: Node, job: Job, controller: Controller, replica: WorkersReplica, compressor: Compressor
    ) -> None:  # fmt: skip
        self._node, self._job = node, job
        self._controller, self._replica = controller, replica
        self._watched = watched(controller)
        self._every: int = getattr(controller, "curves_every", 1)
        self._looked = 0
        self._curves: dict[str, list[float]] = {}
        self._last: Observation | None = None
        self._agreed = Note()
        compressor.weigh = "memory" in self._watched
        layered = job.algorithm.buckets == "layer"
        self._parts = [
            [(part.name, part.size) for part in shard.layout]
            if layered
            else [(shard.name, shard.layout.size)]
            for shard in replica.shards
        ]

    def densities(self) -> list[float | list[float]]:
        """For the coming step, of every shard."""
        controller = self._controller
        if isinstance(controller, LayerController):
            return [controller.densities([name for name, _ in parts]) for parts in self._parts]
        return [controller.density()] * len(self._parts)

    @property
    def sees_buckets(self) -> bool:
        """Whether the controller wants to know how buckets travelled."""
        return "buckets" in self._watched

    def looks(self) -> bool:
        """Whether the controller wants error curves of the coming step."""
        self._curves = {}
        self._looked += 1
        return "curves" in self._watched and (self._looked - 1) % self._every == 0

    def look(self, shard: Shard, given: Iterable[tuple[str, Compensated]]) -> None:
        """Take the error curves of what ``shard`` will be compressed from, by the name of its first parameter."""
        layered = self._job.algorithm.buckets == "layer"
        for name, one in given:
            self._curves[name if layered else shard.name] = error_curve(one.flat, LEVELS)

    def sent(self, packed: Sequence[Packed]) -> Sent:
        """What ``packed``, a message for every shard, carry. The gradients are still those of the step."""
        layers = self._norms() if "layers" in self._watched else {}
        return Sent(
            count=sum(one.count for one in packed),
            before=sum(one.before for one in packed),
            mass=sum(one.sent for one in packed),
            layers=layers,
        )

    def observe(
        self, step: int, epoch: int, result: Computed, density: float, travel: Travel, sent: Sent, step_s: float,
        buckets: dict[str, dict[str, float]] | None = None,
    ) -> Observation | None:  # fmt: skip
        """Show the controller a finished step, in model time: dilation makes delays longer and rates lower.

        Returns what it was shown.
        """
        dilation, rate = self._job.dilation, self._node.asked_rate(self._job.node, "up")
        weighed = "memory" in self._watched
        seen = Observation(
            step=step,
            epoch=epoch,
            delay_s=(travel.last_s - travel.start_s) / dilation,
            accuracy=result.accuracy,
            bytes_sent=travel.bytes_up,
            density=density,
            link_rate_bits=None if rate is None else rate * dilation,
            step_s=step_s / dilation,
            bytes_received=travel.bytes_down,
            learning_rate=learning_rate(self._job.train.optimizer, epoch),
            held=max(0.0, sent.before - sent.mass) if weighed else None,
            sent=sent.mass if weighed else None,
            share_up_bits=self._share(self._job.way_up),
            share_down_bits=self._share(self._job.way_down),
            layers=sent.layers,
            curves=self._curves,
            buckets=buckets or {},
        )
        return self._shown(seen)

    def note(self) -> Note | None:
        """What goes with the coming step's gradient; None where workers do not agree."""
        return Note.of(self._last) if self._job.algorithm.agree else None

    def agree(self, note: Note) -> None:
        """What came with the reply: about the step before."""
        self._agreed = note

    def _shown(self, seen: Observation) -> Observation | None:
        """What the controller was shown: this step or, where workers agree, the one before as all met it."""
        shown: Observation | None = seen
        if self._job.algorithm.agree:
            shown, self._last = self._agreed.upon(self._last), seen
        if shown is not None:
            self._controller.observe(shown)
        return shown

    def _share(self, way: Sequence[Shared]) -> float | None:
        """Bit/s of model time; None where the fabric has not told of every link yet."""
        shares = []
        for link, direction, workers in way:
            if (rate := self._node.asked_rate(link, direction)) is None:
                return None
            shares.append(rate * self._job.dilation / workers)
        return min(shares, default=None)

    def _norms(self) -> dict[str, list[float]]:
        gradients, offset = self._replica.flat.gradients, 0
        found: dict[str, list[float]] = {}
        for shard, parts in zip(self._replica.shards, self._parts, strict=True):
            offset = shard.place.start or 0
            for name, size in parts:
                norm = float(gradients[offset : offset + size].norm())
                found[name] = [float(size), norm]
                offset += size
        return found
