"""One copy of the model: the same on every node, as long as all apply the same updates."""

from __future__ import annotations

from testbed.compress.compressor import Compressor
from testbed.node import Buffer
from testbed.train.device import Landing, settle, synchronise
from testbed.train.flat import FlatModel, parameter_hash
from testbed.train.job import Job
from testbed.train.models import build
from testbed.train.optimizer import Sgd

WHOLE = "whole"
"""The bucket that holds the whole model; its number in frames is 0."""


class Replica:
    """Model, optimizer, and the way from a payload to a step. Initial parameters follow from the seed."""

    def __init__(self, job: Job) -> None:
        train = job.train
        self.device = settle(job.device, job.threads)
        self.flat = FlatModel(build(train.model, train.task, train.width, job.seed), self.device)
        self._landing = Landing(self.flat.size, self.device)
        self._settings = train.optimizer
        self._optimizer = Sgd(self._settings, self.flat.parameters)
        self._codec = self.compressor(job)

    def compressor(self, job: Job) -> Compressor:
        """A new compressor, its memory empty, that knows this model's parameters by name."""
        return Compressor(job.algorithm.recipe, {WHOLE: self.flat.layout})

    def decode(self, payload: Buffer) -> None:
        """Take in an update's payload; ``apply`` makes the step. Raises WireError."""
        self._codec.decompress(WHOLE, payload, self._landing.host)

    def apply(self, epoch: int) -> None:
        """x ← x − η·(what was decoded)."""
        self._optimizer.apply(self._landing.deliver(), epoch)
        synchronise(self.device)

    def rehearse(self, payload: Buffer) -> None:
        """Do what ``decode`` and ``apply`` do once, so that first-time costs are paid, changing nothing."""
        self.decode(payload)
        Sgd(self._settings, self.flat.parameters.clone()).apply(self._landing.deliver(), epoch=1)
        synchronise(self.device)

    def fingerprint(self) -> str:
        """Hash of the parameters."""
        return parameter_hash(self.flat.parameters)
