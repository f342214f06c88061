"""The mean of all workers' payloads for one shard, wherever it is taken: on its server, or by every peer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from testbed.compress.base import Sparse
from testbed.compress.layers import read_message
from testbed.compress.payload import Scratch
from testbed.compress.shards import Shard
from testbed.errors import WireError
from testbed.node import Buffer, Message
from testbed.train.agreement import Note, agreed, detached
from testbed.train.job import Job
from testbed.train.reply import Reply


class Mean:
    """Of ``shard``, as the algorithm of ``job`` writes it on the way down."""

    def __init__(self, job: Job, shard: Shard) -> None:
        self._job, self._shard = job, shard
        self._reply = Reply(job.algorithm, shard.layout)
        self._aggregate, self._scratch = self._reply.aggregate(), Scratch()

    def of(self, messages: Sequence[Message], rng: Random) -> tuple[memoryview, int, Note | None]:
        """The payload, which holds until the next one; how many elements it has; what workers agree upon.

        Gradients are added up in the order of ``messages``, so that the sum is the same everywhere. Raises
        WireError naming whose message is no gradient.
        """
        gradients, note = self._apart(messages)
        self._aggregate.reset()
        for message, gradient in zip(messages, gradients, strict=True):
            try:
                read = read_message(gradient, self._shard.layout, self._scratch)
                self._aggregate.add(read)
            except WireError as error:
                name = self._job.peer_name(message.sender)
                raise WireError(f"gradient of {name}, step {message.step}: {error}") from error
        mean: Sparse = self._aggregate.mean(len(messages))
        return self._reply.encode(mean, rng), mean.count, note

    def _apart(self, messages: Sequence[Message]) -> tuple[list[Buffer], Note | None]:
        """Gradients, and what workers agree upon; None where they do not, or it goes with another shard."""
        if not self._job.algorithm.agree or self._shard.number:
            return [message.body for message in messages], None
        parts = [detached(message.body) for message in messages]
        return [payload for payload, _ in parts], agreed([note for _, note in parts])
