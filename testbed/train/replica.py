"""One copy of the model: the same on every node, as long as all apply the same updates."""

from __future__ import annotations

import numpy as np
from torch import Tensor, from_numpy

from testbed.compress.compressor import Compressor
from testbed.compress.finite import refuse
from testbed.compress.shards import Shard, pieces
from testbed.errors import WireError
from testbed.node import Buffer
from testbed.train.device import Landing, settle, synchronise
from testbed.train.flat import FlatModel, parameter_hash
from testbed.train.job import Job
from testbed.train.models import build
from testbed.train.optimizer import Sgd


class Replica:
    """Model, optimizer, and the way from a payload to a step. Initial parameters follow from the seed."""

    def __init__(self, job: Job) -> None:
        train = job.train
        self.device = settle(job.device, job.threads)
        self.flat = FlatModel(build(train.model, train.task, train.width, job.seed), self.device)
        servers, bucket_bytes = max(1, job.servers), job.algorithm.bucket_bytes
        self.shards = pieces(self.flat.layout, servers, bucket_bytes)
        self._landing = Landing(self.flat.size, self.device)
        self._settings = train.optimizer
        self._optimizer = Sgd(self._settings, self.flat.parameters)
        self._codec = self.compressor(job)

    @property
    def parameters(self) -> Tensor:
        """All of them, float32 (size,)."""
        return self.flat.parameters

    def compressor(self, job: Job) -> Compressor:
        """A new compressor, its memory empty, that knows this model's parameters by name."""
        return Compressor(job.algorithm.recipe, {s.name: s.layout for s in self.shards})

    def decode(self, shard: Shard, payload: Buffer) -> None:
        """Take in a shard's update; when all are there, ``apply`` makes the step. Raises WireError."""
        self._codec.decompress(shard.name, payload, self._landing.host[shard.place])

    def take(self, mean: Buffer) -> None:
        """Take in the whole mean gradient, float32 (size,) as bytes.

        Raises WireError for another size, GradientError for a mean that is not finite.
        """
        if memoryview(mean).nbytes != 4 * self.flat.size:
            raise WireError(
                f"a mean gradient has {4 * self.flat.size} B, got {memoryview(mean).nbytes}"
            )
        self._landing.host.numpy()[:] = np.frombuffer(mean, np.float32)
        refuse(self._landing.host, self.flat.layout, what="mean gradient")

    def adopt(self) -> None:
        """x ← what was decoded: parameters, not a gradient."""
        self.flat.parameters.copy_(self._landing.deliver())
        synchronise(self.device)

    def state(self) -> bytes:
        """All that another replica needs to go on as this one: x, and v where there is momentum, as float32."""
        velocity = self._optimizer.velocity
        parts = [self.flat.parameters, *([] if velocity is None else [velocity])]
        return b"".join(part.cpu().numpy().tobytes() for part in parts)

    def load(self, state: Buffer) -> None:
        """Be as the replica whose ``state`` it is. Raises WireError for another size."""
        velocity, size = self._optimizer.velocity, self.flat.size
        parts = [self.flat.parameters, *([] if velocity is None else [velocity])]
        if memoryview(state).nbytes != 4 * size * len(parts):
            raise WireError(
                f"a replica's state has {4 * size * len(parts)} B, got {memoryview(state).nbytes}"
            )
        values = np.frombuffer(state, np.float32).reshape(len(parts), size)
        for part, own in zip(parts, values, strict=True):
            part.copy_(from_numpy(own.copy()))
        synchronise(self.device)

    def apply(self, epoch: int) -> None:
        """x ← x − η·(what was decoded)."""
        self._optimizer.apply(self._landing.deliver(), epoch)
        synchronise(self.device)

    def apply_shard(self, shard: Shard, epoch: int) -> None:
        """``apply`` for what was decoded of ``shard``, alone."""
        self._optimizer.apply(self._landing.deliver(shard.place), epoch, shard.place)
        synchronise(self.device)

    def all_applied(self, epoch: int) -> None:
        """Every shard has been: nothing is left to do."""

    def rehearse(self, shard: Shard, payload: Buffer) -> None:
        """Do what ``decode`` and ``apply`` do once, so that first-time costs are paid, changing nothing."""
        self.decode(shard, payload)
        Sgd(self._settings, self.flat.parameters.clone()).apply(self._landing.deliver(), epoch=1)
        synchronise(self.device)

    def fingerprint(self) -> str:
        """Hash of the parameters."""
        return parameter_hash(self.flat.parameters)
