"""What does not depend on the order in which buckets are there, and the order in which they go."""

from __future__ import annotations

from random import Random

from testbed.compress.shards import Shard
from testbed.train.job import Job


def bucket_rng(job: Job, shard: Shard) -> Random:
    """Of a node's own for each bucket: which is packed or answered first would change what one for all draws."""
    return Random(f"{job.seed}/{job.node}/{shard.name}")


def urgency(job: Job, number: int) -> int:
    """Of a bucket that waits to be sent; the least goes first. Buckets are numbered as they are computed."""
    return -number if job.algorithm.order == "forward" else number
